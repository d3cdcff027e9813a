//! The table of flags that do something, by topic, each topic sorted by name.

use super::{Flag, Group, To, value::Kind};

const fn flag(name: &'static str, kind: Kind, default: &'static str, to: To, help: &'static str) -> Flag {
    Flag { name, aliases: &[], kind, default, to, help }
}

const ALL: To = To::GATEWAY.and(To::TOKENIZER).and(To::SCHEDULER).and(To::WORKER).and(To::DETOKENIZER);
const COUNT: Kind = up_to(u32::MAX);
const FROM_ZERO: Kind = Kind::Count { least: 0, most: u32::MAX as i64 };
const SIZE: Kind = Kind::Size { most: u64::MAX };
/// Sequences at the same time, which devices have a bound for.
const SEQUENCES: u32 = 65_535;

const fn up_to(most: u32) -> Kind {
    Kind::Count { least: 1, most: most as i64 }
}

/// All flags, in the order of the help text.
pub(super) const GROUPS: &[Group] = &[
    Group { title: "Model", flags: MODEL },
    Group { title: "Chat", flags: CHAT },
    Group { title: "Memory", flags: MEMORY },
    Group { title: "Scheduling", flags: SCHEDULING },
    Group { title: "Parallelism", flags: PARALLELISM },
    Group { title: "HTTP server", flags: HTTP },
    Group { title: "Answers", flags: ANSWERS },
    Group { title: "Logs and traces", flags: LOGS },
];

#[rustfmt::skip]
const MODEL: &[Flag] = &[
    flag("config", Kind::Text, "", To::SERVE, "YAML file with flags by their long names; the command line wins over it"),
    flag("cudagraph-capture-sizes", Kind::Counts { most: SEQUENCES }, "1, 2, 4, 8, 16, ...", To::WORKER, "Sequences of the decode steps that a GPU records and replays; others are padded to the next of them"),
    flag("device", Kind::Choice(&["auto", "cpu", "cuda"]), "auto", To::WORKER, "What to compute on; auto: a GPU where one can be used"),
    flag("download-dir", Kind::Text, "the hub cache", To::SERVE, "Folder for downloaded models"),
    flag("dtype", Kind::Choice(&["auto", "bfloat16", "half", "float16", "float", "float32"]), "auto", To::WORKER, "Number type of weights and computation; auto: the model's"),
    flag("enforce-eager", Kind::Switch, "off", To::WORKER, "Run every step kernel by kernel, instead of recording decode steps (CUDA graphs)"),
    flag("hf-token", Kind::Text, "HF_TOKEN", To::SERVE, "Hugging Face token for gated models"),
    flag("load-format", Kind::Choice(&["auto", "hf", "safetensors", "pt", "gguf", "dummy"]), "auto", To::SERVE, "How weights must be stored; auto: whatever there is, dummy: random weights from config.json alone"),
    flag("max-cudagraph-capture-size", up_to(SEQUENCES), "512", To::WORKER, "Sequences of the largest decode step that a GPU records"),
    flag("max-model-len", Kind::MaxLen, "the model's", To::SCHEDULER.and(To::TOKENIZER).and(To::WORKER), "Longest prompt and answer together, in tokens (16k, 1M); auto or -1: what memory allows"),
    flag("model", Kind::Text, "wren, built in", To::SERVE, "The model, as the positional MODEL"),
    Flag { aliases: &["-q"], ..flag("quantization", Kind::Choice(&["none", "compressed-tensors", "fp8", "gguf", "mxfp4"]), "the checkpoint's", To::WORKER, "How the checkpoint must be quantised; it is refused where it is another") },
    flag("revision", Kind::Text, "main", To::SERVE, "Branch, tag or commit of a Hugging Face model"),
    flag("seed", Kind::Count { least: 0, most: i64::MAX }, "0", To::SCHEDULER.and(To::WORKER), "Seeds the seeds of requests that bring none, and dummy weights"),
    flag("served-model-name", Kind::List, "MODEL", To::GATEWAY, "Names that clients may use for the model; the first is echoed"),
    flag("single-kernel-decode", Kind::Toggle, "auto", To::WORKER, "Decode a single sequence by one kernel a step wherever one can do it (Hopper and later); auto: where it is measured to be faster"),
    flag("tokenizer", Kind::Text, "MODEL", To::SERVE, "Folder or Hugging Face id of another tokenizer"),
];

