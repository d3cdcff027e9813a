//! How many KV blocks and recurrent states fit: sized once at start, so that no allocation fails later.

use kernels::{
    cpu::{MachineMemory, machine_memory},
    ops::DeviceMemory,
};
use models::{CacheLayout, Runner};
use service_kit::values::MaxModelLen;

use crate::config::Args;

/// KV memory a CPU worker takes at most when nothing else is said, bytes (vLLM's default for its CPU backend).
const CPU_DEFAULT: u64 = 4 << 30;
/// Blocks of a model without KV, which take no memory.
const FREE_BLOCKS: u64 = 1 << 20;

/// The facts that sizes are computed from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    /// What the model caches of past tokens on this rank.
    pub cache: &'a CacheLayout,
    /// Longest sequence of the model.
    pub context_len: u32,
    /// The memory that the cache is allocated in.
    pub memory: Memory,
    /// Bytes of a device's memory that CUDA graphs will take.
    pub graphs: u64,
}

/// Memory as it is now, with weights and activations in place.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Memory {
    /// The machine's, which others use too; absent where it cannot be read.
    Machine(Option<MachineMemory>),
    /// A device's own.
    Device(DeviceMemory),
}

/// The memory of the device that a model is on.
pub(crate) fn of(model: &dyn Runner) -> Memory {
    model.device_memory().map_or_else(|| Memory::Machine(machine_memory()), Memory::Device)
}

/// The cache does not fit.
#[derive(Debug, PartialEq, thiserror::Error)]
pub(crate) enum TooSmall {
    /// Not even one sequence.
    #[error(
        "the KV cache has room for {fits} tokens ({budget_mib} MiB), but one sequence of {wanted} tokens needs \
         {needed_mib} MiB; start with --max-model-len {fits} or --max-model-len auto, or give it more memory with \
         --kv-cache-memory-bytes or --gpu-memory-utilization"
    )]
    Blocks { fits: u64, budget_mib: u64, wanted: u64, needed_mib: u64 },
    /// Not even a token of it.
    #[error(
        "there is no memory for the KV cache ({budget_mib} MiB), of which one sequence of {wanted} tokens needs \
         {needed_mib} MiB; give it more with --kv-cache-memory-bytes or --gpu-memory-utilization"
    )]
    Nothing { budget_mib: u64, wanted: u64, needed_mib: u64 },
    /// The recurrent states alone.
    #[error(
        "recurrent states of {sequences} sequences need {needed_mib} MiB, but there are {budget_mib}; \
         start with a smaller --max-num-seqs, or give it more memory with --kv-cache-memory-bytes"
    )]
    States { sequences: u32, needed_mib: u64, budget_mib: u64 },
    /// More was asked for than there is. The machine would promise it, and end the process once it is used.
    #[error(
        "--kv-cache-memory-bytes: {asked_mib} MiB for each of {workers} workers, but this machine has {total_mib} MiB \
         in all; ask for less, or leave it out"
    )]
    Beyond { asked_mib: u64, workers: u32, total_mib: u64 },
}

/// What fits into this worker's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Capacity {
    /// Blocks of its KV cache.
    pub num_blocks: u32,
    /// Sequences that run at the same time.
    pub max_num_seqs: u32,
}

impl TooSmall {
    fn states(sequences: u32, needed: u64, budget: u64) -> Self {
        Self::States { sequences, needed_mib: needed.div_ceil(1 << 20), budget_mib: budget >> 20 }
    }
}

/// Divides the memory between states and blocks.
pub(crate) fn capacity(args: &Args, facts: Facts<'_>) -> Result<Capacity, TooSmall> {
    check_machine(args, facts.memory)?;
    let max_num_seqs = max_num_seqs(args, facts)?;
    Ok(Capacity { num_blocks: num_blocks(args, facts, max_num_seqs)?, max_num_seqs })
}

