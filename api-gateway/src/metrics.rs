//! What the gateway counts: tokens, latencies and ends of requests, under vLLM's names.

pub mod exposition;
pub mod http_requests;
pub mod parser_calls;

use std::{borrow::Cow, ops::Range, time::Duration};

use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::Registry,
};
use proto::FinishReason;
use service_kit::metrics::Description;

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

service_kit::labels! {
    /// How a choice ended.
    struct Finished {
        finished_reason: &'static str,
    }

    /// Where prompt tokens came from.
    struct Source {
        source: &'static str,
    }

    /// Why a request was refused.
    struct Refused {
        reason: &'static str,
    }
}

service_kit::metrics! {
    struct Table {
        by ["model_name"] {
            refused: Family<Refused, Counter>, "vllm:admission_rejections", "Requests refused at admission";
        }
        by ["model_name", "engine"] {
            prompt_tokens: Counter, "vllm:prompt_tokens", "Prompt tokens processed";
            prompt_tokens_cached: Counter, "vllm:prompt_tokens_cached", "Prompt tokens found in the prefix cache";
            prompt_tokens_by_source: Family<Source, Counter>, "vllm:prompt_tokens_by_source",
                "Prompt tokens that were computed, and those found in the prefix cache";
            prompt_tokens_cached_by_source: Family<Source, Counter>, "vllm:prompt_tokens_cached_by_source",
                "Prompt tokens found in the prefix cache, by where that is";
            generation_tokens: Counter, "vllm:generation_tokens", "Tokens generated";
            finished: Family<Finished, Counter>, "vllm:request_success", "Finished requests by reason";
            in_flight: Gauge, "quire_gateway_requests_in_flight", "Requests in flight";
            ttft: Histogram = of(&TTFT_SECONDS), "vllm:time_to_first_token_seconds", "Time to first token";
            inter_token: Histogram = of(&TOKEN_SECONDS), "vllm:inter_token_latency_seconds", "Time between tokens";
            per_output_token: Histogram = of(&TOKEN_SECONDS), "vllm:request_time_per_output_token_seconds",
                "Mean time per output token of a request";
            e2e: Histogram = of(&REQUEST_SECONDS), "vllm:e2e_request_latency_seconds",
                "Time from arrival to the last token";
            request_prompt_tokens: Histogram = of(&TOKENS), "vllm:request_prompt_tokens", "Prompt tokens of a request";
            prefill_computed: Histogram = of(&TOKENS), "vllm:request_prefill_kv_computed_tokens",
                "Prompt tokens of a request that were computed";
            request_generation_tokens: Histogram = of(&TOKENS), "vllm:request_generation_tokens",
                "Generated tokens of a request";
            max_generation_tokens: Histogram = of(&TOKENS), "vllm:request_max_num_generation_tokens",
                "Generated tokens of a request's longest choice";
            params_max_tokens: Histogram = of(&TOKENS), "vllm:request_params_max_tokens", "max_tokens of a request";
            params_n: Histogram = of(&CHOICES), "vllm:request_params_n", "n of a request";
        }
    }
}

const LOCAL_COMPUTE: Source = Source { source: "local_compute" };
const LOCAL_CACHE_HIT: Source = Source { source: "local_cache_hit" };
/// Always 0, as no cache outside the engine can be attached; panels that add up all sources ask for it.
const EXTERNAL_KV_TRANSFER: Source = Source { source: "external_kv_transfer" };
/// The prefix cache lies in the device's memory alone.
const DEVICE: Source = Source { source: "device" };

fn of(buckets: &[f64]) -> Histogram {
    Histogram::new(buckets.iter().copied())
}

/// Request-level metrics, by engine; cloning shares.
#[derive(Clone)]
pub struct RequestMetrics {
    /// Data-parallel rank of the first engine.
    first: u32,
    engines: Vec<EngineTable>,
}

/// Those of one engine.
#[derive(Clone)]
struct EngineTable(Table);

/// What the gateway knows of the other processes; written when it is asked for.
pub const PROCESS_READY: Description = Description {
    name: Cow::Borrowed("quire:process_ready"),
    kind: "gauge",
    labels: Vec::new(),
    help: "Whether a process (label `process`) was ready when it was asked: 1 or 0",
};

/// All metrics of the gateway, for documents.
pub fn descriptions() -> Vec<Description> {
    [Table::descriptions(), http_requests::descriptions(), parser_calls::descriptions(), vec![PROCESS_READY]].concat()
}

/// A choice that ended, for the histograms.
#[derive(Clone, Copy, Debug, PartialEq)]
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

/// An event of a request, as it is counted.
#[derive(Clone, Debug, PartialEq)]
pub enum Counted {
    /// A prompt was admitted.
    Admitted {
        /// Its tokens.
        prompt_tokens: u32,
        /// Those that the prefix cache had.
        cached_tokens: u32,
    },
    /// A choice grew.
    Grown(Growth),
    /// The request failed.
    Failed,
}

/// What a choice grew by.
#[derive(Clone, Debug, PartialEq)]
pub struct Growth {
    /// Tokens.
    pub tokens: u32,
    /// When they came; absent without tokens.
    pub time: Option<TokenTime>,
    /// Figures of the choice, if it ended; apart, since nearly all go on.
    pub end: Option<Box<GrowthEnd>>,
}

/// A choice that ended with what it grew by.
#[derive(Clone, Debug, PartialEq)]
pub struct GrowthEnd {
    /// How it ended.
    pub choice: ChoiceEnd,
    /// Figures of the request, if this was its last choice.
    pub request: Option<RequestEnd>,
}

