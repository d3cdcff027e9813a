//! Flags of `quire bench serve`; names and defaults are those of `vllm bench serve` where it has the flag.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{http::Target, weights::WeightsArgs};

/// Flags of `quire bench`.
#[derive(Args, Clone, Debug)]
pub struct BenchArgs {
    /// What to measure
    #[command(subcommand)]
    pub what: What,
}

/// What to measure.
#[derive(Subcommand, Clone, Debug)]
pub enum What {
    /// A running server, over HTTP
    #[command(after_help = "Example: quire bench serve --num-prompts 200 --max-concurrency 32 --random-input-len 128 \
                            --random-output-len 128 --ignore-eos")]
    Serve(Box<ServeArgs>),
    /// Batches of given lengths, without HTTP (see `quire bench cases --help`)
    #[command(disable_help_flag = true)]
    Cases(Words),
    /// The time of one batch, without HTTP (see `quire bench latency --help`)
    #[command(disable_help_flag = true)]
    Latency(Words),
    /// How well a model predicts a text (see `quire bench perplexity --help`)
    #[command(disable_help_flag = true)]
    Perplexity(Words),
    /// A start up to its first token (see `quire bench startup --help`)
    #[command(disable_help_flag = true)]
    Startup(Words),
    /// Many prompts at once, without HTTP (see `quire bench throughput --help`)
    #[command(disable_help_flag = true)]
    Throughput(Words),
    /// Nothing, but write a model with random weights: a start from files can then be measured without a download
    #[command(after_help = "Example: quire bench weights tests/fixtures/shapes/llama-1b /tmp/llama-1b && \
                            quire bench startup --model /tmp/llama-1b")]
    Weights(WeightsArgs),
}

/// What follows; the benchmark and the engine that it starts read it.
#[derive(Args, Clone, Debug)]
pub struct Words {
    /// MODEL and flags
    #[arg(allow_hyphen_values = true, trailing_var_arg = true)]
    pub words: Vec<String>,
}

/// Which API to speak.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// /v1/completions
    Openai,
    /// /v1/chat/completions
    OpenaiChat,
    /// /v1/embeddings: nothing is generated, and only end-to-end latencies are reported
    OpenaiEmbeddings,
    /// The same as openai
    Vllm,
}

/// Where prompts come from.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dataset {
    /// Random token ids (completions) or random words (chat)
    Random,
    /// A JSON-lines file: {"prompt": "…", "output_tokens": 100}
    Custom,
    /// A ShareGPT file: a JSON list of {"conversations": [{"value": "…"}, …]}
    Sharegpt,
}

/// A metric that has statistics.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Time to first token
    Ttft,
    /// Time per output token, the first excluded
    Tpot,
    /// Inter-token latency
    Itl,
    /// End-to-end latency
    E2el,
}

/// Flags of `quire bench serve`.
#[derive(Args, Clone, Debug)]
pub struct ServeArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    #[command(flatten)]
    pub load: LoadArgs,
    #[command(flatten)]
    pub dataset: DatasetArgs,
    #[command(flatten)]
    pub report: ReportArgs,
}

/// Which server, and how to ask it.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// Which API to speak
    #[arg(long, value_enum, default_value_t = Backend::Openai, alias = "endpoint-type")]
    pub backend: Backend,
    /// The server's address; instead of --host and --port
    #[arg(long, value_name = "URL", conflicts_with_all = ["host", "port"])]
    pub base_url: Option<String>,
    /// The server's host
    #[arg(long, default_value = "127.0.0.1")]
    pub host: String,
    /// The server's port
    #[arg(long, default_value_t = 8000)]
    pub port: u16,
    /// Path of the route [default: the backend's]
    #[arg(long, value_name = "PATH")]
    pub endpoint: Option<String>,
    /// Model to ask for [default: the first that the server lists]
    #[arg(long, alias = "served-model-name")]
    pub model: Option<String>,
    /// Key to present
    #[arg(long, value_name = "KEY", env = "OPENAI_API_KEY", hide_env_values = true)]
    pub api_key: Option<String>,
    /// Temperature of every request
    #[arg(long, default_value_t = 0.0)]
    pub temperature: f64,
    /// Go on past the end of text, so that every answer has its full length
    #[arg(long)]
    pub ignore_eos: bool,
    /// Further request fields, a JSON object
    #[arg(long, value_name = "JSON")]
    pub extra_body: Option<String>,
    /// Wait this long for the server to answer before starting; 0: do not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub ready_check_timeout_sec: u64,
    /// Give a request up after this long
    #[arg(long, value_name = "SECONDS", default_value_t = 21_600)]
    pub request_timeout_sec: u64,
}