/// What was asked for is in the machine.
fn check_machine(args: &Args, memory: Memory) -> Result<(), TooSmall> {
    let (Some(asked), Memory::Machine(Some(memory))) = (args.kv_cache_memory_bytes, memory) else { return Ok(()) };
    let workers = args.local_world_size();
    if asked.saturating_mul(workers.into()) <= memory.total {
        return Ok(());
    }
    Err(TooSmall::Beyond { asked_mib: asked >> 20, workers, total_mib: memory.total >> 20 })
}

/// `--max-num-seqs`; without it the default, or fewer if their recurrent states do not fit. States get at most half of
/// the memory where keys and values are cached too.
fn max_num_seqs(args: &Args, facts: Facts<'_>) -> Result<u32, TooSmall> {
    let (usual, state) = (args.group.max_num_seqs(), facts.cache.state_bytes);
    if args.group.max_num_seqs.is_some() || state == 0 {
        return Ok(usual);
    }
    let budget = budget(args, facts);
    let for_states = if facts.cache.place_bytes == 0 { budget } else { budget / 2 };
    match u32::try_from(for_states / state).unwrap_or(u32::MAX).min(usual) {
        0 => Err(TooSmall::states(1, state, for_states)),
        sequences => Ok(sequences),
    }
}

fn num_blocks(args: &Args, facts: Facts<'_>, max_num_seqs: u32) -> Result<u32, TooSmall> {
    let block_bytes = facts.cache.place_bytes * u64::from(args.block_size);
    let sizing = sizing(args, facts.cache);
    let longest = match args.length.max_model_len {
        Some(MaxModelLen::Tokens(tokens)) => tokens.min(facts.context_len),
        Some(MaxModelLen::Auto) | None => facts.context_len,
    };
    let needed = sizing.blocks_for(longest);
    let budget = || after_states(args, facts, max_num_seqs);
    let blocks = if let Some(blocks) = args.num_gpu_blocks_override {
        u64::from(blocks)
    } else if block_bytes == 0 {
        budget()?;
        FREE_BLOCKS
    } else if args.kv_cache_memory_bytes.is_some() {
        budget()? / block_bytes
    } else {
        let fit = budget()? / block_bytes;
        match facts.memory {
            // More than the longest sequence in every slot would only hold old prefixes.
            Memory::Machine(_) => fit.min(u64::from(max_num_seqs) * needed),
            Memory::Device(_) => fit,
        }
    };
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    let must_fit = args.length.max_model_len != Some(MaxModelLen::Auto);
    let fits = sizing.positions_in(blocks);
    let (budget_mib, needed_mib) = ((u64::from(blocks) * block_bytes) >> 20, (needed * block_bytes).div_ceil(1 << 20));
    let wanted = u64::from(longest);
    match fits {
        0 => Err(TooSmall::Nothing { budget_mib, wanted, needed_mib }),
        _ if must_fit && fits < longest => Err(TooSmall::Blocks { fits: fits.into(), budget_mib, wanted, needed_mib }),
        _ => Ok(blocks),
    }
}

/// The scheduler's arithmetic of a sequence's blocks, for steps of the largest size.
fn sizing(args: &Args, cache: &CacheLayout) -> sched_core::Config {
    let window = |window: usize| u32::try_from(window).unwrap_or(u32::MAX);
    sched_core::Config {
        block_size: args.block_size,
        max_num_batched_tokens: args.group.max_num_batched_tokens().max(args.group.max_num_seqs()),
        windows: cache.groups.iter().map(|group| group.window.map(window)).collect(),
        ..sched_core::Config::default()
    }
}

/// Bytes for blocks, after every sequence's recurrent state.
fn after_states(args: &Args, facts: Facts<'_>, max_num_seqs: u32) -> Result<u64, TooSmall> {
    let budget = budget(args, facts);
    let states = facts.cache.state_bytes * u64::from(max_num_seqs);
    budget.checked_sub(states).ok_or(TooSmall::states(max_num_seqs, states, budget))
}

