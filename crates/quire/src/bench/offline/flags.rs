//! Flags of the offline benchmarks: their own ones, with vLLM's names and defaults, and all of `quire serve` beside
//! them.

use std::{path::PathBuf, str::FromStr};

use anyhow::anyhow;
use clap::{ArgAction, Args, Command, FromArgMatches};

use crate::serve::flags::{self as engine, Settings};

/// Which benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Latency,
    Throughput,
    Startup,
    Cases,
    Perplexity,
}

/// A benchmark and its flags.
pub(super) enum Bench {
    Latency(LatencyArgs),
    Throughput(ThroughputArgs),
    Startup(StartupArgs),
    Cases(CasesArgs),
    Perplexity(PerplexityArgs),
}

/// What a profile has no use for.
const NOT_PROFILED: [&str; 5] = ["output_len", "num_iters", "num_iters_warmup", "temperature", "output_json"];

/// Flags of `quire bench latency`.
#[derive(Args, Clone, Debug)]
pub(super) struct LatencyArgs {
    /// Tokens of each prompt
    #[arg(long, default_value = "32")]
    pub input_len: Lengths,
    /// Tokens to generate for each
    #[arg(long, default_value = "128")]
    pub output_len: Lengths,
    /// Prompts at the same time
    #[arg(long, default_value_t = 8, value_parser = at_least_one)]
    pub batch_size: usize,
    /// Rounds before those that count
    #[arg(long, default_value_t = 10)]
    pub num_iters_warmup: usize,
    /// Rounds
    #[arg(long, default_value_t = 30, value_parser = at_least_one)]
    pub num_iters: usize,
    /// Temperature of the draws; 0: greedy
    #[arg(long, default_value_t = 1.0, value_parser = temperature)]
    pub temperature: f32,
    /// Instead, write to this JSON file where the time of a decode step and of the prefill goes on the device, kernel
    /// by kernel
    #[arg(long, value_name = "FILE", conflicts_with_all = NOT_PROFILED)]
    pub profile: Option<PathBuf>,
    /// Write the figures to this JSON file
    #[arg(long, value_name = "FILE")]
    pub output_json: Option<PathBuf>,
}

/// Flags of `quire bench throughput`.
#[derive(Args, Clone, Debug)]
pub(super) struct ThroughputArgs {
    /// Tokens of each prompt: a number, or LEAST:MOST
    #[arg(long, default_value = "1024", alias = "random-input-len")]
    pub input_len: Lengths,
    /// Tokens to generate for each: a number, or LEAST:MOST
    #[arg(long, default_value = "128", alias = "random-output-len")]
    pub output_len: Lengths,
    /// Prompts, all there from the beginning
    #[arg(long, default_value_t = 1000, value_parser = at_least_one)]
    pub num_prompts: usize,
    /// Prompts of the same kind that run before, and do not count
    #[arg(long, default_value_t = 0)]
    pub num_warmups: usize,
    /// Temperature of the draws; 0: greedy
    #[arg(long, default_value_t = 1.0, value_parser = temperature)]
    pub temperature: f32,
    /// Write the figures to this JSON file
    #[arg(long, value_name = "FILE")]
    pub output_json: Option<PathBuf>,
}

/// Flags of `quire bench startup`.
#[derive(Args, Clone, Debug)]
pub(super) struct StartupArgs {
    /// Starts before those that count
    #[arg(long, default_value_t = 1)]
    pub num_iters_warmup: usize,
    /// Starts, files and kernels being in caches
    #[arg(long, default_value_t = 3, alias = "num-iters", value_parser = at_least_one)]
    pub num_iters_warm: usize,
    /// Write the figures to this JSON file
    #[arg(long, value_name = "FILE")]
    pub output_json: Option<PathBuf>,
}