/// How much load, and when.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub struct LoadArgs {
    /// Requests to send
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub num_prompts: usize,
    /// Requests per second; inf: all at once
    #[arg(long, value_name = "RPS", default_value_t = f64::INFINITY, value_parser = positive)]
    pub request_rate: f64,
    /// Shape of the gaps between requests: 1 is Poisson, below burstier, above more regular
    #[arg(long, value_name = "SHAPE", default_value_t = 1.0, value_parser = positive)]
    pub burstiness: f64,
    /// Requests in flight at most
    #[arg(long, value_name = "N", value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    pub max_concurrency: Option<usize>,
    /// Requests to send before the measurement
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub num_warmups: usize,
    /// Seed of everything random
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// Where prompts come from.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prompts")]
pub struct DatasetArgs {
    /// Kind of prompts
    #[arg(long, value_enum, default_value_t = Dataset::Random)]
    pub dataset_name: Dataset,
    /// File of the custom and sharegpt datasets
    #[arg(long, value_name = "FILE", required_if_eq_any = [("dataset_name", "custom"), ("dataset_name", "sharegpt")])]
    pub dataset_path: Option<PathBuf>,
    /// Tokens of a random prompt, its prefix excluded
    #[arg(long, value_name = "N", default_value_t = 1024)]
    pub random_input_len: usize,
    /// Tokens to generate for a random prompt
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub random_output_len: usize,
    /// Lengths vary by this share: from (1 - r) to (1 + r) of the length given
    #[arg(long, value_name = "R", default_value_t = 0.0, value_parser = share)]
    pub random_range_ratio: f64,
    /// Tokens that all random prompts have in common, in front
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub random_prefix_len: usize,
    /// Random token ids lie below this; the first hundred ids, often special, are left out when it is larger
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..))]
    pub random_vocab_size: u32,
    /// Tokens to generate for a prompt of a file that names no number
    #[arg(long, value_name = "N", default_value_t = 256, aliases = ["sharegpt-output-len"])]
    pub custom_output_len: usize,
}

/// What to report.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Report")]
pub struct ReportArgs {
    /// Metrics to show statistics of
    #[arg(long, value_enum, value_delimiter = ',', default_value = "ttft,tpot,itl,e2el")]
    pub percentile_metrics: Vec<Metric>,
    /// Percentiles to show
    #[arg(long, value_name = "P", value_delimiter = ',', default_value = "99", value_parser = percentile)]
    pub metric_percentiles: Vec<f64>,
    /// Count requests that keep these bounds, in milliseconds: ttft:100 tpot:50 e2el:2000
    #[arg(long, value_name = "METRIC:MS", num_args = 1.., value_parser = bound)]
    pub goodput: Vec<(Metric, f64)>,
    /// Write the figures to a JSON file
    #[arg(long)]
    pub save_result: bool,
    /// Write each request's figures too
    #[arg(long, requires = "save_result")]
    pub save_detailed: bool,
    /// Folder of that file
    #[arg(long, value_name = "FOLDER", default_value = ".", requires = "save_result")]
    pub result_dir: PathBuf,
    /// Name of that file [default: made of backend, rate, model and time]
    #[arg(long, value_name = "NAME", requires = "save_result")]
    pub result_filename: Option<PathBuf>,
    /// Show no progress bar
    #[arg(long)]
    pub disable_tqdm: bool,
}

impl ServerArgs {
    /// Where requests go.
    pub fn target(&self) -> Result<Target, String> {
        match &self.base_url {
            Some(url) => Target::parse(url).map_err(|problem| format!("--base-url: {problem}")),
            None => {
                let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
                Target::parse(&format!("http://{host}:{}", self.port)).map_err(|problem| format!("--host: {problem}"))
            }
        }
    }

    /// Path of the route.
    pub fn path(&self) -> &str {
        match (&self.endpoint, self.backend) {
            (Some(path), _) => path,
            (None, Backend::OpenaiChat) => "/v1/chat/completions",
            (None, Backend::OpenaiEmbeddings) => "/v1/embeddings",
            (None, Backend::Openai | Backend::Vllm) => "/v1/completions",
        }
    }
}

fn number(text: &str) -> Result<f64, String> {
    text.parse::<f64>().ok().filter(|number| !number.is_nan()).ok_or_else(|| "not a number".to_owned())
}

fn positive(text: &str) -> Result<f64, String> {
    number(text).and_then(|number| if number > 0.0 { Ok(number) } else { Err("must be above 0".to_owned()) })
}

fn share(text: &str) -> Result<f64, String> {
    let within = |number| (0.0..1.0).contains(&number);
    number(text)
        .and_then(|number| if within(number) { Ok(number) } else { Err("must be from 0 to below 1".to_owned()) })
}

fn percentile(text: &str) -> Result<f64, String> {
    let within = |number| (0.0..=100.0).contains(&number);
    number(text).and_then(|number| if within(number) { Ok(number) } else { Err("must be from 0 to 100".to_owned()) })
}

fn bound(text: &str) -> Result<(Metric, f64), String> {
    let (name, value) = text.split_once(':').ok_or("must look like ttft:100")?;
    let metric = Metric::from_str(name, true).ok().filter(|metric| *metric != Metric::Itl);
    Ok((metric.ok_or("the metric must be ttft, tpot or e2el")?, positive(value)?))
}
