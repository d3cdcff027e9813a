//! The worker's own metrics; the request-level ones are the scheduler's and the gateway's.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::{counter::Counter, gauge::Gauge};
use proto::{StepResult, WorkerReady};
use service_kit::metrics::Metrics;

use crate::adapters::HeldAdapters;

service_kit::metrics! {
    /// A worker's metrics.
    pub(crate) struct WorkerMetrics {
        by ["engine", "rank"] {
            steps: Counter, "quire:worker_steps", "Steps executed";
            compute_seconds: Counter<f64, AtomicU64>, "quire:worker_compute_seconds", "Time spent in steps";
            weight_bytes: Gauge, "quire:worker_weight_bytes", "Weights in memory";
            kv_bytes: Gauge, "quire:worker_kv_bytes", "Memory for keys, values and recurrent states";
            adapters: Gauge, "quire:worker_lora_adapters", "Adapters in the memory of the host";
            adapter_bytes: Gauge, "quire:worker_lora_bytes", "What they take there";
        }
    }
}

impl WorkerMetrics {
    /// Registers them under the engine's rank and the worker's in it.
    pub(crate) fn new(metrics: &Metrics, engine: u32, rank: u32) -> Self {
        let labels = [("engine", &*engine.to_string()), ("rank", &rank.to_string())];
        metrics.register(|registry| Self::register(registry, &labels))
    }

    /// The model is loaded.
    pub(crate) fn ready(&self, ready: &WorkerReady) {
        self.weight_bytes.set(ready.weight_bytes as i64);
        self.kv_bytes.set(ready.cache_bytes as i64);
    }

    /// Adapters were read or dropped.
    pub(crate) fn adapters(&self, held: HeldAdapters) {
        self.adapters.set(held.count as i64);
        self.adapter_bytes.set(held.bytes as i64);
    }

    /// A step is done.
    pub(crate) fn step(&self, result: &StepResult) {
        self.steps.inc();
        self.compute_seconds.inc_by(f64::from(result.compute_us) * 1e-6);
    }
}
