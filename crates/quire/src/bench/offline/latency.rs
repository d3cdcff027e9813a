//! The time from a batch of prompts to the last of its tokens, round by round.

use anyhow::Context;
use serde_json::json;

use super::{RequestLengths, Stage, flags::LatencyArgs, prompts, sampling, save};
use crate::{
    bench::statistics::Distribution,
    serve::offline::{Generated, Offline},
};

const PERCENTILES: [u32; 6] = [10, 25, 50, 75, 90, 99];

pub(super) async fn run(args: &LatencyArgs, stage: Stage<'_>) -> anyhow::Result<()> {
    let shutdown = &stage.process.shutdown;
    let Some(mut engine) = Offline::start(stage.settings, stage.environment, shutdown).await? else { return Ok(()) };
    let sampling = sampling(args.temperature);
    let lengths = RequestLengths { input: args.input_len, output: args.output_len };
    let mut rounds = Vec::new();
    for round in 0..args.num_iters_warmup + args.num_iters {
        let requests = prompts(args.batch_size, lengths, engine.vocab_size, round as u64);
        let generating = shutdown.run_until_cancelled(engine.generate(&requests, &sampling));
        let Some(generated) = generating.await else { return engine.end().await };
        if round >= args.num_iters_warmup {
            rounds.push(Round::new(&generated?).context("a batch of nothing")?);
        }
    }
    report(args, &rounds)?;
    engine.end().await
}

/// Figures of a round, seconds.
struct Round {
    whole: f64,
    /// Until every prompt had its first token.
    prefill: f64,
    /// A step after that.
    step: f64,
}

impl Round {
    fn new(generated: &[Generated]) -> Option<Self> {
        let whole = generated.iter().map(|one| one.last).max()?.as_secs_f64();
        let prefill = generated.iter().map(|one| one.first).max()?.as_secs_f64();
        let steps = generated.iter().map(|one| one.tokens).max()?.saturating_sub(1);
        Some(Self { whole, prefill, step: (whole - prefill) / steps.max(1) as f64 })
    }
}

fn report(args: &LatencyArgs, rounds: &[Round]) -> anyhow::Result<()> {
    let of = |figure: fn(&Round) -> f64| Distribution::new(rounds.iter().map(figure));
    let (whole, prefill, step) = (of(|round| round.whole), of(|round| round.prefill), of(|round| round.step));
    println!("Avg latency: {} seconds", whole.mean());
    for percent in PERCENTILES {
        println!("{percent}% percentile latency: {} seconds", whole.percentile(f64::from(percent)));
    }
    println!(
        "Median time to first token of all prompts: {:.3} ms; median decode step: {:.3} ms",
        prefill.percentile(50.0) * 1e3,
        step.percentile(50.0) * 1e3
    );
    let percentiles = PERCENTILES.map(|p| (p.to_string(), json!(whole.percentile(f64::from(p)))));
    let report = json!({
        "avg_latency": whole.mean(),
        "latencies": rounds.iter().map(|round| round.whole).collect::<Vec<_>>(),
        "percentiles": serde_json::Map::from_iter(percentiles),
        "median_first_token_s": prefill.percentile(50.0),
        "median_step_s": step.percentile(50.0),
    });
    save(args.output_json.as_deref(), &report)
}
