//! `quire bench serve` generates load over HTTP and reports the figures that `vllm bench serve` does.
//!
//! Everything runs on one thread: the generator shares its cores with the servers it measures, and one thread that
//! reads sockets and scans bytes keeps up with several hundred thousand tokens a second.

pub mod args;
mod http;
mod measure;
mod offline;
mod pace;
mod prompts;
mod report;
mod statistics;
mod weights;

use std::{
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value};
use tokio::{sync::Semaphore, task::LocalSet};

use crate::environment::Environment;
use args::{Backend, BenchArgs, LoadArgs, ServeArgs, What};
use http::{Connection, Target};
use measure::{Answer, Outcome, Pool, Request, measure};
use statistics::Figures;

/// Runs a benchmark and prints its report.
pub fn run(args: &BenchArgs, environment: &Environment) -> anyhow::Result<()> {
    let args = match &args.what {
        What::Serve(args) => args,
        What::Cases(words) => return offline::run(offline::What::Cases, &words.words, environment),
        What::Latency(words) => return offline::run(offline::What::Latency, &words.words, environment),
        What::Perplexity(words) => return offline::run(offline::What::Perplexity, &words.words, environment),
        What::Startup(words) => return offline::run(offline::What::Startup, &words.words, environment),
        What::Throughput(words) => return offline::run(offline::What::Throughput, &words.words, environment),
        What::Weights(args) => return weights::run(args),
    };
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let figures = LocalSet::new().block_on(&runtime, serve(args))?;
    if figures.completed == 0 && figures.failed > 0 {
        bail!("all {} requests failed", figures.failed);
    }
    Ok(())
}