/// Bytes for blocks and recurrent states.
fn budget(args: &Args, facts: Facts<'_>) -> u64 {
    args.kv_cache_memory_bytes.unwrap_or_else(|| match facts.memory {
        Memory::Machine(memory) => machine_budget(args, memory),
        Memory::Device(memory) => device_budget(args, memory).saturating_sub(facts.graphs),
    })
}

fn machine_budget(args: &Args, memory: Option<MachineMemory>) -> u64 {
    let share = memory.map_or(CPU_DEFAULT, |memory| memory.available) as f64 * args.gpu_memory_utilization;
    (share as u64 / u64::from(args.local_world_size())).min(CPU_DEFAULT)
}

/// Free memory, less the share of the device that is to stay free.
fn device_budget(args: &Args, memory: DeviceMemory) -> u64 {
    let spared = memory.total as f64 * (1.0 - args.gpu_memory_utilization);
    memory.free.saturating_sub(spared as u64)
}

#[cfg(test)]
mod tests {
    use models::CacheGroup;

    use super::*;

    const MACHINE: Memory = Memory::Machine(Some(MachineMemory { total: 2 << 30, available: 100 << 20 }));

    fn args(flags: &[&str]) -> Args {
        let required = ["worker", "--model", "m", "--scheduler", "ring:/x"];
        service_kit::parse_flags(required.iter().chain(flags)).expect("flags")
    }

    fn blocks(flags: &[&str], cache: &CacheLayout) -> Result<u32, TooSmall> {
        blocks_in(MACHINE, flags, cache)
    }

    fn blocks_in(memory: Memory, flags: &[&str], cache: &CacheLayout) -> Result<u32, TooSmall> {
        let facts = Facts { cache, context_len: 1000, memory, graphs: 10 << 20 };
        capacity(&args(flags), facts).map(|capacity| capacity.num_blocks)
    }

    /// Cache groups of one window each, of `bytes_per_token`.
    fn cache(windows: &[Option<usize>], bytes_per_token: u64, state_bytes: u64) -> CacheLayout {
        let group = |&window| CacheGroup { layers: 1, window, bytes_per_token };
        CacheLayout { groups: windows.iter().map(group).collect(), place_bytes: bytes_per_token, state_bytes }
    }

    #[test]
    fn the_budget_is_what_is_left_and_never_more_than_useful() {
        let cache = cache(&[None], 1024, 0);
        let blocks = |flags: &[&str]| blocks(flags, &cache);
        assert_eq!(blocks(&["--gpu-memory-utilization", "0.5"]), Ok(50 * 64));
        assert_eq!(blocks(&["--max-num-seqs", "2"]), Ok(2 * 63));
        assert_eq!(blocks(&["--kv-cache-memory-bytes", "16777216"]), Ok(1024));
        assert_eq!(blocks(&["--gpu-memory-utilization", "0.5", "--tensor-parallel-size", "2"]), Ok(25 * 64));
        assert_eq!(blocks(&["--num-gpu-blocks-override", "70"]), Ok(70));
    }

    #[test]
    fn what_the_machine_does_not_have_is_refused() {
        let cache = cache(&[None], 1024, 0);
        // In use now, but there.
        assert_eq!(blocks(&["--kv-cache-memory-bytes", "2G"], &cache), Ok(2 << 16));
        let error = blocks(&["--kv-cache-memory-bytes", "100T"], &cache).unwrap_err();
        assert_eq!(error, TooSmall::Beyond { asked_mib: 100 << 20, workers: 1, total_mib: 2048 });
        let of_two = ["--kv-cache-memory-bytes", "2G", "--tensor-parallel-size", "2"];
        assert!(matches!(blocks(&of_two, &cache), Err(TooSmall::Beyond { workers: 2, .. })));
    }

    #[test]
    fn windows_need_no_more_than_they_cover() {
        let flags = ["--max-num-seqs", "2", "--max-num-batched-tokens", "64"];
        // All of 1000 tokens; a window of 32 with two steps of 64; both.
        assert_eq!(blocks(&flags, &cache(&[None], 1024, 0)), Ok(2 * 63));
        assert_eq!(blocks(&flags, &cache(&[Some(32)], 1024, 0)), Ok(2 * 9));
        assert_eq!(blocks(&flags, &cache(&[None, Some(32)], 1024, 0)), Ok(2 * (63 + 9)));
    }

