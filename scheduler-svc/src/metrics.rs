//! The engine's metrics, under vLLM's names; what belongs to single requests is the gateway's to count.

use std::{collections::BTreeSet, sync::atomic::AtomicU64, time::Duration};

use prometheus_client::metrics::{
    counter::Counter,
    family::Family,
    gauge::Gauge,
    histogram::{Histogram, exponential_buckets},
};
use proto::{StepPlan, StepResult};
use sched_core::{AdapterUse, Config, FinishedChoice, QueueBound, Refusal, Stats};
use service_kit::metrics::{Metrics, raise};

use crate::{adapters::name_of, group::Formed};

type FloatGauge = Gauge<f64, AtomicU64>;

/// Seconds, for all request-phase histograms (vLLM's buckets).
const PHASES: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const ITERATION_TOKENS: [f64; 13] =
    [1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0];
const PREEMPTIONS: [f64; 7] = [1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0];

service_kit::labels! {
    struct Reason {
        reason: &'static str,
    }

    struct SleepState {
        sleep_state: &'static str,
    }

    struct CacheConfig {
        block_size: u32,
        num_gpu_blocks: u32,
        enable_prefix_caching: String,
        max_model_len: u32,
        /// Why there is no prefix cache; empty when there is one.
        prefix_cache_off: &'static str,
    }

    struct LoraRequests {
        max_lora: String,
        waiting_lora_adapters: String,
        running_lora_adapters: String,
    }

    struct CacheGroup {
        group: u32,
        layers: u32,
        /// Tokens that the group keeps; 0: all.
        window: u32,
    }
}

service_kit::metrics! {
    /// The engine's metrics. `admission_rejections` has the labels of the gateway's metric of that name.
    pub(crate) struct EngineMetrics {
        by ["model_name"] {
            admission_rejections: Family<Reason, Counter>, "vllm:admission_rejections", "Requests refused at admission";
        }
        by ["model_name", "engine"] {
            running: Gauge, "vllm:num_requests_running", "Requests in execution";
            waiting: Gauge, "vllm:num_requests_waiting", "Requests that wait to be run";
            waiting_by_reason: Family<Reason, Gauge>, "vllm:num_requests_waiting_by_reason",
                "Waiting requests by reason";
            sleep_state: Family<SleepState, Gauge>, "vllm:engine_sleep_state",
                "Whether the engine is awake, as it always is: 1 or 0";
            kv_usage: FloatGauge, "vllm:kv_cache_usage_perc", "KV cache in use, 1 is all of it";
            cache_config: Family<CacheConfig, Gauge>, "vllm:cache_config_info", "The KV cache's settings";
            cache_groups: Family<CacheGroup, Gauge>, "quire:kv_bytes_per_token",
                "Bytes of a token in a cache group, on each rank";
            state_bytes: Gauge, "quire:state_bytes_per_sequence",
                "Bytes of recurrent state of a sequence, on each rank";
            prefix_queries: Counter, "vllm:prefix_cache_queries", "Tokens looked up in the prefix cache";
            prefix_hits: Counter, "vllm:prefix_cache_hits", "Tokens found in the prefix cache";
            preemptions: Counter, "vllm:num_preemptions", "Preemptions";
            forced_tokens: Counter, "quire:jump_forward_tokens",
                "Tokens of structured output that a grammar forced, and that were not sampled one by one";
            iteration_tokens: Histogram = Histogram::new(ITERATION_TOKENS), "vllm:iteration_tokens_total",
                "Tokens of a step";
            queue_seconds: Histogram = phase(), "vllm:request_queue_time_seconds", "Time in the waiting queue";
            inference_seconds: Histogram = phase(), "vllm:request_inference_time_seconds",
                "Time from first step to last token";
            prefill_seconds: Histogram = phase(), "vllm:request_prefill_time_seconds",
                "Time from first step to first token";
            decode_seconds: Histogram = phase(), "vllm:request_decode_time_seconds", "Time from first to last token";
            request_preemptions: Histogram = Histogram::new(PREEMPTIONS), "vllm:request_num_preemptions",
                "Preemptions of a request";
            used_blocks: Gauge, "quire:kv_blocks_used", "KV blocks that running sequences hold";
            shared_blocks: Gauge, "quire:kv_blocks_shared",
                "KV blocks that shared ones save: holders of a block beyond its first";
            cached_blocks: Gauge, "quire:kv_blocks_cached", "KV blocks that only the prefix cache holds";
            total_blocks: Gauge, "quire:kv_blocks", "KV blocks in all";
            lost_blocks: Gauge, "quire:kv_blocks_lost", "KV blocks without an owner; anything but 0 is a bug";
            hosted_adapters: Gauge, "quire:lora_adapters_loaded", "Adapters in the memory of the host";
            lora_requests: Family<LoraRequests, FloatGauge>, "vllm:lora_requests_info",
                "Adapters of running and waiting requests, at the time of the value";
            plan_seconds: Histogram = step(), "quire:plan_seconds", "Time to plan a step";
            step_seconds: Histogram = step(), "quire:step_seconds", "Time the workers computed a step";
        }
    }
}

fn phase() -> Histogram {
    Histogram::new(PHASES)
}

fn step() -> Histogram {
    Histogram::new(exponential_buckets(1e-6, 2.0, 24))
}

impl EngineMetrics {
    /// Registers all metrics with vLLM's labels.
    pub(crate) fn new(metrics: &Metrics, model_name: &str, rank: u32) -> Self {
        let labels = [("model_name", model_name), ("engine", &rank.to_string())];
        metrics.register(|registry| Self::register(registry, &labels))
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
        for (sleep_state, holds) in [("awake", 1), ("weights_offloaded", 0), ("discard_all", 0)] {
            self.sleep_state.get_or_create(&SleepState { sleep_state }).set(holds);
        }
        self.kv_usage.set(stats.kv_cache_usage());
        self.used_blocks.set(stats.used_blocks.into());
        self.shared_blocks.set(stats.shared_blocks as i64);
        self.cached_blocks.set(stats.cached_blocks.into());
        self.total_blocks.set(stats.num_blocks.into());
        raise(&self.prefix_queries, stats.totals.prefix_cache_queries);
        raise(&self.prefix_hits, stats.totals.prefix_cache_hits);
        raise(&self.preemptions, stats.totals.preemptions);
        raise(&self.forced_tokens, stats.totals.forced_tokens);
    }

    /// Adapters that the workers have on the host.
    pub(crate) fn hosted_adapters(&self, count: usize) {
        self.hosted_adapters.set(count as i64);
    }

    /// Adapters of live requests; `now`: Unix time, seconds.
    pub(crate) fn lora_requests(&self, max_loras: u32, adapters: &AdapterUse<'_>, now: f64) {
        let names = |identities: &BTreeSet<&str>| {
            identities.iter().map(|identity| name_of(identity)).collect::<Vec<_>>().join(",")
        };
        self.lora_requests.clear();
        let labels = LoraRequests {
            max_lora: max_loras.to_string(),
            waiting_lora_adapters: names(&adapters.waiting),
            running_lora_adapters: names(&adapters.running),
        };
        self.lora_requests.get_or_create(&labels).set(now);
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
