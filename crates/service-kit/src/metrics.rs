//! The process's metrics, and their text form.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::{encoding::text, registry::Registry};

/// A registry that tasks share; cloning shares.
#[derive(Clone, Default)]
pub struct Metrics {
    registry: Arc<Mutex<Registry>>,
}

impl Metrics {
    /// Registers metrics at start.
    pub fn register(&self, add: impl FnOnce(&mut Registry)) {
        add(&mut self.lock());
    }

    /// All metrics in OpenMetrics text, without the closing `# EOF` line, so that several processes' texts can be
    /// joined.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = text::encode(&mut out, &self.lock());
        out.truncate(out.trim_end_matches("# EOF\n").len());
        out
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::counter::Counter;

    use super::*;

    #[test]
    fn text_has_no_end_mark() {
        let metrics = Metrics::default();
        let counter = Counter::<u64>::default();
        counter.inc_by(3);
        metrics.register(|registry| registry.register("vllm:prompt_tokens", "Prompt tokens", counter.clone()));
        let text = metrics.text();
        assert!(text.contains("vllm:prompt_tokens_total 3\n"), "{text}");
        assert!(!text.contains("# EOF"), "{text}");
    }
}
