//! Flags of the gateway, and the settings that they become once checked.

use std::{env, net::IpAddr, path::PathBuf, time::Duration};

use clap::Args as ClapArgs;
use serde_json::{Map, Value};
use service_kit::{Address, CommonArgs};

use crate::{defaults::Defaults, error::ConfigError};

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
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub threads: usize,
}

/// Where the other processes are.
#[derive(ClapArgs, Clone, Debug)]
pub struct PeerArgs {
    /// The tokenizer's `requests` link
    #[arg(long = "tokenizer", value_name = "ADDRESS")]
    pub requests: Address,
    /// The detokenizer's `events` link
    #[arg(long = "detokenizer", value_name = "ADDRESS")]
    pub events: Address,
    /// Fingerprint of the model folder; processes with another one are refused
    #[arg(long, default_value = "", hide_default_value = true)]
    pub model_fingerprint: String,
    /// The tokenizer's control plane (model facts, /tokenize, /detokenize)
    #[arg(long, value_name = "ADDRESS")]
    pub tokenizer_control: Option<Address>,
    /// The scheduler's control plane
    #[arg(long, value_name = "ADDRESS")]
    pub scheduler_control: Option<Address>,
    /// The detokenizer's control plane
    #[arg(long, value_name = "ADDRESS")]
    pub detokenizer_control: Option<Address>,
    /// Control plane of a worker; once per rank
    #[arg(long, value_name = "ADDRESS")]
    pub worker_control: Vec<Address>,
    /// Control plane of another gateway of the same engine, whose metrics are added to ours; once per gateway
    #[arg(long, value_name = "ADDRESS")]
    pub gateway_control: Vec<Address>,
}

/// Where and how to listen.
#[derive(ClapArgs, Clone, Debug)]
pub struct ListenArgs {
    /// Address to listen at
    #[arg(long, default_value = "0.0.0.0")]
    pub host: String,
    /// Port to listen at
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Listen on this Unix socket instead
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
    /// Certificates that sign clients, PEM
    #[arg(long, value_name = "FILE")]
    pub ssl_ca_certs: Option<PathBuf>,
    /// Whether clients need a certificate: 0 no, 1 if they have one, 2 yes
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=2))]
    pub ssl_cert_reqs: u8,
    /// Connections open at the same time
    #[arg(long, value_name = "N", default_value_t = 65_536)]
    pub max_connections: usize,
    /// Seconds that an idle connection, or a request's head, may take
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, env = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE")]
    pub http_keep_alive: f64,
    /// Seconds that a request's body may take to arrive
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    pub body_timeout: f64,
    /// Seconds that running requests get to finish at shutdown
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0)]
    pub shutdown_timeout: f64,
}

/// What clients may do.
#[derive(ClapArgs, Clone, Debug)]
pub struct AccessArgs {
    /// Keys that clients may present; none means that no key is asked for
    #[arg(long, value_name = "KEY", num_args = 1..)]
    pub api_key: Vec<String>,
    /// Origins that browsers may call from, a JSON list
    #[arg(long, value_name = "JSON", default_value = "[]")]
    pub allowed_origins: String,
    /// Methods that those may use, a JSON list
    #[arg(long, value_name = "JSON", default_value = "[\"*\"]")]
    pub allowed_methods: String,
    /// Headers that those may send, a JSON list
    #[arg(long, value_name = "JSON", default_value = "[\"*\"]")]
    pub allowed_headers: String,
    /// Let browsers send credentials
    #[arg(long)]
    pub allow_credentials: bool,
    /// Path prefix that a proxy in front adds
    #[arg(long, value_name = "PATH", default_value = "")]
    pub root_path: String,
    /// Requests in flight at the same time; more are refused with a 503
    #[arg(long, value_name = "N", default_value_t = 16_384)]
    pub max_inflight: usize,
    /// Largest request body, bytes
    #[arg(long, value_name = "BYTES", default_value_t = 32 << 20)]
    pub max_body_bytes: usize,
    /// Most log-probabilities a request may ask for; -1: any number
    #[arg(long, value_name = "N", default_value_t = 20, allow_negative_numbers = true)]
    pub max_logprobs: i32,
    /// Let requests bring their own chat template
    #[arg(long)]
    pub trust_request_chat_template: bool,
}

