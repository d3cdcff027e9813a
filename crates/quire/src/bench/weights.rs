//! `quire bench weights`: a model with random weights as a folder, so that a start from files, or another server, can
//! be measured without a download.

use std::{path::PathBuf, time::Instant};

use anyhow::anyhow;
use clap::{Args, ValueEnum};
use kernels::ops::DType;

/// Flags of `quire bench weights`.
#[derive(Args, Clone, Debug)]
pub struct WeightsArgs {
    /// Folder with the model's config.json; where that quantizes, projections are written as its format has them
    pub model: PathBuf,
    /// Folder to write: the files beside the weights, and model.safetensors
    pub output: PathBuf,
    /// Element type of weights that are not quantized
    #[arg(long, value_enum, default_value_t = Type::Bfloat16)]
    pub dtype: Type,
    /// Other weights for another seed
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
}

/// Element types of weights.
#[derive(ValueEnum, Clone, Copy, Debug)]
pub enum Type {
    Bfloat16,
    Float16,
    Float32,
}

pub(super) fn run(args: &WeightsArgs) -> anyhow::Result<()> {
    let dtype = match args.dtype {
        Type::Bfloat16 => DType::Bf16,
        Type::Float16 => DType::F16,
        Type::Float32 => DType::F32,
    };
    let start = Instant::now();
    let bytes = models::save_random(&args.model, &args.output, dtype, args.seed).map_err(|error| anyhow!("{error}"))?;
    let (gb, seconds) = (bytes as f64 * 1e-9, start.elapsed().as_secs_f64());
    println!("{}: {gb:.2} GB in {seconds:.2} s", args.output.display());
    Ok(())
}
