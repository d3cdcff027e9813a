//! Many batches after one start, with the lengths that a file gives: a comparison passes the same file to its other
//! side.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, bail};
use rand::{SeedableRng, rngs::StdRng};
use serde::Deserialize;
use serde_json::json;

use super::{Stage, flags::CasesArgs, random_prompt, sampling};
use crate::serve::offline::{Generated, Offline, Request};

/// What to measure: prompts that are all there from the beginning, some number of times.
#[derive(Deserialize, Clone, Debug, PartialEq)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// Tokens of each prompt, and how many to generate for it.
    prompts: Vec<(u32, u32)>,
    /// How often the list of prompts is taken.
    #[serde(default = "once")]
    copies: usize,
    /// Adapters that the prompts have in turn, the first of those that are served; 0: the model alone.
    #[serde(default)]
    adapters: usize,
    #[serde(default = "once")]
    runs: usize,
    /// Whether the first prompt is the same in every run and in every case with this, as far as both go, and so on: a
    /// prefix cache then knows it.
    #[serde(default)]
    repeated: bool,
    /// Seconds to leave the engine alone first, for what it does beside serving (capturing graphs): that belongs to no
    /// figure.
    #[serde(default)]
    idle_s: f64,
}

fn once() -> usize {
    1
}

impl Case {
    /// One run with the model alone.
    fn once(name: &str, prompts: Vec<(u32, u32)>) -> Self {
        Self { name: name.to_owned(), prompts, copies: 1, adapters: 0, runs: 1, repeated: false, idle_s: 0.0 }
    }

    /// Lengths of all prompts.
    fn prompts(&self) -> impl Iterator<Item = &(u32, u32)> {
        self.prompts.iter().cycle().take(self.prompts.len() * self.copies)
    }
}

pub(super) async fn run(args: &CasesArgs, stage: Stage<'_>) -> anyhow::Result<()> {
    let start = Instant::now();
    let cases = read(&args.cases).with_context(|| format!("--cases {}", args.cases.display()))?;
    let mut report = Report::open(args.output_jsonl.as_deref())?;
    let shutdown = &stage.process.shutdown;
    let Some(mut engine) = Offline::start(stage.settings, stage.environment, shutdown).await? else { return Ok(()) };
    let mut bench = Bench { random: StdRng::seed_from_u64(0), temperature: args.temperature };
    let first = Case::once("startup", vec![(8, 1)]);
    for case in std::iter::once(&first).chain(&cases) {
        let Some(runs) = shutdown.run_until_cancelled(bench.measure(&mut engine, case)).await else { break };
        let mut runs = runs.with_context(|| case.name.clone())?;
        if std::ptr::eq(case, &first) {
            runs = vec![start.elapsed()];
        }
        report.case(case, &runs)?;
    }
    engine.end().await
}

fn read(path: &Path) -> anyhow::Result<Vec<Case>> {
    let text = fs::read_to_string(path)?;
    let mut cases = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let case: Case = serde_json::from_str(line).with_context(|| format!("line {}", number + 1))?;
        if case.runs == 0
            || case.copies == 0
            || case.prompts.is_empty()
            || case.prompts.iter().any(|(input, output)| *input == 0 || *output == 0)
        {
            bail!("line {}: a case needs prompts, and lengths, copies and runs above 0", number + 1);
        }
        if !(0.0..=3600.0).contains(&case.idle_s) {
            bail!("line {}: idle_s must be from 0 to 3600", number + 1);
        }
        cases.push(case);
    }
    Ok(cases)
}

/// What all cases share.
struct Bench {
    random: StdRng,
    temperature: f32,
}

impl Bench {
    /// From sending to the last token, for each run.
    async fn measure(&mut self, engine: &mut Offline, case: &Case) -> anyhow::Result<Vec<Duration>> {
        tokio::time::sleep(Duration::from_secs_f64(case.idle_s)).await;
        let Some(adapters) = engine.adapters.get(..case.adapters).map(<[String]>::to_vec) else {
            bail!("{} adapters: {} are served; name more by --lora-modules", case.adapters, engine.adapters.len());
        };
        let mut runs = Vec::with_capacity(case.runs);
        for _ in 0..case.runs {
            let request = |(number, &(len, output_len)): (usize, &(u32, u32))| Request {
                prompt: self.prompt(case, number, len, engine.vocab_size),
                output_len,
                adapter: adapters.get(number % adapters.len().max(1)).cloned().unwrap_or_default(),
            };
            let requests: Vec<_> = case.prompts().enumerate().map(request).collect();
            let generated = engine.generate(&requests, &sampling(self.temperature)).await?;
            check(&requests, &generated)?;
            runs.push(generated.iter().map(|one| one.last).max().unwrap_or_default());
        }
        Ok(runs)
    }