#[rustfmt::skip]
const CHAT: &[Flag] = &[
    flag("chat-template", Kind::Text, "the model's", To::TOKENIZER, "Chat template: a file, or the template itself"),
    flag("chat-template-content-format", Kind::Choice(&["auto", "string", "openai"]), "auto", To::TOKENIZER, "How the template reads a message's content"),
    flag("default-chat-template-kwargs", Kind::Json, "{}", To::GATEWAY, "Template variables that requests may override"),
    flag("exclude-tools-when-tool-choice-none", Kind::Switch, "off", To::GATEWAY, "Leave tools out of the prompt when tool_choice is none"),
    flag("response-role", Kind::Text, "assistant", To::GATEWAY, "Role of generated messages"),
    flag("trust-request-chat-template", Kind::Switch, "off", To::GATEWAY, "Let requests bring their own chat template"),
];

#[rustfmt::skip]
const MEMORY: &[Flag] = &[
    flag("block-size", up_to(256), "16", To::WORKER, "Tokens per KV block"),
    flag("enable-prefix-caching", Kind::Toggle, "on", To::SCHEDULER, "Reuse the KV blocks of equal prompt beginnings"),
    flag("gpu-memory-utilization", Kind::Share, "0.92", To::WORKER, "Share of the device's memory to use"),
    flag("kv-cache-dtype", Kind::Choice(&["auto", "bfloat16", "float16", "fp8", "fp8_e4m3"]), "auto", To::WORKER, "What keys and values are kept in; auto: as computed, fp8: 8-bit floats, for twice the tokens"),
    flag("kv-cache-memory-bytes", SIZE, "measured", To::WORKER, "Memory of the KV cache per worker, instead of measuring (4G)"),
    flag("num-gpu-blocks-override", COUNT, "measured", To::WORKER, "Number of KV blocks, instead of measuring"),
];

#[rustfmt::skip]
const SCHEDULING: &[Flag] = &[
    flag("async-scheduling", Kind::Toggle, "on", To::SCHEDULER, "Plan the next step while this one runs"),
    flag("enable-chunked-prefill", Kind::Toggle, "on", To::SCHEDULER, "Compute long prompts in chunks, beside running decodes"),
    flag("long-prefill-token-threshold", FROM_ZERO, "0", To::SCHEDULER, "Longest prefill chunk while others decode; 0: chosen by the scheduler"),
    flag("max-num-batched-tokens", Kind::Size { most: 1 << 20 }, "2048", To::SCHEDULER.and(To::WORKER), "Tokens in one step at most"),
    flag("max-num-queued-reqs", COUNT, "no bound", To::SCHEDULER, "Requests that may wait; one more gets a 503"),
    flag("max-num-queued-tokens", SIZE, "no bound", To::SCHEDULER, "Prompt tokens that may wait; more get a 503"),
    flag("max-num-seqs", up_to(SEQUENCES), "256", To::SCHEDULER.and(To::WORKER), "Sequences that run at the same time at most"),
    flag("max-prefill-tokens-beside-decodes", FROM_ZERO, "512, or what 100 ms (125 beside at most 12 decodes) have time for up to 6144, or up to 48 for each decode within 150 ms", To::SCHEDULER, "Prompt tokens in a step beside running decodes at most; 0: no such bound"),
    flag("scheduling-policy", Kind::Choice(&["fcfs", "priority"]), "fcfs", To::SCHEDULER, "Who runs first: in order of arrival, or by the request's priority"),
    flag("step-timeout", Kind::Seconds, "60 on GPUs, 600 on CPUs", To::SCHEDULER, "Seconds that a step may take before its workers count as hung; compiling kernels does not count (also VLLM_ENGINE_ITERATION_TIMEOUT_S)"),
    flag("stream-interval", COUNT, "1", To::GATEWAY, "Tokens per streamed event"),
    flag("watermark", Kind::Fraction, "0", To::SCHEDULER, "Share of KV blocks kept free when new requests are admitted"),
];

#[rustfmt::skip]
const PARALLELISM: &[Flag] = &[
    Flag { aliases: &["-asc"], ..flag("api-server-count", COUNT, "1", To::SERVE, "Gateways that share the port") },
    flag("cpu-threads", COUNT, "cores / workers", To::SERVE, "Threads of each worker"),
    flag("disable-custom-all-reduce", Kind::Switch, "off", To::WORKER, "Leave small messages between GPUs to NCCL too"),
    Flag { aliases: &["-tp"], ..flag("tensor-parallel-size", up_to(64), "1", To::SCHEDULER.and(To::WORKER), "Workers that each hold one slice of the model") },
    flag("tokenizer-pool-size", up_to(256), "CPUs, 2 to 8", To::TOKENIZER, "Threads that render templates and encode text"),
];

