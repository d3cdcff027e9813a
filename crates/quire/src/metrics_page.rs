//! docs/metrics.md, made from the tables of metrics of all processes.

use std::fmt::Write;

use service_kit::metrics::Description;

const INTRO: &str = "\
# Metrics

`GET /metrics` answers with the metrics of all processes of the engine as one text for Prometheus. Series that several
processes report alike are added up. This page is made from the processes' own tables by `cargo xtask docs`; a test
keeps it fresh, and another compares it with what a running server shows.

Names and buckets of `vllm:` series are vLLM's; `engine` is always `0`. `quire:` series are Quire's own. A histogram has
the series `…_bucket` (with the label `le`), `…_sum` and `…_count`.

| metric | type | labels | what it says | process |
|---|---|---|---|---|
";

const OUTRO: &str = "
## Metrics of vLLM that are not here

| metric | why |
|---|---|
";

const NO_CONNECTOR: &str = "No KV connector can be attached: `--kv-transfer-config` is refused.";

/// Metrics of vLLM without a counterpart, and why. A name may end in `*`.
const ABSENT: [(&str, &str); 28] = [
    (
        "vllm:avg_generation_throughput_toks_per_s",
        "As in vLLM now: take the rate of `vllm:generation_tokens_total`, or that line.",
    ),
    (
        "vllm:avg_prompt_throughput_toks_per_s",
        "As in vLLM now: take the rate of `vllm:prompt_tokens_total`, or the line of statistics in the log.",
    ),
    ("vllm:corrupted_requests_total", "Logits are not searched for NaN (`VLLM_COMPUTE_NANS_IN_LOGITS`)."),
    ("vllm:cpu_cache_usage_perc", "As in vLLM now: KV blocks stay in device memory."),
    ("vllm:diffusion_*", "No model is denoised."),
    (
        "vllm:estimated_*",
        "Operations and bytes are not estimated: `--enable-mfu-metrics` is refused; `quire bench latency \
     --profile` measures.",
    ),
    ("vllm:external_prefix_cache_*", "No cache outside the engine can be attached."),
    ("vllm:gpu_cache_usage_perc", "vLLM's older name of `vllm:kv_cache_usage_perc`."),
    ("vllm:gpu_prefix_cache_*", "vLLM's older names of `vllm:prefix_cache_hits_total` and `…_queries_total`."),
    ("vllm:hf3fs_*", NO_CONNECTOR),
    ("vllm:hisparse_*", NO_CONNECTOR),
    ("vllm:kv_block_idle_before_evict_seconds", "Blocks are not sampled: `--kv-cache-metrics` is refused."),
    ("vllm:kv_block_lifetime_seconds", "The same."),
    ("vllm:kv_block_reuse_gap_seconds", "The same."),
    ("vllm:kv_offload_*", "KV blocks stay in device memory: `--kv-offloading-size` is refused."),
    ("vllm:mm_cache_*", "Prompts hold no images, videos or sounds."),
    ("vllm:mooncake_*", NO_CONNECTOR),
    ("vllm:nixl_*", NO_CONNECTOR),
    ("vllm:num_requests_kv_fetch_by_stage", "No KV cache is fetched from elsewhere."),
    ("vllm:num_requests_swapped", "As in vLLM now: preempted sequences are computed again, not swapped."),
    ("vllm:rl_weight_update_*", "Weights of a running engine are not replaced."),
    ("vllm:simple_kv_offload_*", "As `vllm:kv_offload_*`."),
    ("vllm:sleep_mode_*", "The engine does not sleep: `--enable-sleep-mode` is refused."),
    ("vllm:spec_decode_*", "Nothing is speculated: the scheduler verifies drafts, and no proposer is attached."),
    ("vllm:time_per_output_token_seconds", "vLLM's older name of `vllm:inter_token_latency_seconds`."),
    ("vllm:umbp_transfer_*", NO_CONNECTOR),
    ("vllm:watermark_requests_total", "Texts get no watermark; `--watermark` is a share of the KV blocks."),
    ("vllm:websocket_*", "There is no WebSocket: `/v1/realtime` is refused."),
];

/// A metric, and the processes that have it.
struct Row {
    of: Description,
    processes: Vec<&'static str>,
}

fn rows() -> Vec<Row> {
    let processes = [
        ("gateway", api_gateway::metrics()),
        ("tokenizer", tokenizer_svc::metrics()),
        ("scheduler", scheduler_svc::metrics()),
        ("worker", worker_svc::metrics()),
        ("detokenizer", detokenizer_svc::metrics()),
    ];
    let mut rows: Vec<Row> = Vec::new();
    for (process, metrics) in processes {
        for of in metrics {
            match rows.iter_mut().find(|row| row.of.name == of.name) {
                Some(row) => {
                    assert_eq!((row.of.kind, &row.of.labels), (of.kind, &of.labels), "{} has two shapes", of.name);
                    row.processes.push(process);
                }
                None => rows.push(Row { of, processes: vec![process] }),
            }
        }
    }
    // vLLM's first.
    rows.sort_by_key(|row| (!row.of.name.starts_with("vllm:"), row.of.name.clone()));
    rows
}

fn page() -> String {
    let mut page = INTRO.to_owned();
    for Row { of: Description { name, kind, labels, help }, processes } in rows() {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (labels, processes) = (labels.join(", "), processes.join(", "));
        writeln!(page, "| `{name}` | {kind} | {labels} | {help} | {processes} |").unwrap();
    }
    page.push_str(OUTRO);
    for (name, why) in ABSENT {
        writeln!(page, "| `{name}` | {why} |").unwrap();
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_absent_is_not_there() {
        for (name, _) in ABSENT {
            let is_it =
                |row: &&Row| name.strip_suffix('*').map_or(row.of.name == name, |it| row.of.name.starts_with(it));
            assert!(rows().iter().find(is_it).is_none(), "{name} is there");
        }
    }

    /// `cargo xtask docs` runs this with leave to write.
    #[test]
    fn metrics_page_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let page = page();
        if std::env::var_os("QUIRE_WRITE_DOCS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(stored == page, "docs/metrics.md is not what the tables say: run `cargo xtask docs`");
    }
}