    #[test]
    fn states_come_first() {
        let cache = cache(&[None], 1024, 1 << 20);
        assert_eq!(blocks(&["--max-num-seqs", "4", "--kv-cache-memory-bytes", "5242880"], &cache), Ok(64));
        let error = blocks(&["--max-num-seqs", "6", "--kv-cache-memory-bytes", "5242880"], &cache).unwrap_err();
        assert_eq!(error, TooSmall::States { sequences: 6, needed_mib: 6, budget_mib: 5 });
        assert!(error.to_string().contains("--max-num-seqs"), "{error}");
    }

    #[test]
    fn states_of_fewer_sequences_by_default() {
        let capacity_in = |flags: &[&str], cache: &CacheLayout| {
            let facts = Facts { cache, context_len: 1000, memory: MACHINE, graphs: 0 };
            capacity(&args(flags), facts)
        };
        let fits = |num_blocks, max_num_seqs| Ok(Capacity { num_blocks, max_num_seqs });
        let alone = cache(&[None], 0, 1 << 20);
        assert_eq!(capacity_in(&[], &alone), fits(1 << 20, 92));
        assert_eq!(capacity_in(&["--kv-cache-memory-bytes", "1073741824"], &alone), fits(1 << 20, 256));
        // Half of it is for keys and values.
        let both = cache(&[None], 1024, 1 << 20);
        assert_eq!(capacity_in(&["--kv-cache-memory-bytes", "41943040"], &both), fits(20 * 64, 20));
        let error = capacity_in(&["--kv-cache-memory-bytes", "1000000"], &both).unwrap_err();
        assert!(matches!(error, TooSmall::States { sequences: 1, .. }), "{error:?}");
        // What was asked for is honoured or refused.
        assert!(capacity_in(&["--max-num-seqs", "256"], &alone).is_err());
    }

    #[test]
    fn a_device_is_filled_up_to_its_share() {
        let memory = Memory::Device(DeviceMemory { free: 60 << 20, total: 100 << 20 });
        let cache = cache(&[None], 1024, 0);
        let blocks = |flags: &[&str]| blocks_in(memory, flags, &cache);
        // Less what CUDA graphs take.
        assert_eq!(blocks(&["--gpu-memory-utilization", "0.6"]), Ok(10 * 64));
        assert_eq!(blocks(&["--gpu-memory-utilization", "1"]), Ok(50 * 64));
        assert_eq!(blocks(&["--kv-cache-memory-bytes", "16777216"]), Ok(1024));
        assert!(blocks(&["--gpu-memory-utilization", "0.5"]).is_err());
    }

    #[test]
    fn one_sequence_must_fit() {
        let cache = cache(&[None], 1024, 0);
        let blocks = |flags: &[&str]| blocks(flags, &cache);
        let error = blocks(&["--kv-cache-memory-bytes", "524288"]).unwrap_err();
        assert_eq!(error, TooSmall::Blocks { fits: 512, budget_mib: 0, wanted: 1000, needed_mib: 1 });
        assert!(error.to_string().contains("--max-model-len 512"), "{error}");
        assert_eq!(blocks(&["--kv-cache-memory-bytes", "524288", "--max-model-len", "auto"]), Ok(32));
        assert_eq!(blocks(&["--kv-cache-memory-bytes", "524288", "--max-model-len", "512"]), Ok(32));
        for length in ["auto", "512"] {
            let error = blocks(&["--kv-cache-memory-bytes", "10", "--max-model-len", length]).unwrap_err().to_string();
            assert!(error.contains("--kv-cache-memory-bytes") && !error.contains("--max-model-len"), "{error}");
        }
    }

    #[test]
    fn a_model_without_kv_has_blocks_for_nothing() {
        assert_eq!(blocks(&[], &cache(&[None], 0, 0)), Ok(1 << 20));
    }
}