async fn serve(args: &ServeArgs) -> anyhow::Result<Figures> {
    let target = args.server.target().map_err(|problem| anyhow!(problem))?;
    let extra: Map<String, Value> =
        args.server.extra_body.as_deref().map_or(Ok(Map::new()), serde_json::from_str).context("--extra-body")?;
    wait_until_ready(args, &target).await?;
    let model = match &args.server.model {
        Some(model) => model.clone(),
        None => first_model(args, &target).await?,
    };
    let prompts =
        prompts::prompts(&args.dataset, &args.load, args.server.backend).map_err(|problem| anyhow!(problem))?;
    let requests: Vec<_> = prompts
        .iter()
        .map(|prompt| request(args, &target, &prompts::body(prompt, &args.server, &model, &extra)))
        .collect();
    let load = Load::new(args, target, requests);
    load.warm_up(args.load.num_warmups).await;
    let bar = progress_bar(args);
    let (outcomes, duration) = load.run(&args.load, &bar).await;
    bar.finish_and_clear();
    let figures = Figures::new(&outcomes, duration, &args.report.goodput);
    println!("{}", report::text(args, &figures));
    show_errors(&outcomes);
    if args.report.save_result {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let path = report::path(args, &model, now);
        let report = report::json(args, &model, now, &figures, &outcomes);
        report::save(&path, &report).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(figures)
}

/// Many connections need many file descriptors.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // Failing to raise it shows as a failed connection, with the reason.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

fn request(args: &ServeArgs, target: &Target, body: &[u8]) -> Request {
    let key = args.server.api_key.as_ref().map(|key| format!("Bearer {key}"));
    let headers: Vec<_> = key.iter().map(|key| ("Authorization", key.as_str())).collect();
    let answer = match args.server.backend {
        Backend::OpenaiEmbeddings => Answer::Whole,
        Backend::Openai | Backend::OpenaiChat | Backend::Vllm => Answer::Stream,
    };
    Request { bytes: target.request("POST", args.server.path(), &headers, body), answer }
}

/// Answers of plain GET requests, whole.
async fn get(args: &ServeArgs, target: &Target, path: &str) -> anyhow::Result<(u16, Vec<u8>)> {
    let key = args.server.api_key.as_ref().map(|key| format!("Bearer {key}"));
    let headers: Vec<_> = key.iter().map(|key| ("Authorization", key.as_str())).collect();
    let mut connection = Connection::open(target).await?;
    let head = connection.send(&target.request("GET", path, &headers, b"")).await?;
    let mut body = Vec::new();
    connection.body(head, |bytes| body.extend_from_slice(bytes)).await?;
    Ok((head.status, body))
}

async fn first_model(args: &ServeArgs, target: &Target) -> anyhow::Result<String> {
    let (status, body) = get(args, target, "/v1/models")
        .await
        .with_context(|| format!("no server at http://{} (is it running? see --host and --port)", target.authority))?;
    let list: Value = serde_json::from_slice(&body).unwrap_or_default();
    let model = list["data"][0]["id"].as_str().map(str::to_owned);
    model.ok_or_else(|| anyhow!("/v1/models answered with status {status} and names no model; pass --model"))
}

/// Waits until the server answers its health check, at most as long as the flag says.
async fn wait_until_ready(args: &ServeArgs, target: &Target) -> anyhow::Result<()> {
    let limit = Duration::from_secs(args.server.ready_check_timeout_sec);
    let start = Instant::now();
    while !limit.is_zero() && !matches!(get(args, target, "/health").await, Ok((200, _))) {
        if start.elapsed() > limit {
            bail!("the server at http://{} was not ready within {} s", target.authority, limit.as_secs());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Ok(())
}

fn progress_bar(args: &ServeArgs) -> ProgressBar {
    if args.report.disable_tqdm {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{elapsed_precise} {wide_bar} {pos}/{len} requests, {per_sec}, {eta} left");
    ProgressBar::new(args.load.num_prompts as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show_errors(outcomes: &[Outcome]) {
    const SHOWN: usize = 5;
    let mut seen = Vec::<(&str, usize)>::new();
    for error in outcomes.iter().filter_map(|outcome| outcome.error.as_deref()) {
        match seen.iter().position(|(text, _)| *text == error) {
            Some(place) => seen[place].1 += 1,
            None if seen.len() < SHOWN => seen.push((error, 1)),
            None => {}
        }
    }
    for (error, count) in seen {
        eprintln!("{count} × {error}");
    }
}

/// A run's requests and what they share.
struct Load {
    shared: Rc<Shared>,
    requests: Vec<Rc<Request>>,
}

struct Shared {
    target: Target,
    pool: Pool,
    limit: Duration,
}

impl Load {
    fn new(args: &ServeArgs, target: Target, requests: Vec<Request>) -> Self {
        let limit = Duration::from_secs(args.server.request_timeout_sec);
        let shared = Rc::new(Shared { target, pool: Pool::default(), limit });
        Self { shared, requests: requests.into_iter().map(Rc::new).collect() }
    }

    /// Sends the first requests one after the other and forgets how they went.
    async fn warm_up(&self, count: usize) {
        for request in self.requests.iter().cycle().take(if self.requests.is_empty() { 0 } else { count }) {
            measure(&self.shared.target, &self.shared.pool, request, Instant::now(), self.shared.limit).await;
        }
    }

    /// Sends every request at its time, within the bound on concurrency, and waits for all answers.
    async fn run(&self, load: &LoadArgs, bar: &ProgressBar) -> (Vec<Outcome>, Duration) {
        let permits = Arc::new(Semaphore::new(load.max_concurrency.unwrap_or(Semaphore::MAX_PERMITS)));
        let times = pace::start_times(self.requests.len(), load.request_rate, load.burstiness, load.seed);
        let start = Instant::now();
        let mut running = Vec::with_capacity(self.requests.len());
        for (request, at) in self.requests.iter().zip(times) {
            if start.elapsed() < at {
                tokio::time::sleep_until((start + at).into()).await;
            }
            let Ok(permit) = permits.clone().acquire_owned().await else { break };
            let (shared, request, bar) = (self.shared.clone(), request.clone(), bar.clone());
            running.push(tokio::task::spawn_local(async move {
                let outcome = measure(&shared.target, &shared.pool, &request, start, shared.limit).await;
                drop(permit);
                bar.inc(1);
                outcome
            }));
        }
        let mut outcomes = Vec::with_capacity(running.len());
        for task in running {
            let lost = |error: tokio::task::JoinError| Outcome { error: Some(error.to_string()), ..Outcome::default() };
            outcomes.push(task.await.unwrap_or_else(lost));
        }
        (outcomes, start.elapsed())
    }
}

#[cfg(test)]
mod tests;
