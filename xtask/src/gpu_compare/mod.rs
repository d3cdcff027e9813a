//! `cargo xtask gpu-compare`: Quire and its peers on the same work, one after the other on one machine, and the table
//! of both.
//!
//! Every figure is appended to the folder of results as soon as it is known, so that a run that is cut off loses
//! nothing and several runs (other models, the other side) make one table. `--table` only prints what is there.

mod figure;
mod offline;
mod online;
mod process;
mod results;
mod shape;
mod side;
mod table;
mod tokenizer;
mod work;

use std::{fs, path::PathBuf};

use anyhow::{Context, bail};
use clap::{ValueEnum, builder::ArgPredicate};

use results::Results;
use shape::Shape;
use side::Side;

/// What to compare, and with which programs.
#[derive(clap::Args)]
pub struct Args {
    /// The `quire` command
    #[arg(long, default_value = "target/release/quire")]
    quire: PathBuf,
    /// A Python that has the peer: vLLM, or SGLang with `--sides quire,sglang --parts offline`
    #[arg(long, default_value = "python3")]
    python: PathBuf,
    /// Folder of results, which are added to those that it has
    #[arg(long, default_value = "target/gpu-compare")]
    out: PathBuf,
    /// Shapes, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "llama-8b,qwen3-0.6b,mixtral-8x7b,qwen3-30b-a3b")]
    #[arg(default_value_if("config", ArgPredicate::IsPresent, "own"))]
    models: Vec<Shape>,
    /// Programs, in this order
    #[arg(long, value_enum, value_delimiter = ',', default_value = "quire,vllm")]
    sides: Vec<Side>,
    /// Without servers, behind HTTP, or texts to vectors behind HTTP
    #[arg(long, value_enum, value_delimiter = ',', default_value = "offline,online")]
    parts: Vec<Part>,
    /// How many requests are under way at once behind HTTP, load after load
    #[arg(long, value_name = "COUNT", value_delimiter = ',', default_value = "1,16,64,256")]
    clients: Vec<usize>,
    /// What Quire computes on
    #[arg(long, default_value = "cuda")]
    device: String,
    /// The config.json of any model, measured in place of the shapes above
    #[arg(long, value_name = "FILE", conflicts_with = "models")]
    config: Option<PathBuf>,
    /// Cases to measure without servers in place of the table's, as `quire bench cases` takes them; a row is the
    /// time of the best run. Cases with adapters need `-- --enable-lora`
    #[arg(long, value_name = "FILE")]
    cases: Option<PathBuf>,
    /// Folder for random weights that both programs load, where `quire bench weights` writes them first; without it
    /// each makes up its own. Rows of mixtures choose experts as weights say, and so does how many are read
    #[arg(long, value_name = "FOLDER")]
    weights: Option<PathBuf>,
    /// Measure nothing, print the table of the results that are there
    #[arg(long)]
    table: bool,
    /// Flags for both engines, after `--`: `-- --tensor-parallel-size 2`
    #[arg(last = true)]
    flags: Vec<String>,
}

/// How the engines are used.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// As a library: tokens in, tokens out.
    Offline,
    /// Behind HTTP, under load.
    Online,
    /// Behind HTTP, texts to vectors (`/v1/embeddings`).
    Embeddings,
}

/// Measures, and prints the table. What one program cannot do is told at the end; the rest is measured all the same.
pub fn run(args: &Args) -> anyhow::Result<()> {
    fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let results = Results::new(&args.out);
    let mut failures = Vec::new();
    if !args.table {
        let gpu = process::first_line("nvidia-smi", &["--query-gpu=name,driver_version", "--format=csv,noheader"]);
        results.note("gpu", &gpu.unwrap_or_else(|| "no GPU".to_owned()))?;
        if !args.flags.is_empty() {
            results.note("flags of both", &args.flags.join(" "))?;
        }
        if let Some(config) = &args.config {
            results.note("config", &config.display().to_string())?;
        }
        for shape in &args.models {
            for part in &args.parts {
                for side in &args.sides {
                    if let Err(error) = measure(args, *shape, *part, *side, &results) {
                        eprintln!("{side} {shape} {part:?}: {error:#}");
                        failures.push(format!("{side} {shape}"));
                    }
                }
            }
        }
    }
    let table = table::Table::new(&results.read(args.cases.is_some())?);
    fs::write(args.out.join("table.json"), table.json() + "\n")?;
    fs::write(args.out.join("table.md"), table.markdown())?;
    print!("{}", table.markdown());
    if !failures.is_empty() {
        bail!("not measured: {} (see log.txt in {})", failures.join(", "), args.out.display());
    }
    Ok(())
}

fn measure(args: &Args, shape: Shape, part: Part, side: Side, results: &Results) -> anyhow::Result<()> {
    println!("── {side}, {shape}, {part:?}");
    let stage = side::Stage::new(args, shape, side)?;
    match part {
        Part::Offline => offline::run(&stage, results),
        Part::Online if shape.is_served() => online::run(&stage, results),
        Part::Online => Ok(()),
        Part::Embeddings => online::embed(&stage, results),
    }
}
