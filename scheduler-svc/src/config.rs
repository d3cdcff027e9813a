//! The scheduler's flags, checked once.

use std::{path::PathBuf, time::Duration};

use clap::{ArgAction, ValueEnum};
use link::LinkOptions;
use proto::{DeviceKind, ModelInfo, ServedAdapter, StepPreference};
use sched_core::{Config, Features, MixedPrefill, PrefillBudget};
use service_kit::{
    Address, CommonArgs, FingerprintArgs, GroupArgs, LengthArgs, LoraArgs, ReplicaArgs,
    values::{count, fraction, size},
};

use crate::{
    group::{Formed, Limits},
    kv_events::KvEventsConfig,
};

/// Flags of `quire scheduler`.
#[derive(clap::Args, Clone, Debug)]
pub struct Args {
    /// Flags that every process has.
    #[command(flatten)]
    pub common: CommonArgs,

    /// Where tokenizers bring requests
    #[arg(long, value_name = "ADDRESS")]
    pub listen_requests: Address,

    /// Where workers come for plans; once per address
    #[arg(long, value_name = "ADDRESS", required = true)]
    pub listen_workers: Vec<Address>,

    /// The detokenizer that takes the tokens
    #[arg(long, value_name = "ADDRESS")]
    pub detokenizer: Address,

    /// The model that all processes serve.
    #[command(flatten)]
    pub fingerprint: FingerprintArgs,

    /// Name of the model in metrics
    #[arg(long, default_value = "default")]
    pub served_model_name: String,

    /// Its place among engines.
    #[command(flatten)]
    pub replica: ReplicaArgs,

    /// Flags that workers have too.
    #[command(flatten)]
    pub group: GroupArgs,

    /// Adapters, as the workers have them.
    #[command(flatten)]
    pub lora: LoraArgs,

    /// Maximum number of adapters in the memory of the host; those of live requests stay beyond it [default:
    /// --max-loras]
    #[arg(long, value_name = "N", value_parser = count(1..=65_536_u32))]
    pub max_cpu_loras: Option<u32>,

    /// Adapters that are served from the start: name=path, or {"name", "path", "base_model_name"}; a path is a
    /// folder or a Hugging Face id
    #[arg(long, value_name = "ADAPTER", num_args = 1.., value_parser = lora_module)]
    pub lora_modules: Vec<LoraModule>,

    /// File in which the adapters that are served are kept, so that a scheduler that is started again serves them
    #[arg(long, value_name = "FILE")]
    pub served_adapters_file: Option<PathBuf>,

    /// Folder whose subfolders are adapters, loaded when a request names one
    #[arg(long, value_name = "DIR", env = "VLLM_LORA_RESOLVER_CACHE_DIR", hide_env_values = true)]
    pub lora_dir: Option<PathBuf>,

    /// The longest sequence.
    #[command(flatten)]
    pub length: LengthArgs,

    /// Maximum length of a prefill chunk beside running decodes; 0: the scheduler decides
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = count(0..=u32::MAX))]
    pub long_prefill_token_threshold: u32,

    /// Maximum number of prefill tokens in a mixed step, which bounds inter-token latency; 0: no maximum [default:
    /// auto, mixed steps of about 100 ms]
    #[arg(long, value_name = "N", value_parser = count(0..=u32::MAX))]
    pub max_prefill_tokens_beside_decodes: Option<u32>,

    /// Reuse the KV blocks of equal prompt prefixes
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    pub enable_prefix_caching: bool,

    /// Split long prefills into chunks and run them beside decodes
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    pub enable_chunked_prefill: bool,

    /// Order of requests; fcfs: by arrival, priority: by the request's priority, lower first, then by arrival
    #[arg(long, value_name = "POLICY", default_value = "fcfs")]
    pub scheduling_policy: Policy,

    /// Plan the next step while workers run the current one
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    pub async_scheduling: bool,

    /// Maximum number of waiting requests; further ones get a 503 [default: no maximum]
    #[arg(long, value_name = "N", value_parser = count(1..=u32::MAX))]
    pub max_num_queued_reqs: Option<u32>,

    /// Maximum number of waiting prompt tokens; a request that exceeds it gets a 503 [default: no maximum]
    #[arg(long, value_name = "SIZE", value_parser = size(1..=u64::MAX))]
    pub max_num_queued_tokens: Option<u64>,

    /// Do not sample the tokens of structured output one by one where its grammar leaves one way
    #[arg(long, default_value_t = true, action = ArgAction::Set)]
    pub enable_jump_forward: bool,

    /// Publish what happens to the prefix cache over ZeroMQ, as vLLM does: {"enable_kv_cache_events": true, "endpoint":
    /// "tcp://*:5557", "replay_endpoint": …}; whoever subscribes is told, tokens of prompts included
    #[arg(long, value_name = "JSON", default_value = "{}")]
    pub kv_events_config: KvEventsConfig,

    /// How long running requests may take to finish at shutdown
    #[arg(long, value_name = "SECONDS", default_value_t = 30.0, value_parser = service_kit::values::seconds)]
    pub shutdown_timeout: f64,

    /// Share of KV blocks that stays free when requests are admitted
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = fraction)]
    pub watermark: f32,

    /// How long a step may take before its workers count as hung; kernels that are being compiled do not count
    /// [default: 60 on GPUs, 600 on CPUs]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = seconds,
        env = "VLLM_ENGINE_ITERATION_TIMEOUT_S",
        hide_env_values = true
    )]
    pub step_timeout: Option<Duration>,

    /// Most choices of a request; those that do not fit --max-num-seqs run one after the other
    #[arg(
        long,
        value_name = "N",
        default_value_t = 16_384,
        value_parser = count(1..=65_536_u32),
        env = "VLLM_MAX_N_SEQUENCES",
        hide_env_values = true
    )]
    pub max_n_sequences: u32,

    /// Do not log statistics
    #[arg(long)]
    pub disable_log_stats: bool,

    /// Time between lines of statistics while there is traffic
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "10",
        value_parser = seconds,
        env = "VLLM_LOG_STATS_INTERVAL",
        hide_env_values = true
    )]
    pub log_stats_interval: Duration,
}

