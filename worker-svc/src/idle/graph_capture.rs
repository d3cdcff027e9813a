//! CUDA graph capture: decode steps are captured once each, while the worker serves. Sizes that have just run are
//! captured between two steps, the others while the worker is idle.

use std::time::{Duration, Instant};

use collectives::Collective;
use kernels::ops::CaptureSize;
use models::{ForwardError, Runner};
use tracing::{debug, info, warn};

/// The default of `--max-cudagraph-capture-size`, as in vLLM.
pub(crate) const MAX_CAPTURE_SIZE: u32 = 512;

/// The capture sizes for up to `max_num_seqs` sequences: 1, 2, 4, every multiple of 8 up to 256 and of 16 beyond, at
/// most `max_size`, and `max_num_seqs` itself. A step is padded to the next size, so they also bound the padding.
pub(crate) fn capture_sizes(max_num_seqs: u32, max_size: u32) -> Vec<usize> {
    let max_size = max_size.min(max_num_seqs);
    let steps = [1, 2, 4].into_iter().chain((8..=256).step_by(8)).chain((272..=max_size.max(272)).step_by(16));
    let mut sizes: Vec<usize> = steps.filter(|rows| *rows <= max_size).map(|rows| rows as usize).collect();
    if sizes.last().is_some_and(|last| *last < max_size as usize) {
        sizes.push(max_size as usize);
    }
    sizes
}

/// Whether plans are in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Load {
    /// Only sizes that can be captured without running a step first.
    InFlight,
    /// Every size that is ready.
    Idle,
}

/// Figures of the captured graphs.
#[derive(Clone, Copy, Debug, Default)]
pub struct CaptureStats {
    /// Captured decode steps.
    pub graphs: usize,
    /// Time that capturing them took.
    pub took: Duration,
    /// Device memory that they hold, in bytes; 0 until all are captured.
    pub bytes: u64,
}

/// Captures decode steps, and counts what was captured.
#[derive(Debug, Default)]
pub(crate) struct GraphCapture {
    /// Steps are launched kernel by kernel (`--enforce-eager`).
    enforce_eager: bool,
    stats: CaptureStats,
    /// Free device memory before the first capture, in bytes.
    free_before: u64,
}

impl GraphCapture {
    pub(crate) fn new(enforce_eager: bool) -> Self {
        Self { enforce_eager, ..Self::default() }
    }

    /// The size to capture now. A size whose kernels are still to be compiled is left for later: a request that came
    /// meanwhile would wait for the compiler.
    pub(crate) fn next_size(&self, model: &dyn Runner, load: Load) -> Option<CaptureSize> {
        let now = |size: &CaptureSize| size.has_run || (size.is_ready && load == Load::Idle);
        if self.enforce_eager { None } else { model.next_capture().filter(now) }
    }

    /// Runs a step that has not run, or captures it; logs a summary after the last one.
    pub(crate) fn capture(
        &mut self,
        size: CaptureSize,
        model: &mut dyn Runner,
        group: &mut dyn Collective,
    ) -> Result<(), ForwardError> {
        let free = |model: &dyn Runner| model.device_memory().map_or(0, |memory| memory.free);
        let stats = &mut self.stats;
        if stats.graphs == 0 {
            self.free_before = free(model);
        }
        let start = Instant::now();
        match model.capture(size, group)? {
            Ok(()) => {
                let took = start.elapsed();
                let done = if size.has_run { "captured" } else { "run to be captured" };
                debug!(rows = size.rows, took_ms = took.as_secs_f64() * 1e3, "a decode step was {done}");
                (stats.graphs, stats.took) = (stats.graphs + usize::from(size.has_run), stats.took + took);
            }
            Err(reason) => warn!("decode steps are launched kernel by kernel: {reason}"),
        }
        if stats.graphs > 0 && stats.bytes == 0 && model.next_capture().is_none() {
            stats.bytes = self.free_before.saturating_sub(free(model));
            let (seconds, mib) = (stats.took.as_secs_f64(), stats.bytes >> 20);
            info!(graphs = stats.graphs, seconds, mib, "CUDA graphs of decode steps are captured");
        }
        Ok(())
    }

    /// What was captured so far.
    pub(crate) fn stats(&self) -> CaptureStats {
        self.stats
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_go_up_to_the_most_sequences_or_the_bound() {
        assert_eq!(capture_sizes(1, MAX_CAPTURE_SIZE), [1]);
        assert_eq!(capture_sizes(20, MAX_CAPTURE_SIZE), [1, 2, 4, 8, 16, 20]);
        assert_eq!(capture_sizes(256, MAX_CAPTURE_SIZE).len(), 3 + 32);
        assert_eq!(capture_sizes(1024, MAX_CAPTURE_SIZE)[35..38], [272, 288, 304]);
        assert_eq!(capture_sizes(1024, MAX_CAPTURE_SIZE).last(), Some(&512));
        assert_eq!(capture_sizes(1024, 30), [1, 2, 4, 8, 16, 24, 30]);
        for (sequences, max_size) in [(1, 1), (3, 9), (255, 512), (257, 512), (70_000, 600)] {
            let sizes = capture_sizes(sequences, max_size);
            assert!(sizes.is_sorted_by(|a, b| a < b), "{sizes:?}");
            assert_eq!(sizes.last(), Some(&(sequences.min(max_size) as usize)));
        }
    }
}