#[rustfmt::skip]
const HTTP: &[Flag] = &[
    flag("allow-credentials", Kind::Switch, "off", To::GATEWAY, "Let browsers send credentials"),
    flag("allowed-headers", Kind::Json, "[\"*\"]", To::GATEWAY, "Headers that browsers may send"),
    flag("allowed-methods", Kind::Json, "[\"*\"]", To::GATEWAY, "Methods that browsers may use"),
    flag("allowed-origins", Kind::Json, "[]", To::GATEWAY, "Origins that browsers may call from"),
    flag("api-key", Kind::List, "none", To::SERVE, "Keys that clients may present (also QUIRE_API_KEY)"),
    flag("host", Kind::Text, "0.0.0.0", To::GATEWAY, "Address to listen at"),
    flag("http-keep-alive", Kind::Seconds, "5", To::GATEWAY, "Seconds that an idle connection is kept"),
    flag("max-body-bytes", SIZE, "32M", To::GATEWAY, "Largest request body"),
    flag("max-connections", COUNT, "65536", To::GATEWAY, "Connections open at the same time"),
    flag("max-inflight", COUNT, "16384", To::GATEWAY, "Requests in flight per gateway; more get a 503"),
    flag("port", Kind::Count { least: 0, most: 65_535 }, "8000", To::SERVE, "Port to listen at; 0: any that is free"),
    flag("root-path", Kind::Text, "", To::GATEWAY, "Path prefix that a proxy in front adds"),
    flag("shutdown-timeout", Kind::Seconds, "30", To::GATEWAY, "Seconds that running requests get to finish at shutdown"),
    flag("ssl-ca-certs", Kind::Text, "", To::GATEWAY, "Certificates that sign clients, PEM"),
    flag("ssl-cert-reqs", Kind::Choice(&["0", "1", "2"]), "0", To::GATEWAY, "Whether clients need a certificate: 0 no, 1 if they have one, 2 yes"),
    flag("ssl-certfile", Kind::Text, "", To::GATEWAY, "TLS certificate chain, PEM"),
    flag("ssl-keyfile", Kind::Text, "", To::GATEWAY, "Private key of the certificate, PEM"),
    flag("uds", Kind::Text, "", To::GATEWAY, "Listen on this Unix socket instead of a port"),
];

#[rustfmt::skip]
const ANSWERS: &[Flag] = &[
    flag("enable-force-include-usage", Kind::Switch, "off", To::GATEWAY, "Send usage in every stream"),
    flag("enable-prompt-tokens-details", Kind::Switch, "off", To::GATEWAY, "Report cached prompt tokens in usage"),
    flag("enable-request-id-headers", Kind::Switch, "off", To::GATEWAY, "Answer with an X-Request-Id header"),
    flag("enable-server-load-tracking", Kind::Switch, "off", To::GATEWAY, "Count requests for /load"),
    flag("generation-config", Kind::Choice(&["auto", "vllm"]), "auto", To::GATEWAY, "Where sampling defaults come from; auto: generation_config.json, vllm: none"),
    flag("max-logprobs", Kind::Count { least: -1, most: i32::MAX as i64 }, "20", To::GATEWAY, "Most log-probabilities a request may ask for; -1: any number"),
    flag("override-generation-config", Kind::Json, "{}", To::GATEWAY, "Sampling defaults that replace the model's"),
    flag("return-tokens-as-token-ids", Kind::Switch, "off", To::GATEWAY, "Show tokens as token_id:N in log-probabilities"),
    flag("sse-keep-alive-interval", Kind::Seconds, "0", To::GATEWAY, "Seconds between keep-alive comments in a silent stream; 0: none"),
];

#[rustfmt::skip]
const LOGS: &[Flag] = &[
    flag("disable-log-stats", Kind::Switch, "off", To::SCHEDULER, "Leave out the line of statistics every ten seconds"),
    flag("disable-uvicorn-access-log", Kind::Switch, "off", To::GATEWAY, "Log no line per HTTP request"),
    flag("enable-log-outputs", Kind::Switch, "off", To::GATEWAY, "Log answers"),
    flag("enable-log-requests", Kind::Switch, "off", To::GATEWAY, "Log requests"),
    flag("log-format", Kind::Choice(&["text", "json"]), "text", ALL, "How log lines look"),
    flag("log-level", Kind::Text, "info", ALL, "error, warn, info, debug, trace, or a filter such as info,scheduler_svc=debug"),
    flag("max-log-len", FROM_ZERO, "all", To::GATEWAY, "Characters of a prompt or answer to log"),
    flag("otlp-traces-endpoint", Kind::Text, "", ALL, "Send one span tree per request to this OTLP/gRPC collector"),
];