/// What answers look like, and what is logged of them.
#[derive(ClapArgs, Clone, Debug)]
pub struct AnswerArgs {
    /// The model that is served, as the user named it
    #[arg(long, value_name = "NAME", default_value = "")]
    pub model: String,
    /// Names that clients may use for the model; the first is echoed
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub served_model_name: Vec<String>,
    /// Where sampling defaults come from: "auto" (the model's generation_config.json) or "vllm" (none)
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub generation_config: String,
    /// Sampling defaults that replace the model's, a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub override_generation_config: String,
    /// Template variables that requests may override, a JSON object
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub default_chat_template_kwargs: String,
    /// Role of generated messages
    #[arg(long, value_name = "ROLE", default_value = "assistant")]
    pub response_role: String,
    /// Leave `tools` out of the prompt when `tool_choice` is "none"
    #[arg(long)]
    pub exclude_tools_when_tool_choice_none: bool,
    /// Show tokens as `token_id:N` in log-probabilities
    #[arg(long)]
    pub return_tokens_as_token_ids: bool,
    /// Report cached prompt tokens in `usage`
    #[arg(long)]
    pub enable_prompt_tokens_details: bool,
    /// Send usage in every stream
    #[arg(long)]
    pub enable_force_include_usage: bool,
    /// Answer with an X-Request-Id header
    #[arg(long)]
    pub enable_request_id_headers: bool,
    /// Count requests for /load
    #[arg(long)]
    pub enable_server_load_tracking: bool,
    /// Tokens per streamed event, unless the request says otherwise
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub stream_interval: u32,
    /// Seconds between keep-alive comments in a silent stream; 0: none
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    pub sse_keep_alive_interval: f64,
    /// Log requests
    #[arg(long)]
    pub enable_log_requests: bool,
    /// Log answers
    #[arg(long)]
    pub enable_log_outputs: bool,
    /// Characters of a prompt or answer to log; absent: all
    #[arg(long, value_name = "N")]
    pub max_log_len: Option<usize>,
    /// Log no line per HTTP request
    #[arg(long)]
    pub disable_uvicorn_access_log: bool,
}

/// The gateway's settings, checked.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where the other processes are.
    pub peers: PeerArgs,
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
        let use_model_defaults = match answers.generation_config.as_str() {
            "auto" => true,
            "vllm" => false,
            other => return Err(flag("--generation-config", format!("`{other}` is neither `auto` nor `vllm`"))),
        };
        check_seconds(&args.listen, &answers)?;
        check_listen(&args.listen)?;
        Ok(Self {
            peers: args.peers.clone(),
            listen: args.listen.clone(),
            served_names: served_names(&answers),
            cors,
            overrides: Defaults::from_json(&overrides)
                .map_err(|problem| flag("--override-generation-config", problem))?,
            use_model_defaults,
            template_kwargs: parse("--default-chat-template-kwargs", &answers.default_chat_template_kwargs)?,
            access,
            answers,
        })
    }

    /// The name that answers carry.
    pub fn model_name(&self) -> &str {
        &self.served_names[0]
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

fn check_seconds(listen: &ListenArgs, answers: &AnswerArgs) -> Result<(), ConfigError> {
    let all = [
        ("--http-keep-alive", listen.http_keep_alive, 0.001),
        ("--body-timeout", listen.body_timeout, 0.001),
        ("--shutdown-timeout", listen.shutdown_timeout, 0.0),
        ("--sse-keep-alive-interval", answers.sse_keep_alive_interval, 0.0),
    ];
    for (name, seconds, least) in all {
        if !(least..=1e9).contains(&seconds) {
            return Err(flag(name, format!("{seconds} is not a number of seconds from {least} on")));
        }
    }
    Ok(())
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

fn parse<T: serde::de::DeserializeOwned>(name: &'static str, text: &str) -> Result<T, ConfigError> {
    serde_json::from_str(text).map_err(|error| flag(name, error.to_string()))
}

fn flag(name: &'static str, problem: String) -> ConfigError {
    ConfigError::Flag { name, problem }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn config(extra: &[&str]) -> Result<Config, ConfigError> {
        let base = ["api-gateway", "--tokenizer=ring:/t", "--detokenizer=ring:/d"];
        let cli = Cli::try_parse_from(base.iter().chain(extra)).expect("flags parse");
        Config::from_args(&cli.args)
    }

    #[test]
    fn names_fall_back_to_the_model() {
        assert_eq!(config(&["--model=wren"]).unwrap().served_names, ["wren"]);
        assert_eq!(config(&["--model=wren", "--served-model-name", "a", "b"]).unwrap().served_names, ["a", "b"]);
    }

    #[test]
    fn impossible_flags_are_named() {
        let rows: [(&[&str], &str); 5] = [
            (&["--allowed-origins=*"], "--allowed-origins"),
            (&["--override-generation-config=[]"], "--override-generation-config"),
            (&["--override-generation-config={\"temperature\":\"hot\"}"], "--override-generation-config"),
            (&["--generation-config=/tmp"], "--generation-config"),
            (&["--body-timeout=0"], "--body-timeout"),
        ];
        for (flags, name) in rows {
            let error = config(flags).expect_err(name).to_string();
            assert!(error.contains(name), "{error}");
        }
    }

    #[test]
    fn root_paths_are_normal() {
        assert_eq!(config(&["--root-path=/llm/"]).unwrap().access.root_path, "/llm");
        assert_eq!(config(&["--root-path=/"]).unwrap().access.root_path, "");
    }
}
