//! How long a start takes: until scheduler and workers are ready, and until a first token is there.

use std::time::Instant;

use serde_json::{Value, json};

use super::{
    RequestLengths, Stage,
    flags::{Lengths, StartupArgs},
    prompts, sampling, save,
};
use crate::{bench::statistics::Distribution, serve::offline::Offline};

pub(super) async fn run(args: &StartupArgs, stage: Stage<'_>) -> anyhow::Result<()> {
    let (mut ready, mut first_token) = (Vec::new(), Vec::new());
    for start in 0..args.num_iters_warmup + args.num_iters_warm {
        let Some((ready_s, token_s)) = one(stage).await? else { return Ok(()) };
        if start >= args.num_iters_warmup {
            ready.push(ready_s);
            first_token.push(token_s);
        }
    }
    let report = json!({
        "warm_startup": figures("Time to ready", &ready),
        "warm_first_token": figures("Time to first token", &first_token),
    });
    save(args.output_json.as_deref(), &report)
}

/// Seconds from nothing to ready, and to the first token.
async fn one(stage: Stage<'_>) -> anyhow::Result<Option<(f64, f64)>> {
    let start = Instant::now();
    let started = Offline::start(stage.settings, stage.environment, &stage.process.shutdown).await?;
    let Some(mut engine) = started else { return Ok(None) };
    let ready = start.elapsed().as_secs_f64();
    let lengths = RequestLengths { input: Lengths { least: 8, most: 8 }, output: Lengths { least: 1, most: 1 } };
    let requests = prompts(1, lengths, engine.vocab_size, 0);
    engine.generate(&requests, &sampling(0.0)).await?;
    let first_token = start.elapsed().as_secs_f64();
    engine.end().await?;
    Ok(Some((ready, first_token)))
}

fn figures(name: &str, seconds: &[f64]) -> Value {
    let all = Distribution::new(seconds.iter().copied());
    let (least, most) = (all.percentile(0.0), all.percentile(100.0));
    println!("{name}: avg {:.3} s, min {least:.3} s, max {most:.3} s", all.mean());
    json!({"avg": all.mean(), "min": least, "max": most, "all": seconds})
}
