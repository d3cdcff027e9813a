//! The detokenizer's metrics.

use std::time::Duration;

use prometheus_client::metrics::{
    counter::Counter,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};
use service_kit::metrics::{Metrics, raise};

use crate::{gateways::Gateways, streams::Streams};

service_kit::metrics! {
    pub(crate) struct DetokenizerMetrics {
        by [] {
            requests: Counter, "quire:detokenizer_requests", "Requests started";
            tokens: Counter, "quire:detokenizer_tokens", "Tokens decoded";
            stop_strings: Counter, "quire:detokenizer_stop_strings", "Stop strings found";
            failures: Counter, "quire:detokenizer_failures", "Requests that failed";
            dropped_gateways: Counter, "quire:detokenizer_dropped_gateways",
                "Gateways disconnected because they did not read";
            sequences: Gauge, "quire:detokenizer_sequences", "Live sequences";
            gateways: Gauge, "quire:detokenizer_gateways", "Connected gateways";
            batch_seconds: Histogram = batches(), "quire:detokenizer_batch_seconds", "Time to handle a step";
        }
    }
}

fn batches() -> Histogram {
    Histogram::new(exponential_buckets(5e-6, 2.0, 18))
}

impl DetokenizerMetrics {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        metrics.register(|registry| Self::register(registry, &[]))
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
