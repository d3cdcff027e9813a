//! Flags of vLLM that Quire does not have: known by name, so that a command line written for vLLM works or fails with a
//! reason.
//!
//! One that asks for what Quire does not do is refused unless its value is what Quire does anyway. One that makes no
//! difference is accepted, and reported with the reason. Nothing is ignored silently.

/// One flag.
pub(super) struct Unsupported {
    pub(super) name: &'static str,
    pub(super) aliases: &'static [&'static str],
    pub(super) takes: Takes,
    /// Why it is refused or makes no difference, or what to do instead.
    pub(super) note: &'static str,
}

/// What it takes, and what of that is accepted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Takes {
    /// A switch whose off position is what Quire does.
    Off,
    /// A value; these are what Quire does.
    Only(&'static [&'static str]),
    /// A switch that makes no difference.
    AnySwitch,
    /// A value that makes no difference.
    AnyValue,
    /// One of these values, which makes no difference.
    Moot(&'static [&'static str]),
}

impl Takes {
    /// Whether it is a switch, so that it has an opposite and takes no value.
    pub(super) fn is_switch(self) -> bool {
        matches!(self, Self::Off | Self::AnySwitch)
    }
}

use Takes::{AnySwitch, AnyValue, Moot, Off, Only};

const fn flag(name: &'static str, takes: Takes, note: &'static str) -> Unsupported {
    Unsupported { name, aliases: &[], takes, note }
}

const APART: &str = "engines do not talk to each other";
const ENCODERS: &str = "images, sound and video are not served";
const EXPERTS: &str = "experts are split by --tensor-parallel-size";
const MODEL_CODE: &str = "code from a model's repository is never run";
const OFFLOAD: &str = "KV blocks stay in device memory";
/// Ways to ask for the one backend as JSON.
const GUIDANCE: &[&str] = &[
    "{}",
    r#"{"backend":"auto"}"#,
    r#"{"backend":"guidance"}"#,
    r#"{"backend": "auto"}"#,
    r#"{"backend": "guidance"}"#,
];
const SWITCHES: &str = "it is a switch of each request's `structured_outputs`";
const REPLICAS: &str = "for engines on several machines, start a server for each, with --data-parallel-external-lb";