/// Flags of `quire bench cases`.
#[derive(Args, Clone, Debug)]
pub(super) struct CasesArgs {
    /// A JSON line for each case: {"name": "…", "prompts": [[INPUT, OUTPUT], …], "copies": 1, "adapters": 0, "runs": 3,
    /// "repeated": false, "idle_s": 0}, lengths in tokens; "adapters": prompts take this many of --lora-modules in
    /// turn; "repeated": the same prompts in each run and case, for --enable-prefix-caching
    #[arg(long, value_name = "FILE", required = true)]
    pub cases: PathBuf,
    /// Temperature of the draws; 0: greedy
    #[arg(long, default_value_t = 0.0, value_parser = temperature)]
    pub temperature: f32,
    /// Append a JSON line for each case to this file, as soon as it is over
    #[arg(long, value_name = "FILE")]
    pub output_jsonl: Option<PathBuf>,
}

/// Flags of `quire bench perplexity`.
#[derive(Args, Clone, Debug)]
pub(super) struct PerplexityArgs {
    /// The text, UTF-8
    #[arg(long, value_name = "FILE", required = true)]
    pub text: PathBuf,
    /// Tokens of a window
    #[arg(long, default_value_t = 512, value_parser = at_least_one)]
    pub window: usize,
    /// Tokens from one window to the next [default: half a window]
    #[arg(long, value_parser = at_least_one)]
    pub stride: Option<usize>,
    /// Write the figures to this JSON file
    #[arg(long, value_name = "FILE")]
    pub output_json: Option<PathBuf>,
}

/// Numbers of tokens: all the same, or drawn evenly between two bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    pub least: u32,
    pub most: u32,
}

impl FromStr for Lengths {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once(':').unwrap_or((text, text));
        match (least.parse(), most.parse()) {
            (Ok(least), Ok(most)) if 0 < least && least <= most => Ok(Self { least, most }),
            _ => Err("expected a number of tokens above 0, or LEAST:MOST".to_owned()),
        }
    }
}

fn at_least_one(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "expected a number above 0".to_owned())
}

fn temperature(text: &str) -> Result<f32, String> {
    let fine = |number: &f32| number.is_finite() && *number >= 0.0;
    text.parse().ok().filter(fine).ok_or_else(|| "expected 0 or a number above it".to_owned())
}

/// Reads the words after a benchmark's name; `None` when they asked for help, which was given.
pub(super) fn parse(what: What, words: &[String]) -> anyhow::Result<Option<(Bench, Settings)>> {
    let command = match what {
        What::Latency => LatencyArgs::augment_args(Command::new("quire bench latency"))
            .about("Measure the time of one batch, without HTTP or text"),
        What::Throughput => ThroughputArgs::augment_args(Command::new("quire bench throughput"))
            .about("Measure tokens per second of many prompts at once, without HTTP or text"),
        What::Startup => StartupArgs::augment_args(Command::new("quire bench startup"))
            .about("Measure how long a start takes, up to the first token"),
        What::Cases => CasesArgs::augment_args(Command::new("quire bench cases"))
            .about("Measure many batches of given lengths with one start, without HTTP or text"),
        What::Perplexity => PerplexityArgs::augment_args(Command::new("quire bench perplexity"))
            .about("Measure how well a model predicts a text"),
    };
    let mut command =
        command.after_help("The flags of `quire serve` that concern scheduler and workers are taken too.");
    if words.iter().any(|word| word == "--help" || word == "-h") {
        command.print_help()?;
        return Ok(None);
    }
    let (own, mut others) = split(&command, words);
    let asked = |others: &[String], name: &str| others.iter().any(|word| word.contains(name));
    for (name, default) in [("enable-prefix-caching", "--no-enable-prefix-caching"), ("log-level", "--log-level=warn")]
    {
        if !asked(&others, name) {
            others.push(default.to_owned());
        }
    }
    let settings = engine::parse(&others).map_err(|error| anyhow!("{error}"))?;
    let matches = command.try_get_matches_from(std::iter::once("bench".to_owned()).chain(own)).map_err(in_one_line)?;
    let bench = match what {
        What::Latency => Bench::Latency(LatencyArgs::from_arg_matches(&matches)?),
        What::Throughput => Bench::Throughput(ThroughputArgs::from_arg_matches(&matches)?),
        What::Startup => Bench::Startup(StartupArgs::from_arg_matches(&matches)?),
        What::Cases => Bench::Cases(CasesArgs::from_arg_matches(&matches)?),
        What::Perplexity => Bench::Perplexity(PerplexityArgs::from_arg_matches(&matches)?),
    };
    Ok(Some((bench, settings)))
}