/// When tokens came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenTime {
    /// The choice's first ones, this long after the request.
    First(Duration),
    /// This long after the choice's last event.
    Next(Duration),
}

/// Figures of a request whose choices all ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestEnd {
    /// Its choices.
    pub n: u32,
    /// Tokens of the longest one.
    pub longest: u32,
}

/// A request whose client left before its end.
#[derive(Clone, Debug, PartialEq)]
pub struct Abandoned {
    /// The choices that had not finished.
    pub choices: Vec<ChoiceEnd>,
    /// The whole request.
    pub request: RequestEnd,
}

impl RequestMetrics {
    /// Creates them and registers them under `model_name` and the data-parallel ranks of the engines, at least one.
    pub fn register(registry: &mut Registry, model_name: &str, engines: Range<u32>) -> Self {
        let first = engines.start;
        let engines = engines.map(|engine| EngineTable::register(registry, model_name, engine)).collect();
        Self { first, engines }
    }

    /// Those of an engine; what no engine has had counts for the first one.
    fn of(&self, engine: Option<u32>) -> &EngineTable {
        let index = engine.and_then(|engine| engine.checked_sub(self.first)).unwrap_or(0);
        self.engines.get(index as usize).unwrap_or(&self.engines[0])
    }

    /// Counts an event of a request that an engine has, or none yet.
    pub fn count(&self, engine: Option<u32>, counted: &Counted) {
        self.of(engine).count(counted);
    }

    /// Counts a request whose client left.
    pub fn abandoned(&self, engine: Option<u32>, abandoned: &Abandoned) {
        let table = self.of(engine);
        abandoned.choices.iter().for_each(|end| table.choice_ended(end));
        table.request_ended(abandoned.request);
    }

    /// A request was refused because something is full.
    pub fn refused(&self, reason: &'static str) {
        self.engines[0].0.refused.get_or_create(&Refused { reason }).inc();
    }

    /// How many requests are in flight.
    pub fn in_flight(&self, count: usize) {
        self.engines[0].0.in_flight.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

impl EngineTable {
    fn register(registry: &mut Registry, model_name: &str, engine: u32) -> Self {
        let table = Table::register(registry, &[("model_name", model_name), ("engine", &engine.to_string())]);
        // A dashboard's rate() needs to see a counter before its first increment.
        for reason in ["stop", "length", "abort", "error", "repetition"] {
            drop(table.finished.get_or_create(&Finished { finished_reason: reason }));
        }
        for source in [LOCAL_COMPUTE, LOCAL_CACHE_HIT, EXTERNAL_KV_TRANSFER] {
            drop(table.prompt_tokens_by_source.get_or_create(&source));
        }
        drop(table.prompt_tokens_cached_by_source.get_or_create(&DEVICE));
        Self(table)
    }

    fn count(&self, counted: &Counted) {
        match counted {
            Counted::Admitted { prompt_tokens, cached_tokens } => {
                self.0.prompt_tokens.inc_by((*prompt_tokens).into());
                self.0.prompt_tokens_cached.inc_by((*cached_tokens).into());
                let computed = prompt_tokens.saturating_sub(*cached_tokens);
                self.0.prefill_computed.observe(computed.into());
                let by_source = &self.0.prompt_tokens_by_source;
                by_source.get_or_create(&LOCAL_COMPUTE).inc_by(computed.into());
                by_source.get_or_create(&LOCAL_CACHE_HIT).inc_by((*cached_tokens).into());
                self.0.prompt_tokens_cached_by_source.get_or_create(&DEVICE).inc_by((*cached_tokens).into());
            }
            Counted::Grown(growth) => self.grown(growth),
            Counted::Failed => {
                self.0.finished.get_or_create(&Finished { finished_reason: "error" }).inc();
            }
        }
    }

    fn grown(&self, growth: &Growth) {
        match growth.time {
            None => {}
            Some(TokenTime::First(after)) => self.0.ttft.observe(after.as_secs_f64()),
            Some(TokenTime::Next(gap)) => self.next_tokens(growth.tokens, gap),
        }
        if growth.tokens > 0 {
            self.0.generation_tokens.inc_by(growth.tokens.into());
        }
        if let Some(end) = &growth.end {
            self.choice_ended(&end.choice);
            end.request.iter().for_each(|request| self.request_ended(*request));
        }
    }

    /// A choice grew by `tokens` in the time since its last event. Each counts with its share of it: of an answer that
    /// is not streamed all tokens but the first come at once.
    fn next_tokens(&self, tokens: u32, gap: Duration) {
        let share = gap.as_secs_f64() / f64::from(tokens.max(1));
        for _ in 0..tokens {
            self.0.inter_token.observe(share);
        }
    }

    fn choice_ended(&self, end: &ChoiceEnd) {
        let finished_reason = finish_name(end.reason);
        self.0.finished.get_or_create(&Finished { finished_reason }).inc();
        self.0.e2e.observe(end.e2e.as_secs_f64());
        self.0.request_prompt_tokens.observe(end.prompt_tokens.into());
        self.0.request_generation_tokens.observe(end.generated.into());
        if let Some(max_tokens) = end.max_tokens {
            self.0.params_max_tokens.observe(max_tokens.into());
        }
        if end.generated > 1 {
            self.0.per_output_token.observe(end.decode.as_secs_f64() / f64::from(end.generated - 1));
        }
    }

    fn request_ended(&self, RequestEnd { n, longest }: RequestEnd) {
        self.0.params_n.observe(n.into());
        self.0.max_generation_tokens.observe(longest.into());
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