/// Sorted by name.
pub(super) const UNSUPPORTED: &[Unsupported] = &[
    flag("additional-config", Only(&["{}"]), "there are no platform plugins"),
    flag("all2all-backend", Only(&["allgather_reducescatter"]), EXPERTS),
    flag("allowed-local-media-path", Only(&[""]), ENCODERS),
    flag("allowed-media-domains", Only(&[]), ENCODERS),
    flag("calculate-kv-scales", Off, "an 8-bit KV cache uses the checkpoint's scales, or 1"),
    flag("code-revision", AnyValue, MODEL_CODE),
    flag("collect-detailed-traces", Only(&[]), "use --otlp-traces-endpoint, or --profiler-config"),
    Unsupported {
        aliases: &["-cc"],
        ..flag("compilation-config", Only(&["{}", "0"]), "use --cudagraph-capture-sizes or --enforce-eager")
    },
    flag("config-format", Only(&["auto", "hf"]), "models have a config.json, or are GGUF files"),
    flag("cpu-offload-gb", Only(&["0"]), "weights stay in device memory; use --tensor-parallel-size"),
    flag("custom-histogram-buckets", Only(&[]), "histograms have vLLM's default buckets"),
    flag("data-parallel-address", AnyValue, APART),
    flag("data-parallel-backend", Only(&["mp"]), "engines are processes of this machine"),
    flag("data-parallel-hybrid-lb", Off, REPLICAS),
    flag("data-parallel-rpc-port", AnyValue, APART),
    flag("data-parallel-start-rank", Only(&["0"]), REPLICAS),
    flag("decode-context-parallel-size", Only(&["1"]), "use --tensor-parallel-size"),
    flag("disable-frontend-multiprocessing", Off, "gateway and scheduler are always processes of their own"),
    flag(
        "disable-hybrid-kv-cache-manager",
        Off,
        "layers with a sliding window always have a KV cache group of their own",
    ),
    flag("disable-log-requests", AnySwitch, "requests are logged with --enable-log-requests only"),
    flag("distributed-executor-backend", Only(&["mp"]), "workers are processes of this machine"),
    flag(
        "enable-auto-tool-choice",
        AnySwitch,
        "tool calls are parsed wherever --tool-call-parser or the chat template tells how",
    ),
    flag("enable-eplb", Off, EXPERTS),
    flag("enable-expert-parallel", Off, EXPERTS),
    flag("enable-mfu-metrics", Off, "use quire bench latency --profile"),
    flag("enable-prompt-embeds", Off, "prompts are text or token ids"),
    flag("enable-scale-out", Off, REPLICAS),
    flag("enable-server-load-tracking", AnySwitch, "/load always counts the requests in flight"),
    flag("enable-sleep-mode", Off, "stop the engine instead: it starts within seconds"),
    flag("fingerprint-mode", Only(&["full"]), "all settings are part of it"),
    flag("fully-sharded-loras", AnySwitch, "each rank holds of A or B what it holds of its layer"),
    flag("grpc-port", Only(&[]), "the public API is HTTP; processes speak gRPC on --control"),
    flag("guided-decoding-backend", Only(&["auto", "guidance"]), "there is one backend, guidance"),
    flag("hf-config-path", Only(&[]), "config.json lies in the model's folder"),
    flag("ignore-patterns", AnyValue, "only files that are read are downloaded"),
    flag("kv-cache-metrics", Off, "KV cache usage and prefix cache hits are in /metrics"),
    flag("kv-offloading-backend", Moot(&["native", "lmcache"]), "--kv-offloading-size is 0"),
    flag("kv-offloading-size", Only(&["0"]), OFFLOAD),
    flag("kv-transfer-config", Only(&[]), "prefill and decode run in one engine"),
    flag("language-model-only", AnySwitch, "only language models are loaded"),
    flag("limit-mm-per-prompt", Only(&["{}"]), ENCODERS),
    flag("log-config-file", Only(&[]), "use --log-level and --log-format"),
    flag(
        "logits-processors",
        Only(&[]),
        "there are no plugins; logit_bias, bad_words and allowed_token_ids are parameters",
    ),
    flag("logprobs-mode", Only(&["raw_logprobs"]), "log-probabilities are those of the unchanged logits"),
    flag("max-seq-len-to-capture", Only(&[]), "use --max-cudagraph-capture-size"),
    flag("media-io-kwargs", Only(&["{}"]), ENCODERS),
    flag("middleware", Only(&["[]"]), "put a proxy in front"),
    flag("mm-encoder-tp-mode", Only(&["weights"]), ENCODERS),
    flag("mm-processor-cache-gb", Only(&["0", "4"]), ENCODERS),
    flag("mm-processor-kwargs", Only(&["{}"]), ENCODERS),
    flag("model-impl", Only(&["auto"]), "docs/models.md lists what is served"),
    flag("num-scheduler-steps", Only(&["1"]), "steps are planned ahead: see --async-scheduling"),
    flag("numa-bind", Off, "start the engine with numactl"),
    Unsupported {
        aliases: &["-O"],
        ..flag(
            "optimization-level",
            Moot(&["0", "1", "2", "3"]),
            "kernels are compiled and autotuned in the background at every level",
        )
    },
    flag(
        "performance-mode",
        Only(&["balanced"]),
        "use --max-num-batched-tokens and --max-prefill-tokens-beside-decodes",
    ),
    flag("preemption-mode", Only(&["recompute"]), OFFLOAD),
    flag("prefill-context-parallel-size", Only(&["1"]), "use --tensor-parallel-size"),
    flag("prefix-caching-hash-algo", Only(&["sha256"]), "a weaker hash would let prompts collide on purpose"),
    flag("reasoning-config", Only(&["{}"]), "use --reasoning-parser: it knows where reasoning begins and ends"),
    flag("rope-scaling", Only(&[]), "edit config.json in a copy of the folder"),
    flag("rope-theta", Only(&[]), "edit config.json in a copy of the folder"),
    flag("show-hidden-metrics-for-version", Only(&[]), "no metric is hidden"),
    flag("skip-mm-profiling", AnySwitch, ENCODERS),
    flag("skip-tokenizer-init", Off, "a model needs its tokenizer"),
    flag("spec-method", Only(&[]), "speculative decoding is not done"),
    flag("spec-model", Only(&[]), "speculative decoding is not done"),
    flag("spec-tokens", Only(&[]), "speculative decoding is not done"),
    Unsupported { aliases: &["-sc"], ..flag("speculative-config", Only(&[]), "speculative decoding is not done") },
    flag("structured-outputs-config", Only(GUIDANCE), "there is one backend, guidance; its switches are a request's"),
    flag("structured-outputs-config.backend", Only(&["auto", "guidance"]), "there is one backend, guidance"),
    flag("structured-outputs-config.disable_additional_properties", Only(&["false"]), SWITCHES),
    flag("structured-outputs-config.disable_any_whitespace", Only(&["false"]), SWITCHES),
    flag("structured-outputs-config.disable_fallback", AnyValue, "what cannot be compiled is refused"),
    flag("structured-outputs-config.enable_in_reasoning", Only(&["false"]), "a constraint begins behind the reasoning"),
    flag("structured-outputs-config.reasoning_parser", Only(&[""]), "use --reasoning-parser"),
    flag("swap-space", Only(&["0", "4"]), OFFLOAD),
    flag("tokenizer-mode", Only(&["auto", "hf"]), "the tokenizer is read from the model's files"),
    flag("tokenizer-revision", Only(&["main"]), "give --tokenizer a folder"),
    flag("tokens-only", Off, "send token ids as the prompt"),
    flag("tool-parser-plugin", Only(&[""]), "formats of tool calls are built in: see --tool-call-parser"),
    flag("tool-server", Only(&[]), "clients run the tools"),
    flag("trust-remote-code", AnySwitch, MODEL_CODE),
    flag("use-v2-block-manager", AnySwitch, "there is one block manager"),
    flag("uvicorn-log-level", Only(&["info"]), "use --log-level"),
];