/// What is wrong, without usage and hints, as of an engine's flag.
fn in_one_line(error: clap::Error) -> anyhow::Error {
    let text = error.to_string();
    let lines: Vec<&str> = text.lines().take_while(|line| !line.is_empty()).map(str::trim).collect();
    let words = lines.join(" ");
    anyhow!("{}", words.strip_prefix("error: ").unwrap_or(&words))
}

/// The command's own flags with their values, and all other words.
fn split(command: &Command, words: &[String]) -> (Vec<String>, Vec<String>) {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let mut words = words.iter().cloned();
    while let Some(word) = words.next() {
        let name = word.strip_prefix("--").map(|rest| rest.split('=').next().unwrap_or(rest));
        let known = |arg: &&clap::Arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            name.is_some_and(|name| arg.get_long() == Some(name) || aliases.contains(&name))
        };
        let Some(arg) = command.get_arguments().find(known) else {
            others.push(word);
            continue;
        };
        let value_follows = !word.contains('=') && matches!(arg.get_action(), ArgAction::Set);
        own.push(word);
        own.extend(value_follows.then(|| words.next()).flatten());
    }
    (own, others)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(what: What, line: &str) -> anyhow::Result<(Bench, Settings)> {
        let words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        parse(what, &words).map(|parsed| parsed.unwrap())
    }

    #[test]
    fn own_flags_and_the_engine_s_are_told_apart() {
        let line = "--model m --input-len 7 --dtype bfloat16 --batch-size=3 -tp 2 --load-format dummy";
        let (Bench::Latency(args), settings) = parsed(What::Latency, line).unwrap() else { panic!("not latency") };
        assert_eq!((args.input_len, args.batch_size), (Lengths { least: 7, most: 7 }, 3));
        assert_eq!((settings.text("model"), settings.text("dtype")), (Some("m"), Some("bfloat16")));
        assert_eq!(settings.text("tensor-parallel-size"), Some("2"));
        assert_eq!(settings.text("log-level"), Some("warn"));
    }

    #[test]
    fn lengths_may_vary() {
        let (Bench::Throughput(args), _) = parsed(What::Throughput, "m --random-input-len 64:1024").unwrap() else {
            panic!("not throughput")
        };
        assert_eq!(args.input_len, Lengths { least: 64, most: 1024 });
        for bad in ["0", "9:3", "x", "1:", ""] {
            assert!(Lengths::from_str(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn what_nobody_knows_is_refused() {
        for line in
            ["--batch-sise 3", "--num-iters 0", "--input-len 0", "--batch-size", "--batch-size 0", "--temperature -1"]
        {
            assert!(parsed(What::Latency, line).is_err(), "{line}");
        }
    }

    #[test]
    fn what_is_missing_is_named_in_one_line() {
        let error = parsed(What::Cases, "m").err().expect("--cases is missing").to_string();
        assert!(error.contains("--cases") && !error.contains('\n') && !error.starts_with("error"), "{error}");
    }

    #[test]
    fn a_profile_refuses_what_it_has_no_use_for() {
        assert!(parsed(What::Latency, "--profile f --batch-size 3 --input-len 9").is_ok());
        for flag in ["--num-iters 3", "--num-iters-warmup 3", "--output-len 4", "--temperature 0", "--output-json g"] {
            let error = parsed(What::Latency, &format!("--profile f {flag}")).err().expect(flag).to_string();
            assert!(error.contains("--profile") && error.contains(flag.split(' ').next().unwrap()), "{error}");
            assert!(error.starts_with("the argument") && !error.contains('\n'), "{error}");
        }
    }
}
