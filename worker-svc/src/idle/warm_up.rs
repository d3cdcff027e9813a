//! Lets the device do ahead what steps to come would wait for, while nobody asks for anything; and says how long that
//! took.

use std::time::{Duration, Instant};

use models::Runner;
use tracing::info;

/// How far it is, since the last step.
#[derive(Debug, Default)]
pub(crate) struct Preparation {
    over: bool,
    /// Since it was last said.
    took: Duration,
}

impl Preparation {
    /// Shorter work is not worth a line.
    const LONG: Duration = Duration::from_millis(100);

    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Does a piece of it.
    pub(crate) fn go_on(&mut self, model: &mut dyn Runner) {
        let start = Instant::now();
        self.over = !model.warm_up();
        self.took += start.elapsed();
        if self.over && self.took >= Self::LONG {
            info!(seconds = self.took.as_secs_f64(), "kernels for steps to come are loaded and measured");
            self.took = Duration::ZERO;
        }
    }

    /// There was another step, or one was recorded, which may have asked for something new.
    pub(crate) fn goes_on(&mut self) {
        self.over = false;
    }
}
