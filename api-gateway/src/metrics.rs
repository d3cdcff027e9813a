//! What the gateway counts: tokens, latencies and ends of requests, under vLLM's names.

pub mod exposition;
pub mod http_requests;

use std::{sync::atomic::AtomicI64, time::Duration};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use proto::FinishReason;

const TTFT_SECONDS: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const TOKEN_SECONDS: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const REQUEST_SECONDS: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
/// 1-2-5 series. vLLM ends it at the model's length, which the gateway learns only later: this is the longest it knows.
const TOKENS: [f64; 19] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6];
const CHOICES: [f64; 5] = [1.0, 2.0, 5.0, 10.0, 20.0];

/// How a choice ended, as `request_success` counts it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Finished {
    finished_reason: &'static str,
}

/// Why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Refused {
    reason: &'static str,
}

/// Request-level metrics; cloning shares.
#[derive(Clone)]
pub struct RequestMetrics {
    prompt_tokens: Counter,
    prompt_tokens_cached: Counter,
    generation_tokens: Counter,
    finished: Family<Finished, Counter>,
    refused: Family<Refused, Counter>,
    ttft: Histogram,
    inter_token: Histogram,
    per_output_token: Histogram,
    e2e: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    max_generation_tokens: Histogram,
    params_max_tokens: Histogram,
    params_n: Histogram,
    in_flight: Gauge<i64, AtomicI64>,
}

/// A choice that ended, for the histograms.
#[derive(Clone, Copy, Debug)]
pub struct ChoiceEnd {
    /// Why.
    pub reason: FinishReason,
    /// From the arrival of the request.
    pub e2e: Duration,
    /// From the choice's first token to its last.
    pub decode: Duration,
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Tokens generated.
    pub generated: u32,
    /// `max_tokens`, if the request set one.
    pub max_tokens: Option<u32>,
}

impl RequestMetrics {
    /// Creates them and registers them under `model_name` and engine 0.
    pub fn register(registry: &mut Registry, model_name: &str) -> Self {
        let metrics = Self::new();
        let model = ("model_name".into(), model_name.to_owned().into());
        let refusals = registry.sub_registry_with_labels([model.clone()].into_iter());
        refusals.register("vllm:admission_rejections", "Requests refused at admission", metrics.refused.clone());
        let labels = [model, ("engine".into(), "0".into())];
        let registry = registry.sub_registry_with_labels(labels.into_iter());
        metrics.register_counters(registry);
        metrics.register_histograms(registry);
        metrics
    }

    fn new() -> Self {
        let histogram = |buckets: &[f64]| Histogram::new(buckets.iter().copied());
        let metrics = Self {
            prompt_tokens: Counter::default(),
            prompt_tokens_cached: Counter::default(),
            generation_tokens: Counter::default(),
            finished: Family::default(),
            refused: Family::default(),
            ttft: histogram(&TTFT_SECONDS),
            inter_token: histogram(&TOKEN_SECONDS),
            per_output_token: histogram(&TOKEN_SECONDS),
            e2e: histogram(&REQUEST_SECONDS),
            request_prompt_tokens: histogram(&TOKENS),
            request_generation_tokens: histogram(&TOKENS),
            max_generation_tokens: histogram(&TOKENS),
            params_max_tokens: histogram(&TOKENS),
            params_n: histogram(&CHOICES),
            in_flight: Gauge::default(),
        };
        // A dashboard's rate() needs to see a counter before its first increment.
        for reason in ["stop", "length", "abort", "error"] {
            drop(metrics.finished.get_or_create(&Finished { finished_reason: reason }));
        }
        metrics
    }

    fn register_counters(&self, registry: &mut Registry) {
        registry.register("vllm:prompt_tokens", "Prompt tokens processed", self.prompt_tokens.clone());
        let cached = self.prompt_tokens_cached.clone();
        registry.register("vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache", cached);
        registry.register("vllm:generation_tokens", "Tokens generated", self.generation_tokens.clone());
        registry.register("vllm:request_success", "Finished requests by reason", self.finished.clone());
        registry.register("quire_gateway_requests_in_flight", "Requests in flight", self.in_flight.clone());
    }

