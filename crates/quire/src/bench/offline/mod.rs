//! `quire bench latency`, `throughput` and `startup`: scheduler and workers alone, without HTTP or text, in the terms
//! of vLLM's benchmarks of the same names; `quire bench cases` for many measurements with one start; `quire bench
//! perplexity` for how well a model predicts a text.

mod cases;
mod flags;
mod latency;
mod perplexity;
mod profile;
mod startup;
mod throughput;

use std::path::Path;

use anyhow::Context;
use proto::Sampling;
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::Value;
use service_kit::{CommonArgs, Process, Threads};

pub use flags::What;

use crate::{
    environment::Environment,
    serve::{flags::Settings, offline::Request},
};
use flags::{Bench, Lengths};

/// Runs a benchmark with the words that follow its name.
pub fn run(what: What, words: &[String], environment: &Environment) -> anyhow::Result<()> {
    let Some((bench, settings)) = flags::parse(what, words)? else { return Ok(()) };
    let common = CommonArgs { log_level: "warn".to_owned(), ..CommonArgs::default() };
    let mut failure = None;
    // One thread: the processes' lives are tied to the thread that starts them.
    service_kit::run("quire", &common, Threads::One, async |process| {
        failure = measure(bench, &settings, environment, &process).await.err();
        Ok(())
    });
    failure.map_or(Ok(()), Err)
}

async fn measure(
    bench: Bench,
    settings: &Settings,
    environment: &Environment,
    process: &Process,
) -> anyhow::Result<()> {
    let stage = Stage { settings, environment, process };
    match bench {
        Bench::Latency(args) => match &args.profile {
            Some(file) => profile::run(&args, file, stage).await,
            None => latency::run(&args, stage).await,
        },
        Bench::Perplexity(args) => perplexity::run(&args, stage).await,
        Bench::Throughput(args) => throughput::run(&args, stage).await,
        Bench::Startup(args) => startup::run(&args, stage).await,
        Bench::Cases(args) => cases::run(&args, stage).await,
    }
}

/// What engines are started with.
#[derive(Clone, Copy)]
struct Stage<'a> {
    settings: &'a Settings,
    environment: &'a Environment,
    process: &'a Process,
}

/// Draws at `temperature`, to the last token that was asked for.
fn sampling(temperature: f32) -> Sampling {
    Sampling { temperature, top_p: 1.0, repetition_penalty: 1.0, ignore_eos: true, ..Sampling::default() }
}

/// How long prompts and answers are.
#[derive(Clone, Copy)]
struct RequestLengths {
    input: Lengths,
    output: Lengths,
}

/// Random prompts: other ones for another seed.
fn prompts(count: usize, lengths: RequestLengths, vocab_size: u32, seed: u64) -> Vec<Request> {
    let RequestLengths { input, output } = lengths;
    let mut random = StdRng::seed_from_u64(seed);
    let one = |_| {
        let len = random.random_range(input.least..=input.most);
        let output_len = random.random_range(output.least..=output.most);
        Request { prompt: random_prompt(&mut random, len, vocab_size), output_len, adapter: String::new() }
    };
    (0..count).map(one).collect()
}

fn random_prompt(random: &mut StdRng, len: u32, vocab_size: u32) -> Vec<u32> {
    // Ids that every model knows, past those with a meaning of their own.
    let ids = if vocab_size > 1000 { 100..vocab_size.min(10_000) } else { 0..vocab_size.max(1) };
    (0..len).map(|_| random.random_range(ids.clone())).collect()
}

fn save(path: Option<&Path>, report: &Value) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_repeat_with_their_seed_and_keep_their_lengths() {
        let lengths = RequestLengths { input: Lengths { least: 3, most: 9 }, output: Lengths { least: 2, most: 2 } };
        let make = |seed| prompts(40, lengths, 512, seed).into_iter().map(|p| p.prompt).collect::<Vec<_>>();
        assert_eq!(make(1), make(1));
        assert_ne!(make(1), make(2));
        assert!(make(1).iter().all(|prompt| (3..=9).contains(&prompt.len())));
        assert!(make(1).iter().flatten().all(|id| *id < 512));
        assert!(prompts(9, lengths, 512, 1).iter().all(|request| request.output_len == 2));
    }
}
