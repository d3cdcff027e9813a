//! Flags of vLLM that have no effect here: known by name, so that a command line written for it works or fails with a reason.
//!
//! One that asks for what Quire does not do yet is refused, unless its value is the default. Nothing that changes answers is ever
//! accepted and ignored.

/// One flag.
pub(super) struct Foreign {
    pub(super) name: &'static str,
    pub(super) aliases: &'static [&'static str],
    pub(super) takes: Takes,
}

/// What it takes, and what of that is fine.
pub(super) enum Takes {
    /// A switch whose off position is what Quire does.
    Off,
    /// A switch whose both positions come to the same here.
    Either,
    /// A value; these are what Quire does.
    Only(&'static [&'static str]),
    /// A value that makes no difference here.
    Any,
}

use Takes::{Any, Either, Off, Only};

const fn flag(name: &'static str, takes: Takes) -> Foreign {
    Foreign { name, aliases: &[], takes }
}

const fn short(name: &'static str, aliases: &'static [&'static str], takes: Takes) -> Foreign {
    Foreign { name, aliases, takes }
}

/// Sorted by name. `Either` and `Any` need a reason: no model code is ever run, metrics and logs
/// have flags of their own, Quire's API needs no web framework.
pub(super) const FOREIGN: &[Foreign] = &[
    flag("additional-config", Only(&["{}"])),
    flag("all2all-backend", Any),
    flag("allowed-local-media-path", Only(&[""])),
    flag("allowed-media-domains", Only(&[])),
    flag("attention-backend", Only(&["auto"])),
    flag("calculate-kv-scales", Off),
    flag("code-revision", Any),
    flag("collect-detailed-traces", Only(&[])),
    short("compilation-config", &["-cc"], Only(&["{}", "0"])),
    flag("config-format", Only(&["auto", "hf"])),
    flag("convert", Only(&["auto", "none"])),
    flag("cpu-offload-gb", Only(&["0"])),
    flag("custom-histogram-buckets", Only(&[])),
    flag("data-parallel-address", Any),
    flag("data-parallel-backend", Only(&["mp"])),
    flag("data-parallel-external-lb", Off),
    flag("data-parallel-hybrid-lb", Off),
    flag("data-parallel-rank", Only(&["0"])),
    flag("data-parallel-rpc-port", Any),
    short("data-parallel-size", &["-dp"], Only(&["1"])),
    flag("data-parallel-size-local", Only(&["1"])),
    flag("data-parallel-start-rank", Only(&["0"])),
    flag("decode-context-parallel-size", Only(&["1"])),
    flag("disable-fastapi-docs", Either),
    flag("disable-frontend-multiprocessing", Off),
    flag("disable-hybrid-kv-cache-manager", Either),
    flag("disable-log-requests", Either),
    flag("distributed-executor-backend", Only(&["mp"])),
    flag("distributed-timeout-seconds", Only(&[])),
    flag("enable-auto-tool-choice", Off),
    flag("enable-eplb", Off),
    flag("enable-expert-parallel", Off),
    flag("enable-lora", Off),
    flag("enable-mfu-metrics", Off),
    flag("enable-per-request-metrics", Off),
    flag("enable-prompt-embeds", Off),
    flag("enable-scale-out", Off),
    flag("enable-sleep-mode", Off),
    flag("enable-tokenizer-info-endpoint", Off),
    flag("fingerprint-mode", Only(&["full"])),
    flag("fully-sharded-loras", Off),
    flag("grpc-port", Only(&[])),
    flag("headless", Off),
    flag("hf-config-path", Only(&[])),
    flag("hf-overrides", Only(&["{}"])),
    flag("kv-cache-metrics", Off),
    flag("kv-events-config", Only(&[])),
    flag("kv-offloading-backend", Any),
    flag("kv-offloading-size", Only(&["0"])),
    flag("kv-transfer-config", Only(&[])),
    flag("language-model-only", Either),
    flag("limit-mm-per-prompt", Only(&["{}"])),
    flag("log-config-file", Only(&[])),
    flag("logits-processors", Only(&[])),
    flag("logprobs-mode", Only(&["raw_logprobs"])),
    flag("lora-dtype", Any),
    flag("lora-modules", Only(&[])),
    flag("master-addr", Any),
    flag("master-port", Any),
    flag("max-cpu-loras", Any),
    flag("max-lora-rank", Any),
    flag("max-loras", Any),
    flag("media-io-kwargs", Only(&["{}"])),
    flag("middleware", Only(&["[]"])),
    flag("mm-encoder-tp-mode", Any),
    flag("mm-processor-cache-gb", Any),
    flag("mm-processor-kwargs", Only(&["{}"])),
    flag("model-impl", Only(&["auto"])),
    flag("nnodes", Only(&["1"])),
    flag("node-rank", Only(&["0"])),
    flag("numa-bind", Off),
    short("optimization-level", &["-O"], Any),
    flag("performance-mode", Only(&["balanced"])),
    short("pipeline-parallel-size", &["-pp"], Only(&["1"])),
    flag("pooler-config", Only(&[])),
    flag("prefill-context-parallel-size", Only(&["1"])),
    flag("prefix-caching-hash-algo", Only(&["sha256"])),
    flag("profiler-config", Only(&["{}"])),
    flag("reasoning-parser", Only(&[""])),
    flag("runner", Only(&["auto", "generate"])),
    flag("show-hidden-metrics-for-version", Only(&[])),
    flag("skip-mm-profiling", Either),
    flag("skip-tokenizer-init", Off),
    short("speculative-config", &["-sc"], Only(&[])),
    flag("structured-outputs-config", Only(&["{}"])),
    flag("structured-outputs-config.backend", Only(&["auto"])),
    flag("swap-space", Any),
    flag("task", Only(&["auto", "generate"])),
    flag("tokenizer-mode", Only(&["auto", "hf"])),
    flag("tokenizer-revision", Only(&["main"])),
    flag("tokens-only", Off),
    flag("tool-call-parser", Only(&[""])),
    flag("tool-parser-plugin", Only(&[""])),
    flag("tool-server", Only(&[])),
    flag("trust-remote-code", Either),
    flag("uvicorn-log-level", Only(&["info"])),
];
