//! Lets the device record decode steps, once each, while the worker serves: between two steps for those that have just
//! run, and when nobody asks for anything for the others.

use std::time::{Duration, Instant};

use collectives::Collective;
use kernels::ops::CaptureSize;
use models::{ForwardError, Runner};
use tracing::{info, warn};

/// Steps of up to this many rows, one a sequence, are recorded unless said otherwise (vLLM's bound).
pub(crate) const MOST_ROWS: u32 = 512;

/// The kinds of steps to record for up to `max_num_seqs` sequences: of 1, 2, 4, every multiple of 8 up to 256 and of 16
/// beyond, not above `most`, and of `max_num_seqs` itself. Steps are padded to the next kind, so this is also what
/// padding may cost.
pub(crate) fn kinds(max_num_seqs: u32, most: u32) -> Vec<usize> {
    let most = most.min(max_num_seqs);
    let steps = [1, 2, 4].into_iter().chain((8..=256).step_by(8)).chain((272..=most.max(272)).step_by(16));
    let mut kinds: Vec<usize> = steps.filter(|rows| *rows <= most).map(|rows| rows as usize).collect();
    if kinds.last().is_some_and(|last| *last < most as usize) {
        kinds.push(most as usize);
    }
    kinds
}

/// Recordings made so far.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    /// Everything runs kernel by kernel.
    off: bool,
    count: usize,
    took: Duration,
    /// Free device memory before the first, and how much less there is since the last.
    free_before: u64,
    bytes: u64,
}

impl Recorder {
    pub(crate) fn new(enforce_eager: bool) -> Self {
        Self { off: enforce_eager, ..Self::default() }
    }

    /// What is to be recorded now. `busy`: only what needs no step to be run. A step that would wait for kernels to be
    /// compiled is left for later: a request that comes meanwhile would wait with it.
    pub(crate) fn next(&self, model: &dyn Runner, busy: bool) -> Option<CaptureSize> {
        let now = |step: &CaptureSize| step.has_run || (step.is_ready && !busy);
        if self.off { None } else { model.next_capture().filter(now) }
    }

    /// Records a step, and says so when it was the last one.
    pub(crate) fn record(
        &mut self,
        step: CaptureSize,
        model: &mut dyn Runner,
        group: &mut dyn Collective,
    ) -> Result<(), ForwardError> {
        let free = |model: &dyn Runner| model.device_memory().map_or(0, |memory| memory.free);
        if self.count == 0 {
            self.free_before = free(model);
        }
        let start = Instant::now();
        match model.capture(step, group)? {
            Ok(()) => (self.count, self.took) = (self.count + 1, self.took + start.elapsed()),
            Err(reason) => warn!("decode steps run kernel by kernel: {reason}"),
        }
        if self.count > 0 && self.bytes == 0 && model.next_capture().is_none() {
            self.bytes = self.free_before.saturating_sub(free(model));
            let (seconds, mib) = (self.took.as_secs_f64(), self.bytes >> 20);
            info!(graphs = self.count, seconds, mib, "decode steps are recorded");
        }
        Ok(())
    }

    /// Recordings, the time that they took, and the device memory that they hold once all are made.
    pub(crate) fn made(&self) -> (usize, Duration, u64) {
        (self.count, self.took, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_go_up_to_the_most_sequences_or_the_bound() {
        assert_eq!(kinds(1, MOST_ROWS), [1]);
        assert_eq!(kinds(20, MOST_ROWS), [1, 2, 4, 8, 16, 20]);
        assert_eq!(kinds(256, MOST_ROWS).len(), 3 + 32);
        assert_eq!(kinds(1024, MOST_ROWS)[35..38], [272, 288, 304]);
        assert_eq!(kinds(1024, MOST_ROWS).last(), Some(&512));
        assert_eq!(kinds(1024, 30), [1, 2, 4, 8, 16, 24, 30]);
        for (sequences, most) in [(1, 1), (3, 9), (255, 512), (257, 512), (70_000, 600)] {
            let kinds = kinds(sequences, most);
            assert!(kinds.is_sorted_by(|a, b| a < b), "{kinds:?}");
            assert_eq!(kinds.last(), Some(&(sequences.min(most) as usize)));
        }
    }
}
