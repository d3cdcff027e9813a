//! Which flags of the processes `quire serve` has, by topic, each topic sorted by name. What a flag takes and does is
//! in the `config.rs` of the first process that is named here.

use super::To;

/// Flags that belong together.
pub(super) struct Topic {
    pub(super) title: &'static str,
    pub(super) flags: &'static [Entry],
}

/// One flag of a topic.
pub(super) struct Entry {
    /// Long name without dashes.
    pub(super) name: &'static str,
    /// vLLM's short spellings.
    pub(super) aliases: &'static [&'static str],
    /// The processes that have it.
    pub(super) of: To,
    /// Those that get it as given.
    pub(super) to: To,
}

/// Passed to these processes as it is given.
const fn to(processes: To, name: &'static str) -> Entry {
    Entry { name, aliases: &[], of: processes, to: processes }
}

/// Used by `quire serve`; passed on in another form to the process that describes it, or to none.
const fn used(described_by: To, name: &'static str) -> Entry {
    Entry { name, aliases: &[], of: described_by, to: To::SERVE }
}

const GATEWAY: To = To::GATEWAY;
const SCHEDULER: To = To::SCHEDULER;
const SERVE: To = To::SERVE;
const TOKENIZER: To = To::TOKENIZER;
const WORKER: To = To::WORKER;
const GROUP: To = WORKER.and(SCHEDULER);
const ALL: To = GROUP.and(TOKENIZER).and(GATEWAY).and(To::DETOKENIZER);

