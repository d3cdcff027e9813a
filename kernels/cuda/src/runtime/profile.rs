//! When each thing that the device did began and ended: events in the stream around it. They keep what they surround
//! from overlapping.

use std::sync::Arc;

use cudarc::driver::result::DriverError;

use crate::runtime::context::{Context, Event};
use kernels::ops::Timing;

/// Entries that are kept; what is queued after them is not timed.
const MOST: usize = 100_000;

/// A profile under way.
pub(crate) struct Profile {
    start: Event,
    /// What, and stamps before and after it.
    spans: Vec<(String, Event, Event)>,
}

impl Profile {
    pub(crate) fn start(context: &Arc<Context>) -> Result<Self, DriverError> {
        Ok(Self { start: Event::stamp(context)?, spans: Vec::new() })
    }

    /// Notes what `run` queues.
    pub(crate) fn note<T>(
        &mut self,
        context: &Arc<Context>,
        name: String,
        run: impl FnOnce(&Arc<Context>) -> Result<T, DriverError>,
    ) -> Result<T, DriverError> {
        if self.spans.len() >= MOST {
            return run(context);
        }
        let before = Event::stamp(context)?;
        let value = run(context)?;
        self.spans.push((name, before, Event::stamp(context)?));
        Ok(value)
    }

    /// The stream must have passed all of it.
    pub(crate) fn timings(self) -> Result<Vec<Timing>, DriverError> {
        let timing = |(name, before, after): (String, Event, Event)| {
            Ok(Timing { name, begin: before.micros_since(&self.start)?, end: after.micros_since(&self.start)? })
        };
        self.spans.into_iter().map(timing).collect()
    }
}
