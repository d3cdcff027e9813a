//! The time that durations are taken from: it never jumps, whatever happens to the wall clock.

use std::time::Instant;

/// Counts microseconds since it was started. The core only compares them with each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock(Instant);

impl Clock {
    /// Begins at 0.
    pub(crate) fn start() -> Self {
        Self(Instant::now())
    }

    /// Microseconds since the start.
    pub(crate) fn now_us(self) -> u64 {
        self.0.elapsed().as_micros() as u64
    }
}
