//! A profile: one trace of all processes, on one time line.

use std::{collections::HashMap, path::Path};

use anyhow::{Context, ensure};
use e2e_tests::{Server, is_on_gpu, now_ns};
use serde_json::{Value, json};

/// A span of a trace, in microseconds of the clock that all processes share.
struct Span {
    process: String,
    name: String,
    begin: f64,
    end: f64,
    arguments: Value,
}

#[tokio::test]
async fn a_profile_shows_all_processes_on_one_time_line() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let config = json!({"profiler": "torch", "torch_profiler_dir": dir.path()}).to_string();
    let server = Server::start(&["--profiler-config", &config]).await?;
    let client = server.client();
    let body = json!({"prompt": "Hello", "max_tokens": 8, "ignore_eos": true});
    client.post("/v1/completions", &body).await?;
    let (status, _) = client.post_raw("/stop_profile", Vec::new()).await?;
    ensure!(status == 400, "no profile runs: {status}");
    let before = now_ns() as f64 / 1e3;
    let (status, text) = client.post_raw("/start_profile", br#"{"profile_prefix": "mine"}"#.to_vec()).await?;
    ensure!(status == 200 && text.is_empty(), "{status}: {text}");
    client.post("/v1/completions", &body).await?;
    let (_, mut stream) = client.stream("/v1/completions", &json!({"prompt": "Once", "stream": true})).await?;
    while stream.next().await?.is_some() {}
    let (status, _) = client.post_raw("/start_profile", b"{}".to_vec()).await?;
    ensure!(status == 400, "one profile at a time: {status}");
    let (status, text) = client.post_raw("/stop_profile", b"{}".to_vec()).await?;
    ensure!(status == 200 && text.is_empty(), "{status}: {text}");
    let after = now_ns() as f64 / 1e3;
    client.post("/v1/completions", &body).await?;

    let spans = spans(dir.path(), 5)?;
    ensure!(spans.iter().all(|span| before <= span.begin && span.begin <= span.end && span.end <= after));
    let requests = of(&spans, "api-gateway", "request");
    ensure!(requests.len() == 2, "two requests, none from before or after: {}", requests.len());
    for request in requests {
        let id = &request.arguments["request_id"];
        for (process, name) in [
            ("tokenizer-svc", "tokenize"),
            ("scheduler-svc", "schedule"),
            ("worker-svc 0", "sequence"),
            ("detokenizer-svc", "detokenize"),
        ] {
            let part = of(&spans, process, name).into_iter().find(|span| span.arguments["request_id"] == *id);
            let part = part.with_context(|| format!("{process} has no {name} of {id}"))?;
            ensure!(part.begin >= request.begin && part.begin <= request.end, "{name} begins within the request");
        }
        for (process, name) in [("scheduler-svc", "plan"), ("worker-svc 0", "submit"), ("worker-svc 0", "finish")] {
            let within = |span: &&Span| span.begin >= request.begin && span.end <= request.end;
            let steps = of(&spans, process, name).into_iter().filter(within).count();
            ensure!(steps >= 8, "{process} has {steps} times {name} within the request");
        }
    }
    // A step is planned before it is submitted, and submitted before it is finished.
    let begin_of = |process, name| -> HashMap<u64, f64> {
        let steps = of(&spans, process, name).into_iter();
        steps.filter_map(|span| Some((span.arguments["step"].as_u64()?, span.begin))).collect()
    };
    let (plans, submits) = (begin_of("scheduler-svc", "plan"), begin_of("worker-svc 0", "submit"));
    // The profile may begin between the two halves of a step.
    let both: Vec<_> = submits.iter().filter_map(|(step, at)| Some((plans.get(step)?, at))).collect();
    ensure!(both.len() >= 8 && both.iter().all(|(plan, submit)| plan <= submit), "{plans:?} {submits:?}");
    Ok(())
}

fn of<'s>(spans: &'s [Span], process: &str, name: &str) -> Vec<&'s Span> {
    spans.iter().filter(|span| span.process == process && span.name == name).collect()
}

/// Of a pipeline, each stage has its own name, and what it waits for the one before is told from what it computes.
#[tokio::test]
async fn stages_are_told_apart() -> anyhow::Result<()> {
    if is_on_gpu() {
        println!("skipped: on GPUs the device's track shows it");
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let server = Server::start(&["-pp", "2", "--profiler-config", &dir.path().to_string_lossy()]).await?;
    let client = server.client();
    client.post_raw("/start_profile", br#"{"profile_prefix": "mine"}"#.to_vec()).await?;
    client.post("/v1/completions", &json!({"prompt": "Hello", "max_tokens": 8, "ignore_eos": true})).await?;
    client.post_raw("/stop_profile", Vec::new()).await?;
    let spans = spans(dir.path(), 6)?;
    for (stage, waits) in [("worker-svc 0", false), ("worker-svc 1", true)] {
        let [submits, receives] = ["submit", "receive"].map(|name| of(&spans, stage, name));
        ensure!(submits.len() >= 8, "{stage}: {} steps", submits.len());
        ensure!(receives.is_empty() != waits, "{stage} waits {} times", receives.len());
        let within = |receive: &Span| {
            let mut steps = spans.iter().filter(|span| span.process == stage && span.name != "receive");
            steps.any(|step| step.begin <= receive.begin && receive.end <= step.end)
        };
        ensure!(receives.into_iter().all(within), "{stage} waits within its steps");
    }
    Ok(())
}

/// The spans of the one trace in a folder, whose name begins as was asked for.
fn spans(dir: &Path, processes: usize) -> anyhow::Result<Vec<Span>> {
    let files: Vec<_> = std::fs::read_dir(dir)?.collect::<Result<_, _>>()?;
    ensure!(files.len() == 1 && files[0].file_name().to_string_lossy().starts_with("mine."), "one trace: {files:?}");
    let trace: Value = serde_json::from_slice(&std::fs::read(files[0].path())?)?;
    let events = trace["traceEvents"].as_array().context("events")?;
    let mut names = HashMap::new();
    for event in events.iter().filter(|event| event["name"] == "process_name") {
        names.insert(event["pid"].as_u64(), event["args"]["name"].as_str().unwrap_or_default().to_owned());
    }
    ensure!(names.len() == processes, "{processes} processes: {names:?}");
    let mut spans = Vec::new();
    for (index, event) in events.iter().enumerate() {
        let begin = event["ts"].as_f64().unwrap_or_default();
        let end = match event["ph"].as_str() {
            Some("X") => begin + event["dur"].as_f64().context("a duration")?,
            // Its end follows.
            Some("b") => events[index + 1]["ts"].as_f64().context("an end")?,
            _ => continue,
        };
        let process = names[&event["pid"].as_u64()].clone();
        let name = event["name"].as_str().context("a name")?.to_owned();
        spans.push(Span { process, name, begin, end, arguments: event["args"].clone() });
    }
    Ok(spans)
}
