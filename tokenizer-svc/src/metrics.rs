//! The tokenizer's metrics.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
};
use service_kit::metrics::Metrics;

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

/// All of them; cloning shares.
#[derive(Clone)]
pub(crate) struct TokenizerMetrics {
    requests: Family<Outcome, Counter>,
    /// Prompt tokens handed to the scheduler.
    pub(crate) tokens: Counter,
    /// Seconds of rendering and encoding, waiting excluded.
    pub(crate) seconds: Histogram,
    /// Requests that wait or are being encoded.
    pub(crate) in_flight: Gauge,
    /// Connected gateways.
    pub(crate) gateways: Gauge,
}

impl TokenizerMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let all = Self {
            requests: Family::default(),
            tokens: Counter::default(),
            seconds: Histogram::new(exponential_buckets(20e-6, 2.0, 18)),
            in_flight: Gauge::default(),
            gateways: Gauge::default(),
        };
        metrics.register(|registry| {
            registry.register("quire:tokenizer_requests", "Requests by what became of them", all.requests.clone());
            registry.register("quire:tokenizer_tokens", "Prompt tokens handed on", all.tokens.clone());
            registry.register("quire:tokenizer_seconds", "Time to render and encode", all.seconds.clone());
            registry.register("quire:tokenizer_in_flight", "Requests being encoded", all.in_flight.clone());
            registry.register("quire:tokenizer_gateways", "Connected gateways", all.gateways.clone());
        });
        all
    }

    /// Counts a request: `encoded`, `rejected`, `overloaded` or `aborted`.
    pub(crate) fn request(&self, outcome: &'static str) {
        self.requests.get_or_create(&Outcome { outcome }).inc();
    }
}
