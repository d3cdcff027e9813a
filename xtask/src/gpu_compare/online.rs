//! Engines behind HTTP, under load from `quire bench serve`, which is the same for both sides.

use std::{ffi::OsStr, fs, path::PathBuf, process::Child, time::Duration};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{figure::Figure, process::Server, results::Results, side::Stage, work::PAUSE_S};

/// As many requests as clients in all, this often, up to this many; one client sends a few.
const ROUNDS: usize = 3;
const MOST_REQUESTS: usize = 512;
const LEAST_REQUESTS: usize = 5;
/// Tokens of each, in and out.
const LENGTHS: (usize, usize) = (1024, 256);
/// Texts under way, and how many there are in all.
const TEXTS: &[(usize, usize)] = &[(1, 100), (32, 2000), (1024, 8000)];
/// Tokens of a text.
const TEXT_LENGTHS: &[usize] = &[64, 512];
/// Running decodes that a long prompt meets: how many, and their tokens in and out.
const BESIDE: (usize, usize, usize) = (64, 256, 512);
/// The long prompt, tokens in and out.
const LONG: (usize, usize) = (65_536, 16);

/// Starts a side's server, loads it, ends it.
pub fn run(stage: &Stage<'_>, results: &Results) -> anyhow::Result<()> {
    let (server, started) = Server::start(|port| stage.server(port))?;
    let keep = |figures| results.served(stage.side, stage.shape, figures);
    keep(vec![Figure::new("start to serving", "s", started.as_secs_f64())])?;
    let generator = Generator { stage, port: server.port };
    generator.measure("warm-up", 64, &["--num-prompts=128", "--random-input-len=512", "--random-output-len=32"])?;
    // As without a server: what is done beside serving belongs to no figure.
    std::thread::sleep(Duration::from_secs_f64(PAUSE_S));
    for concurrency in stage.clients() {
        let count = requests(*concurrency);
        let (input, output) = LENGTHS;
        let flags = [
            format!("--num-prompts={count}"),
            format!("--random-input-len={input}"),
            format!("--random-output-len={output}"),
        ];
        let report = generator.measure("load", *concurrency, &flags)?;
        let clients = if *concurrency == 1 { "client" } else { "clients" };
        keep(figures(&format!("{concurrency} {clients}, 1k in, 256 out"), &report))?;
    }
    if stage.max_model_len as usize > LONG.0 + LONG.1 {
        keep(long_prompt(&generator, &server)?)?;
    }
    Ok(())
}

/// Requests of a load by as many clients.
fn requests(clients: usize) -> usize {
    (clients * ROUNDS).min(MOST_REQUESTS.max(clients)).max(LEAST_REQUESTS)
}

/// Starts a side's server and sends it texts to turn into vectors.
pub fn embed(stage: &Stage<'_>, results: &Results) -> anyhow::Result<()> {
    let (server, started) = Server::start(|port| stage.server(port))?;
    let keep = |figures| results.served(stage.side, stage.shape, figures);
    keep(vec![Figure::new("start to serving", "s", started.as_secs_f64())])?;
    let generator = Generator { stage, port: server.port };
    let flags = |count: usize, tokens: usize| {
        [
            "--backend=openai-embeddings".to_owned(),
            format!("--num-prompts={count}"),
            format!("--random-input-len={tokens}"),
        ]
    };
    // Room for the tokens that the tokenizer puts around a text.
    let fit = |tokens: usize| tokens.min(stage.max_model_len as usize - 2);
    generator.measure("warm-up", 64, &flags(512, fit(256)))?;
    std::thread::sleep(Duration::from_secs_f64(PAUSE_S));
    for tokens in TEXT_LENGTHS.iter().copied().map(fit) {
        for (concurrency, count) in TEXTS {
            let report = generator.measure("embed", *concurrency, &flags(*count, tokens))?;
            let row = format!("texts of {tokens} tokens, {concurrency} at once");
            let figure = |what: &str, unit: &str, key: &str| {
                report[key].as_f64().map(|value| Figure::new(&format!("{row}: {what}"), unit, value))
            };
            let figures =
                [figure("throughput", "texts/s", "request_throughput"), figure("latency p50", "ms", "median_e2el_ms")];
            keep(figures.into_iter().flatten().collect())?;
        }
    }
    Ok(())
}

