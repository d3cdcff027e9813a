//! The tokenizer's metrics.

use prometheus_client::metrics::{
    counter::Counter,
    family::Family,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};
use service_kit::metrics::Metrics;

service_kit::labels! {
    pub(crate) struct Outcome {
        outcome: &'static str,
    }

    pub(crate) struct OfEngine {
        engine: String,
    }
}

service_kit::metrics! {
    /// The tokenizer's metrics; cloning shares.
    pub(crate) struct TokenizerMetrics {
        by [] {
            requests: Family<Outcome, Counter>, "quire:tokenizer_requests", "Requests by outcome";
            routed: Family<OfEngine, Counter>, "quire:routed_requests", "Requests by the engine that they went to";
            tokens: Counter, "quire:tokenizer_tokens", "Prompt tokens handed to the scheduler";
            seconds: Histogram = encoding(), "quire:tokenizer_seconds",
                "Time to render and encode a prompt, without waiting";
            in_flight: Gauge, "quire:tokenizer_in_flight", "Requests that wait or are being encoded";
            gateways: Gauge, "quire:tokenizer_gateways", "Connected gateways";
        }
    }
}

fn encoding() -> Histogram {
    Histogram::new(exponential_buckets(20e-6, 2.0, 18))
}

impl TokenizerMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        metrics.register(|registry| Self::register(registry, &[]))
    }

    /// Counts a request that goes to an engine.
    pub(crate) fn routed(&self, engine: usize) {
        self.routed.get_or_create(&OfEngine { engine: engine.to_string() }).inc();
    }

    /// Counts a request: `encoded`, `rejected`, `overloaded` or `aborted`.
    pub(crate) fn request(&self, outcome: &'static str) {
        self.requests.get_or_create(&Outcome { outcome }).inc();
    }
}
