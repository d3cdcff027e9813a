//! What the device did while a profile runs, on the time line of the profile's other spans.

use proto::ProfileSpan;
use service_kit::profile::{Recorded, Recorder, StepPhase, now_ns};

use crate::engine::Engine;

/// The track of a device's kernels.
const TRACK: &str = "device";

/// Has the device time its kernels for as long as steps are recorded.
pub(crate) struct DeviceProfile {
    pub(crate) recorder: Recorder,
    /// When the device's own count of time began; absent while it times nothing.
    began_ns: Option<u64>,
    spans: Vec<ProfileSpan>,
}

/// What a step means for the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// It goes on as it is.
    None,
    /// It is to begin, as soon as the device has nothing to do: only then its first moment is known.
    Begin,
    /// It is to end.
    End,
}

impl DeviceProfile {
    pub(crate) fn new(recorder: Recorder) -> Self {
        Self { recorder, began_ns: None, spans: Vec::new() }
    }

    /// Counts a step.
    pub(crate) fn step(&self) -> Change {
        let is_on = self.recorder.is_on();
        match (is_on, self.began_ns) {
            (false, None) => Change::None,
            (false, Some(_)) => Change::End,
            (true, began) => match (self.recorder.step(), began) {
                (StepPhase::Recorded, None) => Change::Begin,
                (StepPhase::Skipped, Some(_)) => Change::End,
                _ => Change::None,
            },
        }
    }

    /// Begins; the engine must be idle.
    pub(crate) fn begin(&mut self, engine: &mut Engine<'_>) {
        self.spans.clear();
        engine.start_profile();
        self.began_ns = Some(now_ns());
    }

    /// Ends, and keeps what the device did.
    pub(crate) fn end(&mut self, engine: &mut Engine<'_>) {
        let Some(began_ns) = self.began_ns.take() else { return };
        let at = |micros: f64| began_ns + (micros.max(0.0) * 1e3) as u64;
        self.spans.extend(engine.end_profile().into_iter().map(|timing| ProfileSpan {
            name: timing.name,
            track: TRACK.to_owned(),
            begin_ns: at(timing.begin),
            end_ns: at(timing.end),
            ..ProfileSpan::default()
        }));
    }

    /// What is kept; it is given once.
    pub(crate) fn take(&mut self) -> Recorded {
        Recorded { spans: std::mem::take(&mut self.spans), dropped: 0 }
    }
}