/// Who runs first.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// In the order of arrival.
    Fcfs,
    /// By the request's `priority`, lower first, then by arrival.
    Priority,
}

/// An adapter of `--lora-modules`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoraModule(pub ServedAdapter);

/// Parses an adapter of `--lora-modules`.
fn lora_module(text: &str) -> Result<LoraModule, String> {
    const EXPECTED: &str = r#"expected name=folder, or {"name": …, "path": …}"#;
    let adapter = match text.starts_with('{') {
        false => {
            let (name, path) = text.split_once('=').ok_or(EXPECTED)?;
            ServedAdapter { name: name.into(), path: path.into(), ..ServedAdapter::default() }
        }
        true => {
            let json: serde_json::Value = serde_json::from_str(text).map_err(|error| format!("{EXPECTED}: {error}"))?;
            let object = json.as_object().ok_or(EXPECTED)?;
            let known = ["name", "path", "base_model_name", "is_3d_lora_weight"];
            // Whether experts' matrices are in one tensor is told from the adapter's files.
            if object.get("is_3d_lora_weight").is_some_and(|value| !value.is_boolean()) {
                return Err("is_3d_lora_weight: expected true or false".into());
            }
            if let Some(key) = object.keys().find(|key| !known.contains(&key.as_str())) {
                return Err(format!("{EXPECTED}, without {key:?}"));
            }
            let member = |name: &str| object.get(name).and_then(|value| value.as_str()).unwrap_or_default().to_owned();
            let (name, path, base_model_name) = (member("name"), member("path"), member("base_model_name"));
            ServedAdapter { name, path, base_model_name, ..ServedAdapter::default() }
        }
    };
    if adapter.name.is_empty() || adapter.path.is_empty() {
        return Err(EXPECTED.to_owned());
    }
    Ok(LoraModule(adapter))
}

/// Prompt tokens of a mixed step where neither a flag nor the workers say anything.
const MIXED_PREFILL_TOKENS: u32 = 512;

/// Mixed steps that suit the device.
fn mixed_prefill(preferred: Option<&StepPreference>) -> MixedPrefill {
    let Some(preferred) = preferred else { return MixedPrefill::AtMost(MIXED_PREFILL_TOKENS) };
    MixedPrefill::Timed(PrefillBudget {
        row_multiple: preferred.row_multiple,
        large_row_multiple: preferred.large_row_multiple,
        min_tokens: preferred.min_prefill_tokens,
        target_us: preferred.target_us,
        few_decodes: preferred.few_decodes,
        few_decodes_target_us: preferred.few_decodes_target_us,
        target_tokens: preferred.target_prefill_tokens,
        tokens_per_decode: preferred.prefill_tokens_per_decode,
        max_us: preferred.max_us,
        slow_max_us: preferred.slow_max_us,
    })
}

