//! Flags of the gateway, and the settings that they become once checked.

use std::{env, net::IpAddr, path::PathBuf, time::Duration};

use clap::{Args as ClapArgs, ValueEnum, builder::FalseyValueParser};
use serde_json::{Map, Value};
use service_kit::{
    Address, CommonArgs, FingerprintArgs, GatewayPorts, ReplicaArgs,
    values::{count, duration, seconds, size},
};

use crate::{
    defaults::Defaults, error::ConfigError, openai::formats::Formats, profile::settings, responses::store::Bounds,
};

/// Flags of the gateway. Names and defaults are vLLM's where vLLM has the flag.
#[derive(ClapArgs, Clone, Debug)]
pub struct Args {
    /// Flags that every process has
    #[command(flatten)]
    pub common: CommonArgs,
    /// Where the other processes are
    #[command(flatten)]
    pub peers: PeerArgs,
    /// Where and how to listen
    #[command(flatten)]
    pub listen: ListenArgs,
    /// What clients may do
    #[command(flatten)]
    pub access: AccessArgs,
    /// What answers look like
    #[command(flatten)]
    pub answers: AnswerArgs,
    /// Threads that serve connections
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = count(1..=1024_usize))]
    pub threads: usize,
}

/// Flags that `--engine` stands for, and that of gateways beside this one.
const PROCESSES: [&str; 7] = [
    "requests",
    "events",
    "tokenizer_control",
    "scheduler_control",
    "detokenizer_control",
    "worker_control",
    "gateway_control",
];

/// Where the other processes are.
#[derive(ClapArgs, Clone, Debug)]
pub struct PeerArgs {
    /// An engine on another host, by the address of its `quire serve --listen-gateways`: stands for the addresses of
    /// the processes. /metrics shows this gateway alone, because the engine shows its own
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = PROCESSES)]
    pub engine: Option<GatewayPorts>,
    /// Number of engines there, as its own --data-parallel-size [default: 1]
    #[arg(long, value_name = "N", value_parser = count(1..=1024_u32))]
    pub data_parallel_size: Option<u32>,
    /// The tokenizer's `requests` link
    #[arg(long = "tokenizer", value_name = "ADDRESS")]
    pub requests: Option<Address>,
    /// The detokenizer's `events` link
    #[arg(long = "detokenizer", value_name = "ADDRESS")]
    pub events: Option<Address>,
    /// The model that all processes serve.
    #[command(flatten)]
    pub fingerprint: FingerprintArgs,
    /// The tokenizer's control plane (model facts, /tokenize, /detokenize)
    #[arg(long, value_name = "ADDRESS")]
    pub tokenizer_control: Option<Address>,
    /// Control plane of a scheduler; once per engine, by data-parallel rank
    #[arg(long, value_name = "ADDRESS")]
    pub scheduler_control: Vec<Address>,
    /// The detokenizer's control plane
    #[arg(long, value_name = "ADDRESS")]
    pub detokenizer_control: Option<Address>,
    /// Control plane of a worker; once per rank, those of an engine after those of the one before
    #[arg(long, value_name = "ADDRESS")]
    pub worker_control: Vec<Address>,
    /// The engine's place among engines.
    #[command(flatten)]
    pub replica: ReplicaArgs,
    /// Control plane of another gateway of the same engine, whose metrics are added to ours; once per gateway
    #[arg(long, value_name = "ADDRESS")]
    pub gateway_control: Vec<Address>,
}

impl PeerArgs {
    /// With the addresses that `--engine` stands for; those of the `requests` and the `events` link are there.
    fn resolved(mut self) -> Result<(Self, [Address; 2]), ConfigError> {
        if let Some(engine) = &self.engine {
            self.requests = Some(engine.requests());
            self.events = Some(engine.events());
            self.tokenizer_control = Some(engine.tokenizer_control());
            let engines = 0..self.data_parallel_size.unwrap_or(1);
            self.scheduler_control = engines.map(|number| engine.scheduler_control(number)).collect();
        } else if self.data_parallel_size.is_some() {
            // Clap forgives a flag for lacking one that others exclude.
            return Err(flag("--data-parallel-size", "is about an --engine, and there is none".into()));
        }
        match (self.requests.clone(), self.events.clone()) {
            (Some(requests), Some(events)) => Ok((self, [requests, events])),
            _ => Err(flag("--engine", "is missing; give it, or both --tokenizer and --detokenizer".into())),
        }
    }
}

