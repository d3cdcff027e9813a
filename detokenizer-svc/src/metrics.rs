//! The detokenizer's metrics.

use std::time::Duration;

use prometheus_client::metrics::{
    counter::Counter,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};
use service_kit::metrics::Metrics;

use crate::{gateways::Gateways, streams::Streams};

pub(crate) struct DetokenizerMetrics {
    requests: Counter,
    tokens: Counter,
    stop_strings: Counter,
    failures: Counter,
    dropped_gateways: Counter,
    sequences: Gauge,
    gateways: Gauge,
    batch_seconds: Histogram,
}

impl DetokenizerMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let all = Self {
            requests: Counter::default(),
            tokens: Counter::default(),
            stop_strings: Counter::default(),
            failures: Counter::default(),
            dropped_gateways: Counter::default(),
            sequences: Gauge::default(),
            gateways: Gauge::default(),
            batch_seconds: Histogram::new(exponential_buckets(5e-6, 2.0, 18)),
        };
        metrics.register(|registry| {
            registry.register("quire:detokenizer_requests", "Requests started", all.requests.clone());
            registry.register("quire:detokenizer_tokens", "Tokens decoded", all.tokens.clone());
            registry.register("quire:detokenizer_stop_strings", "Stop strings found", all.stop_strings.clone());
            registry.register("quire:detokenizer_failures", "Requests that failed", all.failures.clone());
            registry.register(
                "quire:detokenizer_dropped_gateways",
                "Gateways hung up on because they did not read",
                all.dropped_gateways.clone(),
            );
            registry.register("quire:detokenizer_sequences", "Live sequences", all.sequences.clone());
            registry.register("quire:detokenizer_gateways", "Connected gateways", all.gateways.clone());
            registry.register("quire:detokenizer_batch_seconds", "Time to handle a step", all.batch_seconds.clone());
        });
        all
    }

    /// Steps were handled together.
    pub(crate) fn batches(&self, took: Duration) {
        self.batch_seconds.observe(took.as_secs_f64());
    }

    /// Brings all counts up to date.
    pub(crate) fn state(&self, streams: &Streams, gateways: &Gateways) {
        raise(&self.requests, streams.totals.requests);
        raise(&self.tokens, streams.totals.tokens);
        raise(&self.stop_strings, streams.totals.stop_strings);
        raise(&self.failures, streams.totals.failures);
        raise(&self.dropped_gateways, gateways.dropped);
        self.sequences.set(streams.sequences() as i64);
        self.gateways.set(gateways.len() as i64);
    }
}

/// Brings a counter up to a total that only grows.
fn raise(counter: &Counter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
