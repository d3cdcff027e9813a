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
const HALVES: &str = "batches are not divided in two";
const HEADERS: &str = "headers have the server's own bounds, bodies --max-body-bytes";
const KERNELS: &str = "kernels are chosen by device, shape and measurement";
const NO_DRAFTS: &str = "speculative decoding is not done";
const OFFLOAD: &str = "KV blocks stay in device memory";
const PLUGINS: &str = "there are no plugins";
const PROCESSES: &str = "workers are processes of this machine";
const STATES: &str = "a sequence has one recurrent state";
const SUPERVISOR: &str = "every server has a /health of its own";
const WEIGHTS: &str = "weights stay in device memory; use --tensor-parallel-size";
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
    flag("aggregate-engine-logging", Off, "/metrics has the figures of each engine and their sum"),
    flag("all2all-backend", Only(&["allgather_reducescatter"]), EXPERTS),
    flag("allow-deprecated-quantization", AnySwitch, "docs/quantization.md lists the methods that are served"),
    flag("allowed-local-media-path", Only(&[""]), ENCODERS),
    flag("allowed-media-domains", Only(&[]), ENCODERS),
    flag("attention-config", Only(&["{}"]), "use --attention-backend"),
    flag("calculate-kv-scales", Off, "an 8-bit KV cache uses the checkpoint's scales, or 1"),
    flag("code-revision", AnyValue, MODEL_CODE),
    flag("collect-detailed-traces", Only(&[]), "use --otlp-traces-endpoint, or --profiler-config"),
    Unsupported {
        aliases: &["-cc"],
        ..flag("compilation-config", Only(&["{}", "0"]), "use --cudagraph-capture-sizes or --enforce-eager")
    },
    flag("config-format", Only(&["auto", "hf"]), "models have a config.json, or are GGUF files"),
    flag("cp-kv-cache-interleave-size", Only(&["1"]), "use --tensor-parallel-size"),
    flag("cpu-distributed-timeout-seconds", Only(&[]), "use --distributed-timeout-seconds"),
    flag("cpu-offload-gb", Only(&["0"]), WEIGHTS),
    flag("cpu-offload-params", Only(&[]), WEIGHTS),
    flag("cuda-graph-sizes", Only(&[]), "use --cudagraph-capture-sizes"),
    flag("cudagraph-metrics", Off, "use --profiler-config"),
    flag("custom-histogram-buckets", Only(&[]), "histograms have vLLM's default buckets"),
    flag("data-parallel-address", AnyValue, APART),
    flag("data-parallel-backend", Only(&["mp"]), "engines are processes of this machine"),
    flag("data-parallel-hybrid-lb", Off, REPLICAS),
    flag("data-parallel-multi-port-external-lb", Off, REPLICAS),
    flag("data-parallel-rpc-port", AnyValue, APART),
    flag("data-parallel-start-rank", Only(&["0"]), REPLICAS),
    flag("data-parallel-supervisor-port", AnyValue, SUPERVISOR),
    flag("dbo-decode-token-threshold", AnyValue, HALVES),
    flag("dbo-prefill-token-threshold", AnyValue, HALVES),
    flag("dcp-comm-backend", Only(&["ag_rs"]), "use --tensor-parallel-size"),
    flag("dcp-kv-cache-interleave-size", Only(&["1"]), "use --tensor-parallel-size"),
    flag("decode-context-parallel-size", Only(&["1"]), "use --tensor-parallel-size"),
    flag("default-mm-loras", Only(&[]), ENCODERS),
    flag("device-ids", Only(&[]), "use CUDA_VISIBLE_DEVICES"),
    flag("diffusion-config", Only(&[]), "text is generated from left to right"),
    flag("disable-access-log-for-endpoints", Only(&[]), "use --disable-uvicorn-access-log"),
    flag("disable-async-output-proc", AnySwitch, "the detokenizer is always a process of its own"),
    flag("disable-chunked-mm-input", AnySwitch, ENCODERS),
    flag("disable-frontend-multiprocessing", Off, "gateway and scheduler are always processes of their own"),
    flag(
        "disable-hybrid-kv-cache-manager",
        Off,
        "layers with a sliding window always have a KV cache group of their own",
    ),
    flag("disable-log-requests", AnySwitch, "requests are logged with --enable-log-requests only"),
    flag("disable-mm-preprocessor-cache", AnySwitch, ENCODERS),
    flag("disable-nccl-for-dp-synchronization", AnySwitch, APART),
    flag("disable-sliding-window", Off, "layers attend as the model says; use --max-model-len"),
    flag("distributed-executor-backend", Only(&["mp"]), PROCESSES),
    flag("dp-supervisor-probe-failure-threshold", AnyValue, SUPERVISOR),
    flag("dp-supervisor-probe-interval-s", AnyValue, SUPERVISOR),
    flag("dp-supervisor-probe-timeout-s", AnyValue, SUPERVISOR),
    flag("ec-transfer-config", Only(&[]), ENCODERS),
    flag(
        "enable-auto-tool-choice",
        AnySwitch,
        "tool calls are parsed wherever --tool-call-parser or the chat template tells how",
    ),
    flag("enable-cumem-allocator", Off, "memory is allocated once, at the start"),
    flag("enable-dbo", Off, HALVES),
    flag("enable-elastic-ep", Off, EXPERTS),
    flag("enable-ep-weight-filter", Off, EXPERTS),
    flag("enable-eplb", Off, EXPERTS),
    flag("enable-expert-parallel", Off, EXPERTS),
    flag("enable-flash-late-interaction", AnySwitch, "scores are the same wherever they are computed"),
    flag("enable-flashinfer-autotune", AnySwitch, "kernels are autotuned in the background"),
    flag("enable-layerwise-nvtx-tracing", Off, "use --profiler-config"),
    flag("enable-log-deltas", AnySwitch, "--enable-log-outputs logs each answer once, when it is whole"),
    flag("enable-logging-iteration-details", Off, "use --profiler-config"),
    flag("enable-lora-bias", Off, "adapters have no biases of their own"),
    flag("enable-mamba-cache-stochastic-rounding", Off, "states of 16 bits are rounded to the nearest number"),
    flag("enable-mfu-metrics", Off, "use quire bench latency --profile"),
    flag("enable-mixed-moe-lora-format", AnySwitch, "both forms of experts' adapters are read"),
    flag("enable-mm-embeds", Off, ENCODERS),
    flag("enable-offline-docs", AnySwitch, "/docs needs no network"),
    flag("enable-prompt-adapter", Off, "use LoRA adapters: --enable-lora"),
    flag("enable-prompt-embeds", Off, "prompts are text or token ids"),
    flag("enable-reasoning", AnySwitch, "reasoning is told apart wherever --reasoning-parser says how"),
    flag("enable-return-routed-experts", Off, "answers are tokens and their probabilities"),
    flag("enable-scale-out", Off, REPLICAS),
    flag("enable-server-load-tracking", AnySwitch, "/load always counts the requests in flight"),
    flag("enable-sleep-mode", Off, "stop the engine instead: it starts within seconds"),
    flag("enable-ssl-refresh", Off, "restart the server with the new certificate"),
    flag("enable-tower-connector-lora", Off, ENCODERS),
    flag("engine-use-ray", Off, PROCESSES),
    flag("eplb-config", Only(&["{}"]), EXPERTS),
    flag("expert-placement-strategy", Only(&["linear"]), EXPERTS),
    flag("fail-on-environ-validation", Off, "unknown variables are reported"),
    flag("fingerprint-mode", Only(&["full"]), "all settings are part of it"),
    flag("fingerprint-value", Only(&[]), "all settings are part of it"),
    flag("fully-sharded-loras", AnySwitch, "each rank holds of A or B what it holds of its layer"),
    flag("gdn-prefill-backend", Only(&[]), KERNELS),
    flag("grpc", Off, "the public API is HTTP; processes speak gRPC on --control"),
    flag("grpc-port", Only(&[]), "the public API is HTTP; processes speak gRPC on --control"),
    flag("guided-decoding-backend", Only(&["auto", "guidance"]), "there is one backend, guidance"),
    flag("guided-decoding-disable-additional-properties", Off, SWITCHES),
    flag("guided-decoding-disable-any-whitespace", Off, SWITCHES),
    flag("guided-decoding-disable-fallback", AnySwitch, "what cannot be compiled is refused"),
    flag("h11-max-header-count", AnyValue, HEADERS),
    flag("h11-max-incomplete-event-size", AnyValue, HEADERS),
    flag("hf-config-path", Only(&[]), "config.json lies in the model's folder"),
    flag("ignore-patterns", AnyValue, "only files that are read are downloaded"),
    flag("interleave-mm-strings", AnySwitch, ENCODERS),
    flag("io-processor-plugin", Only(&[]), PLUGINS),
    flag("ir-op-priority", Only(&["{}"]), KERNELS),
    flag("jit-monitor-verbose", AnySwitch, "no kernel is compiled by Triton"),
    flag("kernel-config", Only(&["{}"]), KERNELS),
    flag("kv-cache-dtype-skip-layers", Only(&[]), "the caches of all layers have one data type"),
    flag("kv-cache-metrics", Off, "KV cache usage and prefix cache hits are in /metrics"),
    flag("kv-cache-metrics-sample", AnyValue, "--kv-cache-metrics is off"),
    flag("kv-offloading-backend", Moot(&["native", "lmcache"]), "--kv-offloading-size is 0"),
    flag("kv-offloading-size", Only(&["0"]), OFFLOAD),
    flag("kv-sharing-fast-prefill", Off, "no layer that is served shares another's cache"),
    flag("kv-transfer-config", Only(&[]), "prefill and decode run in one engine"),
    flag("language-model-only", AnySwitch, "only language models are loaded"),
    flag("limit-mm-per-prompt", Only(&["{}"]), ENCODERS),
    flag("linear-backend", Only(&["auto"]), KERNELS),
    flag("log-config-file", Only(&[]), "use --log-level and --log-format"),
    flag("log-error-stack", AnySwitch, "errors have no stack"),
    flag(
        "logits-processors",
        Only(&[]),
        "there are no plugins; logit_bias, bad_words and allowed_token_ids are parameters",
    ),
    flag("logprobs-mode", Only(&["raw_logprobs"]), "log-probabilities are those of the unchanged logits"),
    flag("long-lora-scaling-factors", Only(&[]), "an adapter's scaling is that of its files"),
    flag("lora-target-modules", Only(&[]), "all modules of an adapter are applied"),
    flag("mamba-backend", AnyValue, KERNELS),
    flag("mamba-block-size", Only(&[]), STATES),
    flag("mamba-cache-mode", Only(&["none"]), "prefixes of models with recurrent states are not cached"),
    flag("mamba-cache-philox-rounds", AnyValue, "--enable-mamba-cache-stochastic-rounding is off"),
    flag("max-context-len-to-capture", Only(&[]), "use --max-cudagraph-capture-size"),
    flag("max-long-partial-prefills", Only(&["1"]), "use --long-prefill-token-threshold"),
    flag("max-num-partial-prefills", Only(&["1"]), "use --max-num-batched-tokens and --long-prefill-token-threshold"),
    flag("max-parallel-loading-workers", AnyValue, "each worker reads its own shard"),
    flag("max-seq-len-to-capture", Only(&[]), "use --max-cudagraph-capture-size"),
    flag("media-io-kwargs", Only(&["{}"]), ENCODERS),
    flag("middleware", Only(&["[]"]), "put a proxy in front"),
    flag("mm-encoder-attn-backend", AnyValue, ENCODERS),
    flag("mm-encoder-attn-dtype", AnyValue, ENCODERS),
    flag("mm-encoder-fp8-scale-path", AnyValue, ENCODERS),
    flag("mm-encoder-fp8-scale-save-margin", AnyValue, ENCODERS),
    flag("mm-encoder-fp8-scale-save-path", AnyValue, ENCODERS),
    flag("mm-encoder-only", Off, ENCODERS),
    flag("mm-encoder-tp-mode", Only(&["weights"]), ENCODERS),
    flag("mm-processor-cache-gb", Only(&["0", "4"]), ENCODERS),
    flag("mm-processor-cache-type", AnyValue, ENCODERS),
    flag("mm-processor-kwargs", Only(&["{}"]), ENCODERS),
    flag("mm-shm-cache-max-object-size-mb", AnyValue, ENCODERS),
    flag("mm-tensor-ipc", AnyValue, ENCODERS),
    flag("model-impl", Only(&["auto"]), "docs/models.md lists what is served"),
    flag("model-loader-extra-config", Only(&["{}"]), "weights are mapped from files; there is one loader"),
    flag("moe-backend", Only(&["auto"]), KERNELS),
    flag("multi-step-stream-outputs", AnySwitch, "use --stream-interval"),
    flag("num-lookahead-slots", Only(&["0"]), NO_DRAFTS),
    flag("num-scheduler-steps", Only(&["1"]), "steps are planned ahead: see --async-scheduling"),
    flag("num-speculative-tokens", Only(&[]), NO_DRAFTS),
    flag("numa-bind", Off, "start the engine with numactl"),
    flag("numa-bind-cpus", Only(&[]), "start the engine with numactl"),
    flag("numa-bind-nodes", Only(&[]), "start the engine with numactl"),
    flag("offload-backend", Only(&["auto"]), WEIGHTS),
    flag("offload-group-size", Only(&["0"]), WEIGHTS),
    flag("offload-num-in-group", AnyValue, "--offload-group-size is 0"),
    flag("offload-params", Only(&[]), WEIGHTS),
    flag("offload-prefetch-step", AnyValue, "--offload-group-size is 0"),
    Unsupported {
        aliases: &["-O"],
        ..flag(
            "optimization-level",
            Moot(&["0", "1", "2", "3"]),
            "kernels are compiled and autotuned in the background at every level",
        )
    },
    flag("override-attention-dtype", Only(&[]), "use --dtype"),
    flag("override-pooler-config", Only(&[]), "use --pooler-config"),
    flag(
        "performance-mode",
        Only(&["balanced"]),
        "use --max-num-batched-tokens and --max-prefill-tokens-beside-decodes",
    ),
    flag("preemption-mode", Only(&["recompute"]), OFFLOAD),
    flag("prefill-context-parallel-size", Only(&["1"]), "use --tensor-parallel-size"),
    flag("prefill-schedule-interval", Only(&["1"]), APART),
    flag("prefix-caching-hash-algo", Only(&["sha256"]), "a weaker hash would let prompts collide on purpose"),
    flag("pt-load-map-location", Only(&["cpu"]), "files of weights are read by the processor"),
    flag("quantization-config", Only(&[]), "use --quantization"),
    flag("ray-workers-use-nsight", Off, PROCESSES),
    flag("reasoning-config", Only(&["{}"]), "use --reasoning-parser: it knows where reasoning begins and ends"),
    flag("reasoning-parser-plugin", Only(&[""]), "formats of reasoning are built in: see --reasoning-parser"),
    flag("renderer-num-workers", Only(&["1"]), "use --tokenizer-pool-size"),
    flag("rope-scaling", Only(&[]), "use --hf-overrides '{\"rope_scaling\": …}'"),
    flag("rope-theta", Only(&[]), "use --hf-overrides '{\"rope_theta\": …}'"),
    flag("safetensors-load-strategy", AnyValue, "weights are mapped from files"),
    flag("safetensors-prefetch-block-size", AnyValue, "weights are mapped from files"),
    flag("safetensors-prefetch-num-threads", AnyValue, "weights are mapped from files"),
    flag("scheduler-cls", Only(&[]), PLUGINS),
    flag("scheduler-delay-factor", Only(&["0", "0.0"]), "prompts begin as soon as a step has room for them"),
    flag("show-hidden-metrics-for-version", Only(&[]), "no metric is hidden"),
    flag("skip-mm-profiling", AnySwitch, ENCODERS),
    flag("skip-tokenizer-init", Off, "a model needs its tokenizer"),
    flag("spec-method", Only(&[]), NO_DRAFTS),
    flag("spec-model", Only(&[]), NO_DRAFTS),
    flag("spec-tokens", Only(&[]), NO_DRAFTS),
    flag("specialize-active-lora", AnySwitch, "all adapters of a step are one launch"),
    Unsupported { aliases: &["-sc"], ..flag("speculative-config", Only(&[]), NO_DRAFTS) },
    flag("speculative-model", Only(&[]), NO_DRAFTS),
    flag("ssl-ciphers", Only(&[]), "connections take the best suite of TLS 1.2 and 1.3 that both sides know"),
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
    flag("ubatch-size", Only(&["0"]), HALVES),
    flag("use-fp64-gumbel", Off, "there is one way to draw tokens"),
    flag("use-tqdm-on-load", AnySwitch, "loading is reported in the log"),
    flag("use-v2-block-manager", AnySwitch, "there is one block manager"),
    flag("uvicorn-log-level", Only(&["info"]), "use --log-level"),
    flag("video-pruning-rate", AnyValue, ENCODERS),
    flag("weight-transfer-config", Only(&[]), "restart the engine with the new weights"),
    flag("worker-cls", Only(&["auto"]), PLUGINS),
    flag("worker-extension-cls", Only(&[""]), PLUGINS),
    flag("worker-use-ray", Off, PROCESSES),
];
