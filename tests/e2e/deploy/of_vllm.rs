//! Queries as dashboards made for vLLM have them, written from the names of its metrics: they must work unchanged.

/// What such dashboards filter by: variables that they fill from labels.
const SELECTED: &str = r#"job=~"quire",model_name=~"wren",instance=~".+:.+",engine=~"0""#;
/// Of metrics of HTTP, which know no model.
const HTTP: &str = r#"job=~"quire",instance=~".+:.+""#;

const GAUGES: &[&str] = &[
    "vllm:engine_sleep_state{sleep_state=\"awake\",",
    "vllm:kv_cache_usage_perc{",
    "vllm:num_requests_running{",
    "vllm:num_requests_waiting{",
    "vllm:num_requests_waiting_by_reason{reason=\"capacity\",",
    "vllm:num_requests_waiting_by_reason{reason=\"deferred\",",
];

const COUNTERS: &[&str] = &[
    "vllm:generation_tokens_total{",
    "vllm:num_preemptions_total{",
    "vllm:prefix_cache_hits_total{",
    "vllm:prefix_cache_queries_total{",
    "vllm:prompt_tokens_by_source_total{source=\"external_kv_transfer\",",
    "vllm:prompt_tokens_by_source_total{source=\"local_cache_hit\",",
    "vllm:prompt_tokens_by_source_total{source=\"local_compute\",",
    "vllm:prompt_tokens_cached_total{",
    "vllm:prompt_tokens_total{",
    "vllm:request_success_total{finished_reason=\"error\",",
    "vllm:request_success_total{finished_reason=\"length\",",
    "vllm:request_success_total{finished_reason=\"stop\",",
];

/// A histogram, and the border of one of its buckets as vLLM writes it: dashboards name it in the label `le`.
const HISTOGRAMS: &[(&str, &str)] = &[
    ("vllm:e2e_request_latency_seconds", "1.0"),
    ("vllm:inter_token_latency_seconds", "0.1"),
    ("vllm:iteration_tokens_total", "8.0"),
    ("vllm:request_decode_time_seconds", "0.3"),
    ("vllm:request_generation_tokens", "20.0"),
    ("vllm:request_inference_time_seconds", "2.5"),
    ("vllm:request_max_num_generation_tokens", "100.0"),
    ("vllm:request_params_max_tokens", "20.0"),
    ("vllm:request_params_n", "1.0"),
    ("vllm:request_prefill_kv_computed_tokens", "1000.0"),
    ("vllm:request_prefill_time_seconds", "0.3"),
    ("vllm:request_prompt_tokens", "100.0"),
    ("vllm:request_queue_time_seconds", "5.0"),
    ("vllm:request_time_per_output_token_seconds", "0.025"),
    ("vllm:time_to_first_token_seconds", "1.0"),
];

/// All of them.
pub(super) fn queries() -> Vec<String> {
    let mut all = vec![
        // Variables, and tables of settings.
        "group by (job, model_name, instance, engine) (vllm:num_requests_running)".to_owned(),
        format!("count by (model_name) (last_over_time(vllm:num_requests_running{{{SELECTED}}}[1m]))"),
        format!("max by (block_size, num_gpu_blocks) (vllm:cache_config_info{{{SELECTED}}})"),
        format!("sum by (finished_reason) (increase(vllm:request_success_total{{{SELECTED}}}[10s]))"),
        format!(
            "(sum(rate(http_requests_total{{{HTTP},status=\"5xx\"}}[10s])) or vector(0)) \
             / (sum(rate(http_requests_total{{{HTTP}}}[10s])) > 0)"
        ),
        format!("sum by (handler, status) (rate(http_requests_total{{{HTTP}}}[10s]))"),
        "count(up{job=~\"quire\"} == 1)".to_owned(),
    ];
    all.push(mean("http_request_duration_seconds", HTTP, "by (handler)"));
    for gauge in GAUGES {
        all.push(format!("max by (instance, engine) ({gauge}{SELECTED}}})"));
        all.push(format!("sum(avg_over_time({gauge}{SELECTED}}}[10s]))"));
    }
    all.extend(COUNTERS.iter().map(|counter| format!("sum(rate({counter}{SELECTED}}}[10s]))")));
    for (histogram, border) in HISTOGRAMS {
        all.push(mean(histogram, SELECTED, ""));
        let buckets = format!("sum by (le) (rate({histogram}_bucket{{{SELECTED}}}[10s]))");
        all.extend(["0.5", "0.9", "0.95", "0.99"].map(|share| format!("histogram_quantile({share}, {buckets})")));
        all.push(buckets);
        // The share of requests that keep a promise.
        let kept = format!("sum(rate({histogram}_bucket{{{SELECTED},le=\"{border}\"}}[10s]))");
        all.push(format!("{kept} / (sum(rate({histogram}_count{{{SELECTED}}}[10s])) > 0)"));
    }
    all
}

fn mean(histogram: &str, selected: &str, by: &str) -> String {
    let rate = |end: &str| format!("sum {by} (rate({histogram}_{end}{{{selected}}}[10s]))");
    format!("{} / ({} > 0)", rate("sum"), rate("count"))
}