/// Where and how to listen.
#[derive(ClapArgs, Clone, Debug)]
pub struct ListenArgs {
    /// Address to listen at
    #[arg(long, value_name = "HOST", default_value = "0.0.0.0")]
    pub host: String,
    /// Port to listen at; 0: any free one
    #[arg(long, value_name = "N", default_value_t = 8000, value_parser = count(0..=u16::MAX))]
    pub port: u16,
    /// Listen on this Unix socket instead of a port
    #[arg(long, value_name = "PATH")]
    pub uds: Option<PathBuf>,
    /// Share the port with the other gateways of this engine (SO_REUSEPORT)
    #[arg(long)]
    pub reuse_port: bool,
    /// Private key of the TLS certificate, PEM
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    pub ssl_keyfile: Option<PathBuf>,
    /// TLS certificate chain, PEM
    #[arg(long, value_name = "FILE", requires = "ssl_keyfile")]
    pub ssl_certfile: Option<PathBuf>,
    /// Certificate authorities of client certificates, PEM
    #[arg(long, value_name = "FILE")]
    pub ssl_ca_certs: Option<PathBuf>,
    /// Whether clients need a certificate: 0: no, 1: optional, 2: required
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0..=2_u8))]
    pub ssl_cert_reqs: u8,
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = 65_536, value_parser = count(1..=u32::MAX as usize))]
    pub max_connections: usize,
    /// How long an idle connection is kept, and how long a request's headers may take
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 5.0,
        value_parser = duration,
        env = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
    )]
    pub http_keep_alive: f64,
    /// How long a request's body may take to arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0, value_parser = duration)]
    pub body_timeout: f64,
    /// How long running requests may take to finish at shutdown
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = seconds)]
    pub shutdown_timeout: f64,
}

/// What clients may do.
#[derive(ClapArgs, Clone, Debug)]
pub struct AccessArgs {
    /// API keys that clients may use [default: none is needed] [env: QUIRE_API_KEY or VLLM_API_KEY, for one key]
    #[arg(long, value_name = "KEY", num_args = 1..)]
    pub api_key: Vec<String>,
    /// CORS: allowed origins, a list
    #[arg(long, value_name = "JSON", default_value = "[]", value_parser = json)]
    pub allowed_origins: String,
    /// CORS: allowed methods, a list
    #[arg(long, value_name = "JSON", default_value = "[\"*\"]", value_parser = json)]
    pub allowed_methods: String,
    /// CORS: allowed headers, a list
    #[arg(long, value_name = "JSON", default_value = "[\"*\"]", value_parser = json)]
    pub allowed_headers: String,
    /// CORS: allow credentials
    #[arg(long)]
    pub allow_credentials: bool,
    /// Path prefix that a proxy in front adds
    #[arg(long, value_name = "PATH", default_value = "")]
    pub root_path: String,
    /// Maximum number of requests in flight per gateway; further ones get a 503
    #[arg(long, value_name = "N", default_value_t = 16_384, value_parser = count(1..=u32::MAX as usize))]
    pub max_inflight: usize,
    /// Maximum size of a request body in bytes
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = size(1..=usize::MAX))]
    pub max_body_bytes: usize,
    /// Maximum number of answers of /v1/responses that are kept for previous_response_id and retrieval; the least
    /// recently used one gives way. 0: none is kept, as with several gateways
    #[arg(long, value_name = "N", default_value_t = 1024, value_parser = count(0..=1_000_000_usize))]
    pub max_stored_responses: usize,
    /// Maximum size of all answers that are kept, in bytes
    #[arg(long, value_name = "SIZE", default_value = "64M", value_parser = size(1..=usize::MAX))]
    pub max_stored_response_bytes: usize,
    /// Maximum number of log-probabilities per token that a request may ask for; -1: no maximum
    #[arg(
        long,
        value_name = "N",
        default_value_t = 20,
        allow_negative_numbers = true,
        value_parser = count(-1..=i32::MAX)
    )]
    pub max_logprobs: i32,
    /// Accept chat templates in requests
    #[arg(long)]
    pub trust_request_chat_template: bool,
    /// Record profiles on POST /start_profile, and write them on POST /stop_profile: a folder for the traces, or vLLM's
    /// {"profiler": "torch", "torch_profiler_dir": FOLDER}
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = profiler)]
    pub profiler_config: String,
    /// Serve LoRA adapters beside the model
    #[arg(long)]
    pub enable_lora: bool,
    /// Serve /v1/load_lora_adapter and /v1/unload_lora_adapter, with --enable-lora
    #[arg(
        long,
        env = "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        hide_env_values = true,
        value_parser = FalseyValueParser::new()
    )]
    pub allow_runtime_lora_updating: bool,
    /// Serve what operators ask alone, such as /health, /metrics and /version: gateways elsewhere serve the API
    #[arg(long)]
    pub operations_only: bool,
    /// Serve routes for development: /abort_requests, /reset_prefix_cache, /server_info
    #[arg(long, env = "VLLM_SERVER_DEV_MODE", hide_env_values = true, value_parser = FalseyValueParser::new())]
    pub server_dev_mode: bool,
}

