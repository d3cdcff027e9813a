//! The worker's own metrics; the request-level ones are the scheduler's and the gateway's.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use proto::{StepResult, WorkerReady};
use service_kit::metrics::Metrics;

/// A worker's metrics.
pub(crate) struct WorkerMetrics {
    steps: Counter,
    compute_seconds: Counter<f64, AtomicU64>,
    weight_bytes: Gauge,
    kv_bytes: Gauge,
}

impl WorkerMetrics {
    /// Registers them under the worker's rank.
    pub(crate) fn new(metrics: &Metrics, rank: u32) -> Self {
        let all = Self {
            steps: Counter::default(),
            compute_seconds: Counter::default(),
            weight_bytes: Gauge::default(),
            kv_bytes: Gauge::default(),
        };
        metrics.register(|registry| {
            let r = registry.sub_registry_with_label(("rank".into(), rank.to_string().into()));
            r.register("quire:worker_steps", "Steps executed", all.steps.clone());
            r.register("quire:worker_compute_seconds", "Time spent in steps", all.compute_seconds.clone());
            r.register("quire:worker_weight_bytes", "Weights in memory", all.weight_bytes.clone());
            r.register("quire:worker_kv_bytes", "Memory for keys, values and recurrent states", all.kv_bytes.clone());
        });
        all
    }

    /// The model is loaded.
    pub(crate) fn ready(&self, ready: &WorkerReady) {
        self.weight_bytes.set(ready.weight_bytes as i64);
        self.kv_bytes.set(ready.cache_bytes as i64);
    }

    /// A step is done.
    pub(crate) fn step(&self, result: &StepResult) {
        self.steps.inc();
        self.compute_seconds.inc_by(f64::from(result.compute_us) * 1e-6);
    }
}
