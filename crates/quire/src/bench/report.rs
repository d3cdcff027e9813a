//! Writes a run's figures, for people and as JSON, in the shape that `vllm bench serve` gives them.

use std::{fs, path::PathBuf};

use serde_json::{Map, Value, json};

use super::{
    args::{Backend, Metric, ServeArgs},
    measure::Outcome,
    statistics::{Distribution, Figures},
};

const WIDTH: usize = 50;

impl Metric {
    fn title(self) -> &'static str {
        match self {
            Self::Ttft => "Time to First Token",
            Self::Tpot => "Time per Output Token (excl. 1st token)",
            Self::Itl => "Inter-token Latency",
            Self::E2el => "End-to-end Latency",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Ttft => "TTFT",
            Self::Tpot => "TPOT",
            Self::Itl => "ITL",
            Self::E2el => "E2EL",
        }
    }

    fn key(self) -> String {
        self.name().to_ascii_lowercase()
    }
}

/// The report for people.
pub fn text(args: &ServeArgs, figures: &Figures) -> String {
    let mut text = format!("{:=^WIDTH$}\n", " Serving Benchmark Result ");
    let mut lines: Vec<(String, String)> = vec![
        ("Successful requests:".into(), figures.completed.to_string()),
        ("Failed requests:".into(), figures.failed.to_string()),
    ];
    if let Some(limit) = args.load.max_concurrency {
        lines.push(("Maximum request concurrency:".into(), limit.to_string()));
    }
    if args.load.request_rate.is_finite() {
        lines.push(("Request rate configured (RPS):".into(), two(args.load.request_rate)));
    }
    lines.extend([
        ("Benchmark duration (s):".into(), two(figures.duration_s)),
        ("Total input tokens:".into(), figures.input_tokens.to_string()),
    ]);
    if generates(args) {
        lines.push(("Total generated tokens:".into(), figures.output_tokens.to_string()));
    }
    lines.push(("Request throughput (req/s):".into(), two(figures.per_second(figures.completed))));
    if let Some(good) = figures.good {
        lines.push(("Request goodput (req/s):".into(), two(figures.per_second(good))));
    }
    if generates(args) {
        lines.extend([
            ("Output token throughput (tok/s):".into(), two(figures.per_second(figures.output_tokens))),
            ("Peak output token throughput (tok/s):".into(), two(figures.peak_tokens_per_s)),
        ]);
    }
    lines.extend([
        ("Peak concurrent requests:".into(), two(figures.peak_concurrent as f64)),
        (
            "Total token throughput (tok/s):".into(),
            two(figures.per_second(figures.input_tokens + figures.output_tokens)),
        ),
    ]);
    push(&mut text, &lines);
    for (metric, values) in shown(args, figures) {
        text.push_str(&format!("{:-^WIDTH$}\n", metric.title()));
        push(&mut text, &statistics(args, metric, values));
    }
    text + &"=".repeat(WIDTH)
}

fn push(text: &mut String, lines: &[(String, String)]) {
    for (label, value) in lines {
        text.push_str(&format!("{label:<40} {value}\n"));
    }
}

fn statistics(args: &ServeArgs, metric: Metric, values: &Distribution) -> Vec<(String, String)> {
    let name = metric.name();
    let mut lines = vec![
        (format!("Mean {name} (ms):"), two(values.mean())),
        (format!("Median {name} (ms):"), two(values.percentile(50.0))),
    ];
    for percent in &args.report.metric_percentiles {
        lines.push((format!("P{percent} {name} (ms):"), two(values.percentile(*percent))));
    }
    lines
}

fn shown<'a>(args: &'a ServeArgs, figures: &'a Figures) -> impl Iterator<Item = (Metric, &'a Distribution)> {
    let has = |metric: &Metric| generates(args) || *metric == Metric::E2el;
    let wanted = move |metric: &Metric| has(metric) && args.report.percentile_metrics.contains(metric);
    figures.distributions.iter().filter(move |(metric, _)| wanted(metric)).map(|(metric, values)| (*metric, values))
}

fn generates(args: &ServeArgs) -> bool {
    args.server.backend != Backend::OpenaiEmbeddings
}

fn two(value: f64) -> String {
    format!("{value:.2}")
}

/// The report for programs.
pub fn json(args: &ServeArgs, model: &str, unix_s: u64, figures: &Figures, outcomes: &[Outcome]) -> Value {
    let rate = args.load.request_rate;
    let mut report = Map::new();
    let mut put = |name: &str, value: Value| report.insert(name.to_owned(), value);
    put("date", json!(unix_s));
    put("backend", json!(backend(args)));
    put("model_id", json!(model));
    put("num_prompts", json!(args.load.num_prompts));
    put("request_rate", if rate.is_finite() { json!(rate) } else { json!("inf") });
    put("burstiness", json!(args.load.burstiness));
    put("max_concurrency", json!(args.load.max_concurrency));
    put("duration", json!(figures.duration_s));
    put("completed", json!(figures.completed));
    put("failed", json!(figures.failed));
    put("total_input_tokens", json!(figures.input_tokens));
    put("total_output_tokens", json!(figures.output_tokens));
    put("request_throughput", json!(figures.per_second(figures.completed)));
    put("request_goodput", json!(figures.good.map(|good| figures.per_second(good))));
    put("output_throughput", json!(figures.per_second(figures.output_tokens)));
    put("total_token_throughput", json!(figures.per_second(figures.input_tokens + figures.output_tokens)));
    put("max_output_tokens_per_s", json!(figures.peak_tokens_per_s));
    put("max_concurrent_requests", json!(figures.peak_concurrent));
    for (metric, values) in shown(args, figures) {
        let key = metric.key();
        put(&format!("mean_{key}_ms"), json!(values.mean()));
        put(&format!("median_{key}_ms"), json!(values.percentile(50.0)));
        put(&format!("std_{key}_ms"), json!(values.deviation()));
        for percent in &args.report.metric_percentiles {
            put(&format!("p{percent}_{key}_ms"), json!(values.percentile(*percent)));
        }
    }
    if args.report.save_detailed {
        details(&mut report, outcomes);
    }
    Value::Object(report)
}

fn details(report: &mut Map<String, Value>, outcomes: &[Outcome]) {
    let mut list = |name: &str, value: &dyn Fn(&Outcome) -> Value| {
        report.insert(name.to_owned(), outcomes.iter().map(value).collect());
    };
    list("input_lens", &|outcome| json!(outcome.input_tokens));
    list("output_lens", &|outcome| json!(outcome.output_tokens));
    list("start_times", &|outcome| json!(outcome.start.as_secs_f64()));
    list("ttfts", &|outcome| json!(outcome.ttft.unwrap_or_default().as_secs_f64()));
    list("itls", &|outcome| json!(outcome.gaps));
    list("errors", &|outcome| json!(outcome.error.clone().unwrap_or_default()));
}

/// Where the JSON report goes.
pub fn path(args: &ServeArgs, model: &str, unix_s: u64) -> PathBuf {
    let name = args.report.result_filename.clone().unwrap_or_else(|| {
        let model = model.rsplit('/').next().unwrap_or_default();
        let limit = args.load.max_concurrency.map_or(String::new(), |limit| format!("-concurrency{limit}"));
        format!("{}-{}qps{limit}-{model}-{unix_s}.json", backend(args), args.load.request_rate).into()
    });
    args.report.result_dir.join(name)
}

/// Writes the JSON report.
pub fn save(path: &PathBuf, report: &Value) -> std::io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::write(path, format!("{report}\n"))
}

fn backend(args: &ServeArgs) -> String {
    use clap::ValueEnum;
    args.server.backend.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
}
