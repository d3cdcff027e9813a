//! How many KV blocks fit, decided once at start so that memory is never found missing later.

use crate::config::{Args, MaxModelLen};

/// KV memory a CPU worker takes at most when nothing else is said, bytes (vLLM's default for its CPU backend).
const CPU_DEFAULT: u64 = 4 << 30;
/// Blocks of a model without KV: numbers that stand for nothing.
const FREE_BLOCKS: u64 = 1 << 20;

/// What the sizing goes by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    /// Bytes of this rank's K and V of one token; 0 when the model has none.
    pub kv_bytes_per_token: u64,
    /// Longest sequence of the model.
    pub context_len: u32,
    /// Memory that a new workload could take now, bytes; absent where it cannot be read.
    pub available: Option<u64>,
}

/// Not even one sequence fits.
#[derive(Debug, PartialEq, thiserror::Error)]
#[error(
    "the KV cache has room for {fits} tokens ({budget_mib} MiB), but one sequence of {wanted} tokens needs {needed_mib} MiB; \
     start with --max-model-len {fits} or --max-model-len auto, or give it more memory with --kv-cache-memory-bytes"
)]
pub(crate) struct TooSmall {
    fits: u64,
    budget_mib: u64,
    wanted: u64,
    needed_mib: u64,
}

/// Blocks of this worker's KV cache.
pub(crate) fn num_blocks(args: &Args, facts: Facts) -> Result<u32, TooSmall> {
    let block_size = u64::from(args.block_size);
    let block_bytes = facts.kv_bytes_per_token * block_size;
    let longest = match args.max_model_len {
        Some(MaxModelLen::Tokens(tokens)) => tokens.min(facts.context_len),
        Some(MaxModelLen::Auto) | None => facts.context_len,
    };
    let blocks = if let Some(blocks) = args.num_gpu_blocks_override {
        u64::from(blocks)
    } else if block_bytes == 0 {
        FREE_BLOCKS
    } else if let Some(bytes) = args.kv_cache_memory_bytes {
        bytes / block_bytes
    } else {
        // More than all slots filled to the brim would only hold old prefixes.
        let useful = u64::from(args.max_num_seqs) * u64::from(longest).div_ceil(block_size);
        (default_budget(args, facts) / block_bytes).min(useful)
    };
    let fits = blocks * block_size;
    let must_fit = args.max_model_len != Some(MaxModelLen::Auto);
    if fits == 0 || (must_fit && fits < u64::from(longest)) {
        return Err(TooSmall {
            fits,
            budget_mib: (blocks * block_bytes) >> 20,
            wanted: longest.into(),
            needed_mib: (u64::from(longest) * facts.kv_bytes_per_token).div_ceil(1 << 20),
        });
    }
    Ok(u32::try_from(blocks).unwrap_or(u32::MAX))
}

fn default_budget(args: &Args, facts: Facts) -> u64 {
    let share = facts.available.unwrap_or(CPU_DEFAULT) as f64 * args.gpu_memory_utilization;
    (share as u64 / u64::from(args.tensor_parallel_size)).min(CPU_DEFAULT)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        args: Args,
    }

    fn blocks(flags: &[&str], facts: Facts) -> Result<u32, TooSmall> {
        let required = ["worker", "--model", "m", "--scheduler", "ring:/x"];
        num_blocks(&Cli::parse_from(required.iter().chain(flags)).args, facts)
    }

    const FACTS: Facts = Facts { kv_bytes_per_token: 1024, context_len: 1000, available: Some(100 << 20) };

    #[test]
    fn the_budget_is_what_is_left_and_never_more_than_useful() {
        assert_eq!(blocks(&["--gpu-memory-utilization", "0.5"], FACTS), Ok(50 * 64));
        assert_eq!(blocks(&["--max-num-seqs", "2"], FACTS), Ok(2 * 63));
        assert_eq!(blocks(&["--kv-cache-memory-bytes", "16777216"], FACTS), Ok(1024));
        assert_eq!(blocks(&["--gpu-memory-utilization", "0.5", "--tensor-parallel-size", "2"], FACTS), Ok(25 * 64));
        assert_eq!(blocks(&["--num-gpu-blocks-override", "70"], FACTS), Ok(70));
    }

    #[test]
    fn one_sequence_must_fit() {
        let error = blocks(&["--kv-cache-memory-bytes", "524288"], FACTS).unwrap_err();
        assert_eq!(error, TooSmall { fits: 512, budget_mib: 0, wanted: 1000, needed_mib: 1 });
        assert!(error.to_string().contains("--max-model-len 512"), "{error}");
        assert_eq!(blocks(&["--kv-cache-memory-bytes", "524288", "--max-model-len", "auto"], FACTS), Ok(32));
        assert_eq!(blocks(&["--kv-cache-memory-bytes", "524288", "--max-model-len", "512"], FACTS), Ok(32));
        assert!(blocks(&["--kv-cache-memory-bytes", "10", "--max-model-len", "auto"], FACTS).is_err());
    }

    #[test]
    fn a_model_without_kv_has_blocks_for_nothing() {
        let facts = Facts { kv_bytes_per_token: 0, ..FACTS };
        assert_eq!(blocks(&[], facts), Ok(1 << 20));
    }
}