    fn register_histograms(&self, registry: &mut Registry) {
        let rows = [
            ("vllm:time_to_first_token_seconds", "Time to first token", &self.ttft),
            ("vllm:inter_token_latency_seconds", "Time between tokens", &self.inter_token),
            (
                "vllm:request_time_per_output_token_seconds",
                "Mean time per output token of a request",
                &self.per_output_token,
            ),
            ("vllm:e2e_request_latency_seconds", "Time from arrival to the last token", &self.e2e),
            ("vllm:request_prompt_tokens", "Prompt tokens of a request", &self.request_prompt_tokens),
            ("vllm:request_generation_tokens", "Generated tokens of a request", &self.request_generation_tokens),
            (
                "vllm:request_max_num_generation_tokens",
                "Generated tokens of a request's longest choice",
                &self.max_generation_tokens,
            ),
            ("vllm:request_params_max_tokens", "max_tokens of a request", &self.params_max_tokens),
            ("vllm:request_params_n", "n of a request", &self.params_n),
        ];
        for (name, help, histogram) in rows {
            registry.register(name, help, histogram.clone());
        }
    }

    /// A prompt was admitted.
    pub fn admitted(&self, prompt_tokens: u32, cached_tokens: u32) {
        self.prompt_tokens.inc_by(prompt_tokens.into());
        self.prompt_tokens_cached.inc_by(cached_tokens.into());
    }

    /// A choice grew by `tokens`.
    pub fn generated(&self, tokens: u32) {
        self.generation_tokens.inc_by(tokens.into());
    }

    /// A choice's first token came `after` the request.
    pub fn first_token(&self, after: Duration) {
        self.ttft.observe(after.as_secs_f64());
    }

    /// A choice grew by `tokens` in the time since its last event. Each counts with its share of it: of an answer that
    /// is not streamed all tokens but the first come at once.
    pub fn next_tokens(&self, tokens: u32, gap: Duration) {
        let share = gap.as_secs_f64() / f64::from(tokens.max(1));
        for _ in 0..tokens {
            self.inter_token.observe(share);
        }
    }

    /// A choice ended.
    pub fn choice_ended(&self, end: &ChoiceEnd) {
        let finished_reason = finish_name(end.reason);
        self.finished.get_or_create(&Finished { finished_reason }).inc();
        self.e2e.observe(end.e2e.as_secs_f64());
        self.request_prompt_tokens.observe(end.prompt_tokens.into());
        self.request_generation_tokens.observe(end.generated.into());
        if let Some(max_tokens) = end.max_tokens {
            self.params_max_tokens.observe(max_tokens.into());
        }
        if end.generated > 1 {
            self.per_output_token.observe(end.decode.as_secs_f64() / f64::from(end.generated - 1));
        }
    }

    /// All `n` choices of a request ended; the longest had `longest` tokens.
    pub fn request_ended(&self, n: u32, longest: u32) {
        self.params_n.observe(n.into());
        self.max_generation_tokens.observe(longest.into());
    }

    /// A request failed.
    pub fn failed(&self) {
        self.finished.get_or_create(&Finished { finished_reason: "error" }).inc();
    }

    /// A request was refused because something is full.
    pub fn refused(&self, reason: &'static str) {
        self.refused.get_or_create(&Refused { reason }).inc();
    }

    /// How many requests are in flight.
    pub fn in_flight(&self, count: usize) {
        self.in_flight.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

/// The API's word for a finish reason.
pub fn finish_name(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::Repetition => "repetition",
        FinishReason::Abort | FinishReason::Unspecified => "abort",
    }
}

#[cfg(test)]
impl Default for RequestMetrics {
    fn default() -> Self {
        Self::register(&mut Registry::default(), "test")
    }
}
