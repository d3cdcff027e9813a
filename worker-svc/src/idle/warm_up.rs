//! Warm-up while the worker is idle: the device compiles, loads and measures kernels that later steps would wait for.

use std::time::{Duration, Instant};

use models::Runner;
use tracing::{debug, info};

/// Progress of the warm-up since the last step.
#[derive(Debug, Default)]
pub(crate) struct WarmUp {
    is_done: bool,
    /// Time spent since it was last logged.
    took: Duration,
}

impl WarmUp {
    /// Shorter work is not worth a line in the log.
    const LONG: Duration = Duration::from_millis(100);
    /// A piece that takes longer may hold a request up.
    const LONG_PIECE: Duration = Duration::from_millis(10);

    pub(crate) fn is_done(&self) -> bool {
        self.is_done
    }

    /// Has the device do one piece of work.
    pub(crate) fn advance(&mut self, model: &mut dyn Runner) {
        let start = Instant::now();
        self.is_done = !model.warm_up();
        let took = start.elapsed();
        self.took += took;
        if took >= Self::LONG_PIECE {
            debug!(took_ms = took.as_secs_f64() * 1e3, "a long piece of the warm-up");
        }
        if self.is_done && self.took >= Self::LONG {
            info!(seconds = self.took.as_secs_f64(), "warm-up is done: kernels of later steps are loaded and measured");
            self.took = Duration::ZERO;
        }
    }

    /// Another step ran or was captured, and may have needed kernels that are new.
    pub(crate) fn resume(&mut self) {
        self.is_done = false;
    }
}
