//! The engine's metrics, under vLLM's names; what belongs to single requests is the gateway's to count.

use std::{sync::atomic::AtomicU64, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};
use proto::{StepPlan, StepResult};
use sched_core::{Config, FinishedChoice, QueueBound, Refusal, Stats};
use service_kit::metrics::Metrics;

use crate::group::Formed;

type FloatGauge = Gauge<f64, AtomicU64>;

/// Seconds, for all request-phase histograms (vLLM's buckets).
const PHASES: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const ITERATION_TOKENS: [f64; 13] =
    [1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const PREEMPTIONS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct CacheConfig {
    block_size: u32,
    num_gpu_blocks: u32,
    enable_prefix_caching: String,
    max_model_len: u32,
    /// Why there is no prefix cache; empty when there is one.
    prefix_cache_off: &'static str,
}

#[derive(Clone, Hash, PartialEq, Eq, Debug, EncodeLabelSet)]
struct CacheGroup {
    group: u32,
    layers: u32,
    /// Tokens that the group keeps; 0: all.
    window: u32,
}

/// All of them, ready to be set.
pub(crate) struct EngineMetrics {
    running: Gauge,
    waiting: Gauge,
    waiting_by_reason: Family<Reason, Gauge>,
    kv_usage: FloatGauge,
    cache_config: Family<CacheConfig, Gauge>,
    cache_groups: Family<CacheGroup, Gauge>,
    state_bytes: Gauge,
    prefix_queries: Counter,
    prefix_hits: Counter,
    preemptions: Counter,
    admission_rejections: Family<Reason, Counter>,
    iteration_tokens: Histogram,
    queue_seconds: Histogram,
    inference_seconds: Histogram,
    prefill_seconds: Histogram,
    decode_seconds: Histogram,
    request_preemptions: Histogram,
    used_blocks: Gauge,
    shared_blocks: Gauge,
    cached_blocks: Gauge,
    total_blocks: Gauge,
    lost_blocks: Gauge,
    plan_seconds: Histogram,
    step_seconds: Histogram,
}

impl EngineMetrics {
    /// Registers all metrics with vLLM's labels.
    pub(crate) fn new(metrics: &Metrics, model_name: &str) -> Self {
        let seconds = || Histogram::new(PHASES);
        let fast = || Histogram::new(exponential_buckets(1e-6, 2.0, 24));
        let all = Self {
            running: Gauge::default(),
            waiting: Gauge::default(),
            waiting_by_reason: Family::default(),
            kv_usage: Gauge::default(),
            cache_config: Family::default(),
            cache_groups: Family::default(),
            state_bytes: Gauge::default(),
            prefix_queries: Counter::default(),
            prefix_hits: Counter::default(),
            preemptions: Counter::default(),
            admission_rejections: Family::default(),
            iteration_tokens: Histogram::new(ITERATION_TOKENS),
            queue_seconds: seconds(),
            inference_seconds: seconds(),
            prefill_seconds: seconds(),
            decode_seconds: seconds(),
            request_preemptions: Histogram::new(PREEMPTIONS),
            used_blocks: Gauge::default(),
            shared_blocks: Gauge::default(),
            cached_blocks: Gauge::default(),
            total_blocks: Gauge::default(),
            lost_blocks: Gauge::default(),
            plan_seconds: fast(),
            step_seconds: fast(),
        };
        metrics.register(|registry| {
            let labels = [("model_name", model_name), ("engine", "0")];
            let labels = labels.map(|(name, value)| (name.into(), value.to_owned().into()));
            // As the gateway has it: refusals are of a model, not of an engine.
            let refusals = registry.sub_registry_with_labels(labels[..1].iter().cloned());
            let help = "Requests refused at admission";
            refusals.register("vllm:admission_rejections", help, all.admission_rejections.clone());
            all.register(registry.sub_registry_with_labels(labels.into_iter()));
        });
        all
    }

    fn register(&self, r: &mut Registry) {
        r.register("vllm:num_requests_running", "Requests in execution", self.running.clone());
        r.register("vllm:num_requests_waiting", "Requests that wait to be run", self.waiting.clone());
        r.register(
            "vllm:num_requests_waiting_by_reason",
            "Requests that wait, by reason",
            self.waiting_by_reason.clone(),
        );
        r.register("vllm:kv_cache_usage_perc", "KV cache in use, 1 is all of it", self.kv_usage.clone());
        r.register("vllm:cache_config_info", "The KV cache's settings", self.cache_config.clone());
        r.register(
            "quire:kv_bytes_per_token",
            "Bytes of a kept token, by group of layers, on each rank",
            self.cache_groups.clone(),
        );
        r.register(
            "quire:state_bytes_per_sequence",
            "Bytes of recurrent state of a sequence, on each rank",
            self.state_bytes.clone(),
        );
        r.register("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache", self.prefix_queries.clone());
        r.register("vllm:prefix_cache_hits", "Tokens found in the prefix cache", self.prefix_hits.clone());
        r.register("vllm:num_preemptions", "Preemptions", self.preemptions.clone());
        r.register("vllm:iteration_tokens_total", "Tokens of a step", self.iteration_tokens.clone());
        r.register("vllm:request_queue_time_seconds", "Time in the waiting queue", self.queue_seconds.clone());
        r.register(
            "vllm:request_inference_time_seconds",
            "Time from first step to last token",
            self.inference_seconds.clone(),
        );
        r.register(
            "vllm:request_prefill_time_seconds",
            "Time from first step to first token",
            self.prefill_seconds.clone(),
        );
        r.register("vllm:request_decode_time_seconds", "Time from first to last token", self.decode_seconds.clone());
        r.register("vllm:request_num_preemptions", "Preemptions of a request", self.request_preemptions.clone());
        r.register("quire:kv_blocks_used", "KV blocks that running sequences hold", self.used_blocks.clone());
        r.register(
            "quire:kv_blocks_shared",
            "KV blocks that parallel samples, beams and equal prompts save: holders of a block beyond its first",
            self.shared_blocks.clone(),
        );
        r.register("quire:kv_blocks_cached", "KV blocks that only the prefix cache holds", self.cached_blocks.clone());
        r.register("quire:kv_blocks", "KV blocks in all", self.total_blocks.clone());
        r.register(
            "quire:kv_blocks_lost",
            "KV blocks nobody accounts for; anything but 0 is a bug",
            self.lost_blocks.clone(),
        );
        r.register("quire:plan_seconds", "Time to plan a step", self.plan_seconds.clone());
        r.register("quire:step_seconds", "Time the workers computed a step", self.step_seconds.clone());
    }

    /// Gauges and counters of the core, as they are now.
    pub(crate) fn state(&self, stats: &Stats, lost_blocks: u64) {
        self.lost_blocks.set(lost_blocks as i64);
        let waiting = stats.waiting_for_capacity + stats.waiting_deferred;
        self.running.set(stats.running.into());
        self.waiting.set(waiting.into());
        for (reason, count) in [("capacity", stats.waiting_for_capacity), ("deferred", stats.waiting_deferred)] {
            self.waiting_by_reason.get_or_create(&Reason { reason }).set(count.into());
        }
        self.kv_usage.set(stats.kv_cache_usage());
        self.used_blocks.set(stats.used_blocks.into());
        self.shared_blocks.set(stats.shared_blocks as i64);
        self.cached_blocks.set(stats.cached_blocks.into());
        self.total_blocks.set(stats.num_blocks.into());
        raise(&self.prefix_queries, stats.totals.prefix_cache_queries);
        raise(&self.prefix_hits, stats.totals.prefix_cache_hits);
        raise(&self.preemptions, stats.totals.preemptions);
    }

    /// A plan was made.
    pub(crate) fn plan(&self, plan: &StepPlan, took: Duration) {
        if plan.slot.is_empty() {
            return; // It only lets the workers drop what ended.
        }
        self.iteration_tokens.observe(plan.num_tokens.iter().map(|tokens| f64::from(*tokens)).sum());
        self.plan_seconds.observe(took.as_secs_f64());
    }

    /// A step came back.
    pub(crate) fn step(&self, result: &StepResult) {
        self.step_seconds.observe(f64::from(result.compute_us) * 1e-6);
    }

    /// A choice ended.
    pub(crate) fn finished(&self, choice: &FinishedChoice) {
        let seconds = |us: u64| us as f64 * 1e-6;
        self.queue_seconds.observe(seconds(choice.queue_us));
        self.inference_seconds.observe(seconds(choice.inference_us));
        self.prefill_seconds.observe(seconds(choice.prefill_us));
        self.decode_seconds.observe(seconds(choice.decode_us));
        self.request_preemptions.observe(choice.preemptions.into());
    }

    /// A request was refused.
    pub(crate) fn refused(&self, refusal: &Refusal) {
        if let Refusal::Overloaded { bound, .. } = refusal {
            let reason = match bound {
                QueueBound::Requests => "max_num_queued_reqs",
                QueueBound::Tokens => "max_num_queued_tokens",
            };
            self.admission_rejections.get_or_create(&Reason { reason }).inc();
        }
    }

    /// A group formed with this cache.
    pub(crate) fn cache_config(&self, config: &Config, formed: &Formed, prefix_cache_off: Option<&'static str>) {
        self.cache_groups.clear();
        for (number, group) in formed.ready.cache_groups.iter().enumerate() {
            let labels = CacheGroup { group: number as u32, layers: group.layers, window: group.window };
            self.cache_groups.get_or_create(&labels).set(group.bytes_per_token as i64);
        }
        self.state_bytes.set(formed.ready.state_bytes as i64);
        self.cache_config.clear();
        let labels = CacheConfig {
            block_size: config.block_size,
            num_gpu_blocks: formed.num_blocks,
            enable_prefix_caching: if config.enable_prefix_caching { "True" } else { "False" }.into(),
            max_model_len: config.max_model_len,
            prefix_cache_off: prefix_cache_off.unwrap_or_default(),
        };
        self.cache_config.get_or_create(&labels).set(1);
    }
}

/// Brings a counter up to a total that only grows.
fn raise(counter: &Counter, total: u64) {
    counter.inc_by(total.saturating_sub(counter.get()));
}
