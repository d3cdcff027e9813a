//! The detokenizer's metrics.

use std::time::Duration;

use prometheus_client::metrics::{
    counter::Counter,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};
use service_kit::metrics::{Metrics, raise};

use crate::{
    gateways::Gateways,
    streams::{Streams, Totals},
};

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
    pub(crate) fn state<'s>(&self, engines: impl Iterator<Item = &'s Streams> + Clone, gateways: &Gateways) {
        let total = |of: fn(&Totals) -> u64| engines.clone().map(|streams| of(&streams.totals)).sum();
        raise(&self.requests, total(|totals| totals.requests));
        raise(&self.tokens, total(|totals| totals.tokens));
        raise(&self.stop_strings, total(|totals| totals.stop_strings));
        raise(&self.failures, total(|totals| totals.failures));
        raise(&self.dropped_gateways, gateways.dropped);
        self.sequences.set(engines.map(Streams::sequences).sum::<usize>() as i64);
        self.gateways.set(gateways.len() as i64);
    }
}