/// What answers look like, and what is logged of them.
#[derive(ClapArgs, Clone, Debug)]
pub struct AnswerArgs {
    /// The model that is served, as the user named it
    #[arg(long, value_name = "NAME", default_value = "")]
    pub model: String,
    /// Names of the model in the API; answers carry the first [default: MODEL]
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub served_model_name: Vec<String>,
    /// Source of sampling defaults; auto: the model's generation_config.json, vllm: none
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub generation_config: GenerationConfig,
    /// Sampling defaults that replace the model's
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = json)]
    pub override_generation_config: String,
    /// Default variables of the chat template; requests may override them
    #[arg(long, value_name = "JSON", default_value = "{}", value_parser = json)]
    pub default_chat_template_kwargs: String,
    /// Role of generated messages
    #[arg(long, value_name = "ROLE", default_value = "assistant")]
    pub response_role: String,
    /// Format in which the model writes tool calls; auto: the one that its chat template shows
    #[arg(long, value_name = "FORMAT", default_value = "auto", value_parser = tool_format)]
    pub tool_call_parser: String,
    /// Format in which the model writes reasoning; auto: the one that its chat template shows [default: none]
    #[arg(long, value_name = "FORMAT", default_value = "", hide_default_value = true, value_parser = reasoning_format)]
    pub reasoning_parser: String,
    /// Leave tools out of the prompt when tool_choice is none
    #[arg(long)]
    pub exclude_tools_when_tool_choice_none: bool,
    /// Show tokens as token_id:N in log-probabilities
    #[arg(long)]
    pub return_tokens_as_token_ids: bool,
    /// Report cached prompt tokens in usage
    #[arg(long)]
    pub enable_prompt_tokens_details: bool,
    /// Report queue time, time to first token and inter-token latency in answers of one choice
    #[arg(long)]
    pub enable_per_request_metrics: bool,
    /// Send usage in every stream
    #[arg(long)]
    pub enable_force_include_usage: bool,
    /// Add an X-Request-Id header to responses
    #[arg(long)]
    pub enable_request_id_headers: bool,
    /// Serve /tokenizer_info: the model's tokenizer_config.json
    #[arg(long)]
    pub enable_tokenizer_info_endpoint: bool,
    /// Tokens per streamed event; requests may override it
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = count(1..=u32::MAX))]
    pub stream_interval: u32,
    /// Time between keep-alive comments in a silent stream; 0: none are sent
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0, value_parser = seconds)]
    pub sse_keep_alive_interval: f64,
    /// Log requests
    #[arg(long)]
    pub enable_log_requests: bool,
    /// Log answers
    #[arg(long)]
    pub enable_log_outputs: bool,
    /// Maximum number of characters of a prompt or answer in the log [default: all]
    #[arg(long, value_name = "N", value_parser = count(0..=u32::MAX as usize))]
    pub max_log_len: Option<usize>,
    /// Do not log HTTP requests
    #[arg(long)]
    pub disable_uvicorn_access_log: bool,
    /// Do not serve /docs and /openapi.json
    #[arg(long)]
    pub disable_fastapi_docs: bool,
}

/// Where sampling defaults come from.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum GenerationConfig {
    /// The model's generation_config.json.
    Auto,
    /// The API's own defaults.
    Vllm,
}

/// The gateway's settings, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the other processes are: with `--engine`, what it stands for, too.
    pub peers: PeerArgs,
    /// The tokenizer's `requests` link.
    pub requests: Address,
    /// The detokenizer's `events` link.
    pub events: Address,
    /// Where and how to listen.
    pub listen: ListenArgs,
    /// What clients may do.
    pub access: AccessArgs,
    /// What answers look like.
    pub answers: AnswerArgs,
    /// Names that clients may use for the model; never empty.
    pub served_names: Vec<String>,
    /// Browsers that may call.
    pub cors: Cors,
    /// Sampling defaults that the user set; the model's are added once known.
    pub overrides: Defaults,
    /// Whether the model's generation_config.json counts.
    pub use_model_defaults: bool,
    /// Template variables that requests may override.
    pub template_kwargs: Map<String, Value>,
    /// Where profiles are written and what they record; absent: there are none.
    pub profiler: Option<settings::Settings>,
    /// How the model writes calls and reasoning, as far as the flags say.
    pub formats: Formats,
}