/// All flags, in the order of the help text.
pub(super) const TOPICS: &[Topic] = &[
    Topic {
        title: "Model",
        flags: &[
            to(WORKER, "attention-backend"),
            used(SERVE, "config"),
            to(WORKER, "convert"),
            to(WORKER, "cudagraph-capture-sizes"),
            to(WORKER, "device"),
            to(WORKER, "disable-cascade-attn"),
            used(SERVE, "download-dir"),
            to(WORKER, "dtype"),
            to(WORKER, "enforce-eager"),
            used(SERVE, "hf-overrides"),
            used(SERVE, "hf-token"),
            to(WORKER, "load-format"),
            to(WORKER, "max-cudagraph-capture-size"),
            to(GROUP.and(TOKENIZER), "max-model-len"),
            used(SERVE, "model"),
            to(WORKER, "pooler-config"),
            Entry { aliases: &["-q"], ..to(WORKER, "quantization") },
            used(SERVE, "revision"),
            to(WORKER, "runner"),
            to(GROUP, "seed"),
            to(GATEWAY, "served-model-name"),
            to(WORKER, "single-kernel-decode"),
            to(WORKER, "task"),
            used(SERVE, "tokenizer"),
        ],
    },
    Topic {
        title: "Chat",
        flags: &[
            to(TOKENIZER, "chat-template"),
            to(TOKENIZER, "chat-template-content-format"),
            to(GATEWAY, "default-chat-template-kwargs"),
            to(GATEWAY, "exclude-tools-when-tool-choice-none"),
            to(GATEWAY, "reasoning-parser"),
            to(GATEWAY, "response-role"),
            to(GATEWAY, "tool-call-parser"),
            to(GATEWAY, "trust-request-chat-template"),
        ],
    },
    Topic {
        title: "Adapters",
        flags: &[
            to(GATEWAY, "allow-runtime-lora-updating"),
            to(GROUP.and(GATEWAY), "enable-lora"),
            to(WORKER, "enable-lora-experts"),
            to(WORKER, "enable-lora-modules-to-save"),
            to(SCHEDULER, "lora-dir"),
            to(WORKER, "lora-dtype"),
            to(GROUP, "lora-extra-vocab-size"),
            to(SCHEDULER, "lora-modules"),
            to(SCHEDULER, "max-cpu-loras"),
            to(WORKER, "max-lora-rank"),
            to(GROUP, "max-loras"),
        ],
    },
    Topic {
        title: "KV cache",
        flags: &[
            to(WORKER, "block-size"),
            to(SCHEDULER, "enable-prefix-caching"),
            to(WORKER, "gpu-memory-utilization"),
            to(WORKER, "kv-cache-dtype"),
            to(WORKER, "kv-cache-memory-bytes"),
            to(SCHEDULER, "kv-events-config"),
            to(WORKER, "mamba-cache-dtype"),
            to(WORKER, "mamba-ssm-cache-dtype"),
            to(WORKER, "num-gpu-blocks-override"),
        ],
    },
    Topic {
        title: "Scheduling",
        flags: &[
            to(SCHEDULER, "async-scheduling"),
            to(SCHEDULER, "enable-chunked-prefill"),
            to(SCHEDULER, "enable-jump-forward"),
            to(SCHEDULER, "long-prefill-token-threshold"),
            to(SCHEDULER, "max-n-sequences"),
            to(GROUP, "max-num-batched-tokens"),
            to(SCHEDULER, "max-num-queued-reqs"),
            to(SCHEDULER, "max-num-queued-tokens"),
            to(GROUP, "max-num-seqs"),
            to(SCHEDULER, "max-prefill-tokens-beside-decodes"),
            to(SCHEDULER, "scheduling-policy"),
            to(SCHEDULER, "step-timeout"),
            to(GATEWAY, "stream-interval"),
            to(SCHEDULER, "watermark"),
        ],
    },
    Topic {
        title: "Parallelism",
        flags: &[
            Entry { aliases: &["-asc"], ..used(SERVE, "api-server-count") },
            to(WORKER, "cpu-threads"),
            used(SERVE, "data-parallel-external-lb"),
            to(TOKENIZER, "data-parallel-policy"),
            used(SCHEDULER, "data-parallel-rank"),
            Entry { aliases: &["-dp"], ..used(SERVE, "data-parallel-size") },
            used(SERVE, "data-parallel-size-local"),
            to(WORKER, "disable-custom-all-reduce"),
            to(GROUP, "distributed-timeout-seconds"),
            used(SERVE, "headless"),
            to(ALL, "link-ssl-ca-certs"),
            to(ALL, "link-ssl-certfile"),
            to(ALL, "link-ssl-keyfile"),
            to(ALL, "link-token-file"),
            used(SERVE, "listen-gateways"),
            used(SERVE, "master-addr"),
            used(SERVE, "master-port"),
            to(WORKER, "max-cpu-isa"),
            used(SERVE, "nnodes"),
            used(SERVE, "node-interface"),
            used(SERVE, "node-ip"),
            Entry { aliases: &["-r"], ..used(SERVE, "node-rank") },
            to(WORKER, "pipeline-layer-partition"),
            Entry { aliases: &["-pp"], ..to(GROUP, "pipeline-parallel-size") },
            Entry { aliases: &["-tp"], ..to(GROUP, "tensor-parallel-size") },
            to(TOKENIZER, "tokenizer-pool-size"),
        ],
    },
    Topic {
        title: "HTTP server",
        flags: &[
            to(GATEWAY, "allow-credentials"),
            to(GATEWAY, "allowed-headers"),
            to(GATEWAY, "allowed-methods"),
            to(GATEWAY, "allowed-origins"),
            used(GATEWAY, "api-key"),
            to(GATEWAY, "disable-fastapi-docs"),
            to(GATEWAY, "enable-tokenizer-info-endpoint"),
            used(SERVE, "engine-ready-timeout"),
            to(GATEWAY, "host"),
            to(GATEWAY, "http-keep-alive"),
            to(GATEWAY, "max-body-bytes"),
            to(GATEWAY, "max-connections"),
            to(GATEWAY, "max-inflight"),
            to(GATEWAY, "max-stored-response-bytes"),
            to(GATEWAY, "max-stored-responses"),
            used(GATEWAY, "port"),
            to(GATEWAY, "profiler-config"),
            to(GATEWAY, "root-path"),
            to(GATEWAY, "server-dev-mode"),
            to(GATEWAY.and(SCHEDULER), "shutdown-timeout"),
            to(GATEWAY, "ssl-ca-certs"),
            to(GATEWAY, "ssl-cert-reqs"),
            to(GATEWAY, "ssl-certfile"),
            to(GATEWAY, "ssl-keyfile"),
            to(GATEWAY, "uds"),
        ],
    },
    Topic {
        title: "Responses",
        flags: &[
            to(GATEWAY, "enable-force-include-usage"),
            to(GATEWAY, "enable-per-request-metrics"),
            to(GATEWAY, "enable-prompt-tokens-details"),
            to(GATEWAY, "enable-request-id-headers"),
            to(GATEWAY, "generation-config"),
            to(GATEWAY, "max-logprobs"),
            to(GATEWAY, "override-generation-config"),
            to(GATEWAY, "return-tokens-as-token-ids"),
            to(GATEWAY, "sse-keep-alive-interval"),
        ],
    },
    Topic {
        title: "Logs and traces",
        flags: &[
            to(SCHEDULER, "disable-log-stats"),
            to(GATEWAY, "disable-uvicorn-access-log"),
            to(GATEWAY, "enable-log-outputs"),
            to(GATEWAY, "enable-log-requests"),
            to(ALL, "log-format"),
            to(ALL, "log-level"),
            to(SCHEDULER, "log-stats-interval"),
            to(GATEWAY, "max-log-len"),
            to(ALL, "otlp-traces-endpoint"),
        ],
    },
];

/// Flags of processes that `quire serve` does not have: it decides them itself, or leaves them to those who start
/// processes by hand.
#[cfg(test)]
pub(super) const NOT_OF_SERVE: &[&str] = &[
    "body-timeout",
    "control",
    "cuda-library-path",
    "detokenizer",
    "detokenizer-control",
    "engine",
    "gateway-control",
    "kernel-cache",
    "listen",
    "listen-events",
    "listen-requests",
    "listen-stage",
    "listen-tokens",
    "listen-workers",
    "local-rank",
    "local-world-size",
    "max-pending-bytes",
    "max-pending-requests",
    "model-fingerprint",
    "operations-only",
    "rank",
    "reuse-port",
    "scheduler",
    "scheduler-control",
    "send-deadline-ms",
    "served-adapters-file",
    "server-id",
    "threads",
    "tokenizer-control",
    "worker-control",
];