/// A long prompt while others decode: what it does to the gaps between their tokens, and how long it takes itself.
fn long_prompt(generator: &Generator<'_>, server: &Server) -> anyhow::Result<Vec<Figure>> {
    let (count, input, output) = BESIDE;
    let flags = [
        format!("--num-prompts={count}"),
        format!("--random-input-len={input}"),
        format!("--random-output-len={output}"),
    ];
    let decodes = generator.spawn("beside", count, &flags)?;
    server.wait_for_running(count as f64)?;
    let (input, output) = LONG;
    let long = generator.measure(
        "long",
        1,
        &["--num-prompts=1".to_owned(), format!("--random-input-len={input}"), format!("--random-output-len={output}")],
    )?;
    let beside = decodes.end()?;
    let row = format!("{count} decodes, a 64k prompt comes");
    let figure = |report: &Value, what: &str, key: &str| {
        Some(Figure::new(&format!("{row}: {what}"), "ms", report[key].as_f64()?))
    };
    let figures = [
        figure(&beside, "ITL p50", "median_itl_ms"),
        figure(&beside, "ITL p99", "p99_itl_ms"),
        figure(&long, "TTFT of the prompt", "median_ttft_ms"),
    ];
    Ok(figures.into_iter().flatten().collect())
}

fn figures(row: &str, report: &Value) -> Vec<Figure> {
    let keys = [
        ("output", "out tok/s", "output_throughput"),
        ("TTFT p50", "ms", "median_ttft_ms"),
        ("TTFT p99", "ms", "p99_ttft_ms"),
        ("ITL p50", "ms", "median_itl_ms"),
        ("ITL p99", "ms", "p99_itl_ms"),
    ];
    let figure = |(what, unit, key): (&str, &str, &str)| {
        Some(Figure::new(&format!("{row}: {what}"), unit, report[key].as_f64()?))
    };
    keys.into_iter().filter_map(figure).collect()
}

/// Makes load for a server.
struct Generator<'a> {
    stage: &'a Stage<'a>,
    port: u16,
}

/// A load under way.
struct Load {
    name: String,
    child: Child,
    report: PathBuf,
}

impl Generator<'_> {
    fn measure(&self, name: &str, concurrency: usize, flags: &[impl AsRef<OsStr>]) -> anyhow::Result<Value> {
        self.spawn(name, concurrency, flags)?.end()
    }

    fn spawn(&self, name: &str, concurrency: usize, flags: &[impl AsRef<OsStr>]) -> anyhow::Result<Load> {
        let report = self.stage.work.join(format!("{name}.json"));
        if report.exists() {
            fs::remove_file(&report)?;
        }
        let mut command = self.stage.quire();
        command.args(["bench", "serve", "--model=model", "--ignore-eos", "--disable-tqdm", "--save-result"]);
        command.args(["--metric-percentiles=50,99", "--percentile-metrics=ttft,itl,e2el"]);
        command.arg(format!("--base-url=http://127.0.0.1:{}", self.port)).arg(format!("--seed={concurrency}"));
        command.arg(format!("--max-concurrency={concurrency}"));
        command.arg(format!("--random-vocab-size={}", self.stage.vocab_size.min(10_000)));
        command
            .arg(format!("--result-dir={}", self.stage.work.display()))
            .arg(format!("--result-filename={name}.json"));
        command.args(flags);
        let child = self.stage.logged(command)?.spawn().context("quire bench serve")?;
        Ok(Load { name: name.to_owned(), child, report })
    }
}

impl Load {
    /// Waits for the end. A load that lost requests is no figure.
    fn end(mut self) -> anyhow::Result<Value> {
        let status = self.child.wait()?;
        let text = fs::read_to_string(&self.report).unwrap_or_default();
        let report: Value = serde_json::from_str(&text).unwrap_or_else(|_| json!({}));
        let failed = report["failed"].as_u64();
        if !status.success() || failed != Some(0) {
            bail!(
                "{}: {status}, {} requests failed",
                self.name,
                failed.map_or("?".to_owned(), |count| count.to_string())
            );
        }
        Ok(report)
    }
}
