//! The line of statistics, every ten seconds by default, as long as there is traffic.

use std::time::Duration;

use tokio::time::Instant;
use tracing::info;

/// Counts since the last line. Silent while nothing happens, so that an idle process sleeps.
pub(crate) struct StatsLine {
    /// Absent: none are logged.
    every: Option<Duration>,
    since: Instant,
    due: bool,
    prompt_tokens: u64,
    generated_tokens: u64,
}

impl StatsLine {
    pub(crate) fn new(every: Option<Duration>) -> Self {
        Self { every, since: Instant::now(), due: false, prompt_tokens: 0, generated_tokens: 0 }
    }

    /// Something happened: a line is due so long after the first event.
    pub(crate) fn traffic(&mut self, prompt_tokens: usize) {
        self.prompt_tokens += prompt_tokens as u64;
        self.arm();
    }

    /// Tokens came out of a step.
    pub(crate) fn generated(&mut self, tokens: usize) {
        self.generated_tokens += tokens as u64;
        if tokens > 0 {
            self.arm();
        }
    }

    /// Whether a line will be logged at [`Self::next`].
    pub(crate) fn is_due(&self) -> bool {
        self.due
    }

    /// When the next line is logged.
    pub(crate) fn next(&self) -> Instant {
        self.since + self.every.unwrap_or_default()
    }

    /// Logs the line and starts counting anew.
    pub(crate) fn log(&mut self, stats: &sched_core::Stats) {
        let seconds = self.since.elapsed().as_secs_f64();
        info!(
            "Avg prompt throughput: {:.1} tokens/s, Avg generation throughput: {:.1} tokens/s, Running: {} reqs, \
             Waiting: {} reqs, Preemptions: {}, KV cache usage: {:.1}%, Prefix cache hit rate: {:.1}%",
            self.prompt_tokens as f64 / seconds,
            self.generated_tokens as f64 / seconds,
            stats.running,
            stats.waiting_for_capacity + stats.waiting_deferred,
            stats.totals.preemptions,
            stats.kv_cache_usage() * 100.0,
            100.0 * stats.totals.prefix_cache_hits as f64 / (stats.totals.prefix_cache_queries as f64).max(1.0),
        );
        *self = Self::new(self.every);
        // Long answers go on without new requests: keep logging while anything runs.
        if stats.running + stats.waiting_for_capacity > 0 {
            self.arm();
        }
    }

    fn arm(&mut self) {
        if self.every.is_some() && !self.due {
            self.due = true;
            self.since = Instant::now();
        }
    }
}