    fn prompt(&mut self, case: &Case, number: usize, len: u32, vocab_size: u32) -> Vec<u32> {
        match case.repeated {
            true => random_prompt(&mut StdRng::seed_from_u64(number as u64), len, vocab_size),
            false => random_prompt(&mut self.random, len, vocab_size),
        }
    }
}

/// A figure for fewer tokens than asked for would flatter.
fn check(requests: &[Request], generated: &[Generated]) -> anyhow::Result<()> {
    for (request, one) in requests.iter().zip(generated) {
        if one.tokens != request.output_len as usize {
            bail!("{} tokens were generated, not {}: is --max-model-len too small?", one.tokens, request.output_len);
        }
    }
    Ok(())
}

/// Where figures go.
struct Report {
    file: Option<File>,
}

impl Report {
    fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let open = |path: &Path| {
            let opened = OpenOptions::new().create(true).append(true).open(path);
            opened.with_context(|| format!("--output-jsonl {}", path.display()))
        };
        Ok(Self { file: path.map(open).transpose()? })
    }

    fn case(&mut self, case: &Case, runs: &[Duration]) -> anyhow::Result<()> {
        let sum = |length: fn(&(u32, u32)) -> u32| case.prompts().map(|prompt| u64::from(length(prompt))).sum();
        let (input, output): (u64, u64) = (sum(|prompt| prompt.0), sum(|prompt| prompt.1));
        let best = runs.iter().min().copied().unwrap_or_default().as_secs_f64();
        let per_second = |tokens: u64| if best > 0.0 { tokens as f64 / best } else { 0.0 };
        println!(
            "{}: {:.2} ms, {:.1} input tokens/s, {:.1} output tokens/s (best of {})",
            case.name,
            best * 1e3,
            per_second(input),
            per_second(output),
            runs.len()
        );
        let Some(file) = &mut self.file else { return Ok(()) };
        let seconds: Vec<f64> = runs.iter().map(Duration::as_secs_f64).collect();
        let line = json!({"name": case.name, "seconds": seconds, "input_tokens": input, "output_tokens": output});
        writeln!(file, "{line}").context("--output-jsonl")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> anyhow::Result<Vec<Case>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cases.jsonl");
        fs::write(&path, text).unwrap();
        read(&path)
    }

    #[test]
    fn a_line_is_a_case() {
        let first = "{\"name\": \"a\", \"prompts\": [[4, 2], [9, 1]], \"runs\": 3}\n\n";
        let cases = read_text(&format!("{first}{{\"name\": \"b\", \"prompts\": [[1, 1]]}}\n")).unwrap();
        let expected = [("a", vec![(4, 2), (9, 1)], 3), ("b", vec![(1, 1)], 1)];
        let expected = expected.map(|(name, prompts, runs)| Case { runs, ..Case::once(name, prompts) });
        assert_eq!(cases, expected);
    }

    #[test]
    fn bad_cases_are_refused_with_their_line() {
        let good = "{\"name\": \"a\", \"prompts\": [[4, 2]]}\n";
        for bad in [
            "{",
            "{\"name\": \"b\"}",
            "{\"name\": \"b\", \"prompts\": []}",
            "{\"name\": \"b\", \"prompts\": [[0, 1]]}",
            "{\"name\": \"b\", \"prompts\": [[1, 1]], \"rums\": 3}",
            "{\"name\": \"b\", \"prompts\": [[1, 1]], \"idle_s\": -1}",
            "{\"name\": \"b\", \"prompts\": [[1, 1]], \"copies\": 0}",
        ] {
            let error = format!("{:#}", read_text(&format!("{good}{bad}\n")).unwrap_err());
            assert!(error.starts_with("line 2"), "{error}");
        }
    }

    #[test]
    fn figures_are_appended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out.jsonl");
        let case = Case { runs: 2, ..Case::once("a", vec![(4, 2), (3, 1)]) };
        for _ in 0..2 {
            let mut report = Report::open(Some(&path)).unwrap();
            report.case(&case, &[Duration::from_millis(500), Duration::from_millis(250)]).unwrap();
        }
        let lines = fs::read_to_string(&path).unwrap();
        let expected = json!({"name": "a", "seconds": [0.5, 0.25], "input_tokens": 7, "output_tokens": 3});
        assert_eq!(lines.lines().count(), 2);
        assert!(lines.lines().all(|line| serde_json::from_str::<serde_json::Value>(line).unwrap() == expected));
    }

    #[test]
    fn too_few_tokens_are_an_error() {
        let requests = [Request { prompt: vec![1], output_len: 2, adapter: String::new() }];
        let generated = |tokens| [Generated { tokens, ..Generated::default() }];
        assert!(check(&requests, &generated(2)).is_ok());
        assert!(check(&requests, &generated(1)).is_err());
    }
}