/// Browsers that may call.
#[derive(Clone, Debug, Default)]
pub struct Cors {
    /// Origins; `*` is any. Empty: no CORS headers at all.
    pub origins: Vec<String>,
    /// Methods; `*` is any.
    pub methods: Vec<String>,
    /// Headers; `*` is any.
    pub headers: Vec<String>,
    /// Whether credentials may come along.
    pub credentials: bool,
}

impl Config {
    /// Checks the flags, and reads API keys from the environment when there is no flag.
    pub fn from_args(args: &Args) -> Result<Self, ConfigError> {
        let mut access = args.access.clone();
        if access.api_key.is_empty() {
            access.api_key = keys_of_environment();
        }
        access.api_key.retain(|key| !key.is_empty());
        access.root_path = normal_root(&access.root_path);
        let answers = args.answers.clone();
        let cors = Cors {
            origins: parse("--allowed-origins", &access.allowed_origins)?,
            methods: parse("--allowed-methods", &access.allowed_methods)?,
            headers: parse("--allowed-headers", &access.allowed_headers)?,
            credentials: access.allow_credentials,
        };
        let overrides: Map<String, Value> = parse("--override-generation-config", &answers.override_generation_config)?;
        check_listen(&args.listen)?;
        let (peers, [requests, events]) = args.peers.clone().resolved()?;
        Ok(Self {
            peers,
            requests,
            events,
            listen: args.listen.clone(),
            served_names: served_names(&answers),
            cors,
            overrides: Defaults::of_flag(&overrides)
                .map_err(|problem| flag("--override-generation-config", problem))?,
            use_model_defaults: answers.generation_config == GenerationConfig::Auto,
            template_kwargs: parse("--default-chat-template-kwargs", &answers.default_chat_template_kwargs)?,
            profiler: settings::parse(&access.profiler_config).map_err(|problem| flag("--profiler-config", problem))?,
            formats: Formats::named(&answers.tool_call_parser, &answers.reasoning_parser)?,
            access,
            answers,
        })
    }

    /// The name that answers carry.
    pub fn model_name(&self) -> &str {
        &self.served_names[0]
    }

    /// How many responses are kept. One of several gateways keeps none: the next request may reach another one.
    pub fn stored_responses(&self) -> Bounds {
        let alone = self.peers.gateway_control.is_empty();
        let count = if alone { self.access.max_stored_responses } else { 0 };
        Bounds { count, bytes: self.access.max_stored_response_bytes }
    }

    /// Keep-alive comments in silent streams.
    pub fn keep_alive(&self) -> Option<Duration> {
        let seconds = self.answers.sse_keep_alive_interval;
        (seconds > 0.0).then(|| Duration::from_secs_f64(seconds))
    }
}

fn keys_of_environment() -> Vec<String> {
    ["QUIRE_API_KEY", "VLLM_API_KEY"].iter().find_map(|name| env::var(name).ok()).into_iter().collect()
}

fn served_names(answers: &AnswerArgs) -> Vec<String> {
    if !answers.served_model_name.is_empty() {
        return answers.served_model_name.clone();
    }
    let name = if answers.model.is_empty() { "default" } else { &answers.model };
    vec![name.to_owned()]
}

/// `""`, `"/"` and `"/x/"` become `""`, `""` and `"/x"`.
fn normal_root(path: &str) -> String {
    let trimmed = path.trim_matches('/');
    if trimmed.is_empty() { String::new() } else { format!("/{trimmed}") }
}

fn check_listen(listen: &ListenArgs) -> Result<(), ConfigError> {
    if listen.ssl_cert_reqs > 0 && listen.ssl_ca_certs.is_none() {
        return Err(flag("--ssl-cert-reqs", "needs --ssl-ca-certs".into()));
    }
    let host = &listen.host;
    if host.parse::<IpAddr>().is_err() && host.chars().any(|c| c.is_whitespace() || c == '/') {
        return Err(flag("--host", format!("`{host}` is neither an address nor a name")));
    }
    Ok(())
}