/// How long a step may take on GPUs, which need a second at most.
const GPU_STEP: Duration = Duration::from_secs(60);
/// And on CPUs, where a few cores compute a large model's prompt for minutes.
const CPU_STEP: Duration = Duration::from_secs(600);

/// Parses a time of at most a day.
fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("expected a number of seconds above 0, 86400 at most".into()),
    }
}

/// Where adapters come from that are named by Hugging Face ids: the environment says, as it does for models.
pub(crate) fn hub() -> model_source::Options {
    model_source::Options::from_env(|name| std::env::var(name).ok())
}

impl Args {
    /// What every worker is told when its group forms.
    pub(crate) fn limits(&self) -> Limits {
        Limits { max_num_seqs: self.group.max_num_seqs, max_num_batched_tokens: self.group.max_num_batched_tokens }
    }

    /// Adapters that are served from the start.
    pub(crate) fn served_modules(&self) -> Vec<ServedAdapter> {
        let modules = self.lora_modules.iter().filter(|_| self.lora.enable_lora);
        modules.map(|module| module.0.clone()).collect()
    }

    /// Adapters that the host keeps beside those of live requests.
    pub(crate) fn max_cpu_loras(&self) -> usize {
        self.max_cpu_loras.unwrap_or(self.lora.max_loras).max(self.lora.max_loras) as usize
    }

    /// How long a step may take on such a device.
    pub(crate) fn step_timeout(&self, device: DeviceKind) -> Duration {
        self.step_timeout.unwrap_or(if device == DeviceKind::Cuda { GPU_STEP } else { CPU_STEP })
    }

    /// The core's settings for a group: these flags, within what its workers offer.
    pub(crate) fn core_config(&self, formed: &Formed) -> Config {
        let ready = &formed.ready;
        let wanted = self.length.tokens().unwrap_or(ready.max_model_len).min(ready.max_model_len);
        let windows = ready.cache_groups.iter().map(|group| (group.window > 0).then_some(group.window)).collect();
        let (recurrent, pools) = (ready.is_recurrent(), ready.pooling.is_some());
        // A prompt whose tokens see those after them is computed in one step.
        let step_tokens = formed.max_num_batched_tokens;
        let in_a_step = if ready.whole_prompts { step_tokens } else { u32::MAX };
        let wanted = wanted.min(in_a_step);
        // A running sequence takes a token of each step.
        let max_num_seqs = formed.max_num_seqs.min(step_tokens);
        let model = if self.fingerprint.model_fingerprint.is_empty() {
            &self.served_model_name
        } else {
            &self.fingerprint.model_fingerprint
        };
        let config = Config {
            model: model.clone(),
            block_size: ready.block_size,
            max_num_seqs,
            max_num_batched_tokens: step_tokens,
            max_model_len: wanted,
            windows: if ready.cache_groups.is_empty() { vec![None] } else { windows },
            recurrent,
            long_prefill_token_threshold: self.long_prefill_token_threshold,
            mixed_prefill: match self.max_prefill_tokens_beside_decodes {
                None => mixed_prefill(ready.step_preference.as_ref()),
                Some(0) => MixedPrefill::Unlimited,
                Some(tokens) => MixedPrefill::AtMost(tokens),
            },
            // The other half of a message is enough for those that run.
            max_new_request_bytes: LinkOptions::default().message_limit() / 2,
            enable_chunked_prefill: self.enable_chunked_prefill && !ready.whole_prompts,
            enable_prefix_caching: self.enable_prefix_caching && !recurrent && !ready.whole_prompts,
            policy: match self.scheduling_policy {
                Policy::Fcfs => sched_core::Policy::Fcfs,
                Policy::Priority => sched_core::Policy::Priority,
            },
            pipeline_depth: if self.async_scheduling { self.group.pipeline_parallel_size.max(2) } else { 1 },
            stages: self.group.pipeline_parallel_size,
            speculative_tokens: 0,
            jump_forward: self.enable_jump_forward,
            adapter_slots: self.lora.slots(),
            features: Features { pooling: pools, only_pooling: pools, ..Features::default() },
            max_num_queued_reqs: self.max_num_queued_reqs,
            max_num_queued_tokens: self.max_num_queued_tokens,
            watermark: self.watermark,
            eos_token_ids: ready.eos_token_ids.clone(),
            vocab_size: ready.vocab_size,
            extra_vocab_size: ready.extra_vocab_size,
            max_choices: self.max_n_sequences,
            // Engines that get equal requests draw different tokens.
            seed: self.group.seed ^ u64::from(self.replica.data_parallel_rank) << 32,
        };
        Config { max_model_len: wanted.min(config.positions_in(formed.num_blocks)), ..config }
    }