/// Settings of profiles.
fn profiler(text: &str) -> Result<String, String> {
    settings::parse(text).map(|_| text.to_owned())
}

/// The name of a format of tool calls.
fn tool_format(name: &str) -> Result<String, String> {
    Formats::named(name, "").map(|_| name.to_owned()).map_err(|error| problem(&error))
}

/// The name of a format of reasoning.
fn reasoning_format(name: &str) -> Result<String, String> {
    Formats::named("", name).map(|_| name.to_owned()).map_err(|error| problem(&error))
}

/// What is wrong with a flag, without its name.
fn problem(error: &ConfigError) -> String {
    match error {
        ConfigError::Flag { problem, .. } => problem.clone(),
        other => other.to_string(),
    }
}

/// A text that is JSON; which shape it needs is checked later.
fn json(text: &str) -> Result<String, String> {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("must be JSON: {error}")),
    }
}

fn parse<T: serde::de::DeserializeOwned>(name: &'static str, text: &str) -> Result<T, ConfigError> {
    serde_json::from_str(text).map_err(|error| flag(name, error.to_string()))
}

fn flag(name: &'static str, problem: String) -> ConfigError {
    ConfigError::Flag { name, problem }
}

#[cfg(test)]
mod tests {
    use service_kit::parse_flags;

    use super::*;

    fn config(extra: &[&str]) -> Result<Config, ConfigError> {
        let base = ["api-gateway", "--tokenizer=ring:/t", "--detokenizer=ring:/d"];
        Config::from_args(&parse_flags(base.iter().chain(extra)).expect("flags parse"))
    }

    #[test]
    fn names_fall_back_to_the_model() {
        assert_eq!(config(&["--model=wren"]).unwrap().served_names, ["wren"]);
        assert_eq!(config(&["--model=wren", "--served-model-name", "a", "b"]).unwrap().served_names, ["a", "b"]);
    }

    #[test]
    fn an_engine_stands_for_its_processes() {
        let of = |flags: &[&str]| {
            let args = parse_flags::<Args>(["api-gateway"].iter().chain(flags)).map_err(|error| error.to_string());
            args.and_then(|args| Config::from_args(&args).map_err(|error| error.to_string()))
        };
        let config = of(&["--engine=grpc://a:9001", "--data-parallel-size=2"]).unwrap();
        assert_eq!([config.requests, config.events].map(|it| it.to_string()), ["grpc://a:9001", "grpc://a:9002"]);
        let controls = config.peers.tokenizer_control.iter().chain(&config.peers.scheduler_control);
        let controls: Vec<_> = controls.map(ToString::to_string).collect();
        assert_eq!(controls, ["grpc://a:9003", "grpc://a:9004", "grpc://a:9005"]);
        for (flags, name) in [
            (&[][..], "--tokenizer"),
            (&["--tokenizer=ring:/t"], "--detokenizer"),
            (&["--engine=ring:/a"], "--engine"),
            (&["--engine=grpc://a:9001", "--tokenizer=ring:/a"], "--tokenizer"),
            (&["--engine=grpc://a:9001", "--worker-control=ring:/a"], "--worker-control"),
            (&["--tokenizer=ring:/t", "--detokenizer=ring:/d", "--data-parallel-size=2"], "--engine"),
        ] {
            let error = of(flags).expect_err(name);
            assert!(error.contains(name), "{flags:?}: {error}");
        }
    }

    #[test]
    fn impossible_flags_are_named() {
        let rows: [(&[&str], &str); 3] = [
            (&["--allowed-origins={}"], "--allowed-origins"),
            (&["--override-generation-config=[]"], "--override-generation-config"),
            (&["--override-generation-config={\"temperature\":\"hot\"}"], "--override-generation-config"),
        ];
        for (flags, name) in rows {
            let error = config(flags).expect_err(name).to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn impossible_values_are_refused_by_their_flags() {
        for flag in ["--allowed-origins=*", "--generation-config=/tmp", "--body-timeout=0", "--max-body-bytes=0"] {
            let base = ["api-gateway", "--tokenizer=ring:/t", "--detokenizer=ring:/d", flag];
            let error = parse_flags::<Args>(base).expect_err(flag).to_string();
            assert!(error.contains(flag.split('=').next().unwrap()), "{error}");
        }
    }

    #[test]
    fn root_paths_are_normal() {
        assert_eq!(config(&["--root-path=/llm/"]).unwrap().access.root_path, "/llm");
        assert_eq!(config(&["--root-path=/"]).unwrap().access.root_path, "");
    }
}