    /// Why there is no prefix cache, if there is none.
    pub(crate) fn prefix_cache_off(&self, config: &Config, formed: &Formed) -> Option<&'static str> {
        if self.enable_prefix_caching && formed.ready.whole_prompts {
            return Some("the model's tokens see those after them, so a prefix depends on what follows");
        }
        match (self.enable_prefix_caching, config.recurrent) {
            (false, _) => Some("switched off"),
            (true, true) => Some("the model has a recurrent state, which is not in the blocks of a prefix"),
            (true, false) => None,
        }
    }

    /// What others are told of the model.
    pub(crate) fn model_info(&self, config: &Config, formed: &Formed) -> ModelInfo {
        ModelInfo {
            max_model_len: config.max_model_len,
            vocab_size: config.vocab_size,
            extra_vocab_size: config.extra_vocab_size,
            block_size: config.block_size,
            num_blocks: formed.num_blocks,
            dtype: formed.ready.dtype.clone(),
            max_num_seqs: config.max_num_seqs,
            max_num_batched_tokens: config.max_num_batched_tokens,
            eos_token_ids: config.eos_token_ids.clone(),
            prefix_cache_off: self.prefix_cache_off(config, formed).unwrap_or_default().into(),
            pooling: formed.ready.pooling.clone(),
            ..ModelInfo::default()
        }
    }

    /// The settings as a JSON object, for the control plane.
    pub(crate) fn to_json(&self) -> String {
        serde_json::json!({
            "tensor_parallel_size": self.group.tensor_parallel_size,
            "pipeline_parallel_size": self.group.pipeline_parallel_size,
            "max_model_len": self.length.tokens(),
            "max_num_seqs": self.group.max_num_seqs,
            "max_num_batched_tokens": self.group.max_num_batched_tokens,
            "enable_prefix_caching": self.enable_prefix_caching,
            "enable_chunked_prefill": self.enable_chunked_prefill,
            "async_scheduling": self.async_scheduling,
            "max_num_queued_reqs": self.max_num_queued_reqs,
            "max_num_queued_tokens": self.max_num_queued_tokens,
        })
        .to_string()
    }
}

#[cfg(test)]
mod tests {
    use proto::WorkerReady;

    use service_kit::parse_flags;

    use super::*;

    fn args(flags: &str) -> Args {
        let needed = ["--listen-requests=ring:/r", "--listen-workers=ring:/w", "--detokenizer=ring:/d"];
        let words = ["scheduler"].into_iter().chain(needed).chain(flags.split_whitespace());
        parse_flags(words).expect("flags")
    }

    /// A group whose steps have up to `tokens` tokens.
    fn formed(tokens: u32, step_preference: Option<StepPreference>) -> Formed {
        let ready = WorkerReady { block_size: 16, max_model_len: 128, step_preference, ..WorkerReady::default() };
        Formed { epoch: 1, num_blocks: 100, max_num_seqs: 300, max_num_batched_tokens: tokens, ready }
    }

    #[test]
    fn mixed_steps_suit_the_device_unless_a_flag_says_otherwise() {
        let device =
            StepPreference { row_multiple: 256, min_prefill_tokens: 512, max_us: 150_000, ..Default::default() };
        let mixed =
            |flags, preferred: Option<StepPreference>| args(flags).core_config(&formed(2048, preferred)).mixed_prefill;
        let MixedPrefill::Timed(budget) = mixed("", Some(device)) else { panic!("what the device prefers") };
        assert_eq!((budget.row_multiple, budget.min_tokens, budget.max_us), (256, 512, 150_000));
        assert_eq!(mixed("", None), MixedPrefill::AtMost(512));
        assert_eq!(mixed("--max-prefill-tokens-beside-decodes 99", Some(device)), MixedPrefill::AtMost(99));
        assert_eq!(mixed("--max-prefill-tokens-beside-decodes 0", Some(device)), MixedPrefill::Unlimited);
    }

    #[test]
    fn a_step_has_seconds() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "inf", "nan", "1e9", "60s", ""] {
            assert!(seconds(wrong).unwrap_err().contains("seconds"), "{wrong}");
        }
    }

    #[test]
    fn each_sequence_has_a_token_of_a_step() {
        let step = |tokens| {
            let config = args("").core_config(&formed(tokens, None));
            (config.max_num_seqs, config.max_num_batched_tokens)
        };
        assert_eq!(step(16), (16, 16));
        assert_eq!(step(4096), (300, 4096));
    }
}
