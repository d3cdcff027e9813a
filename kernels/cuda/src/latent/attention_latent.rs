//! Launches `kernels/cuda/csrc/latent/attention_latent.cu`, or `attention_latent_mma.cu`, for prompts and single rows
//! whose values are a part of their keys, and `attention_latent_merge.cu` after it.

use crate::attention::attention_prefill::ROW_GROUP;
use crate::attention::backend::AttentionDevice;
use crate::attention::kv::{Kv, Maps};
use crate::attention::layer::{HeadDims, Layer, Tensors};
use crate::jit::layouts::twin;
use crate::jit::specialization::{HOPPER, LOWEST, Special};
use crate::runtime::batch::{self, Batch, Sequences};
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Shape, args};
use kernels::ops::{DType, ExpectedAttention, KvDType, KvShape, ScoreMods};

/// What the kernels are for: keys, the ends of which are values.
const DIMS: HeadDims = HeadDims { dim: 576, v_dim: 512 };
/// Most rows of a tile.
const ROWS: usize = 64;
const MERGE_THREADS: usize = 512;
/// Keys of a tile, threads of a block, and tiles of keys in shared memory, of the kernel for Hopper.
const KEYS: usize = 64;
const THREADS: usize = 384;
const STAGES: usize = 2;
/// Most blocks of a cluster of it.
const TEAM: usize = 2;

/// `struct Split` of the kernels: what a block says of the tile of rows that others end.
#[repr(C)]
pub(crate) struct Split {
    row: u32,
    rows: u32,
    others: u32,
}

twin!(Split = "Split" { row, rows, others });

/// `Latent::prepare` of the kernel for Hopper: queries, stages of keys, weights, numbers of rows, barriers, two
/// descriptions of work, and room to align them.
const SHARED: usize = {
    let rows = (ROWS + STAGES * KEYS) * DIMS.dim * 2;
    let (weights, factors, barriers, work) = (ROWS * KEYS * 2, 128 * 8, (2 * STAGES + 8) * 8, 2 * 10 * 4);
    1024 + rows + weights + factors + barriers + work
};

/// The kernel for all devices, by the rows of its tiles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mma {
    Few,
    Many,
}

impl Mma {
    const fn rows(self) -> usize {
        match self {
            Self::Few => 16,
            Self::Many => ROWS,
        }
    }

    const fn threads(self) -> usize {
        match self {
            Self::Few => 128,
            Self::Many => 256,
        }
    }

    fn special(self, rows: DType) -> Special {
        Special::new("attention_latent_mma", rows, &[("TILE_ROWS", self.rows())])
    }

    fn merge(self, rows: DType) -> Special {
        if self == Self::Few { merge(rows).with("TILE_ROWS", self.rows()) } else { merge(rows) }
    }

    /// `LatentMma::prepare` of the kernel: queries, two stages of keys, weights, scores, numbers of rows, places of
    /// keys.
    const fn shared(self) -> usize {
        const KEYS: usize = 32;
        let (rows, splits) = (self.rows(), self.threads() / 32 / (self.rows() / 16 * (KEYS / 16)));
        let tiles = (rows + 2 * KEYS) * DIMS.dim * 2;
        tiles + rows * (KEYS * 2 + 16) + splits * rows * (KEYS + 4) * 4 + rows * 4 + 2 * KEYS * 4
    }

    /// Many, where there are that many, or may be, and room for them.
    fn of(device: AttentionDevice, layer: &Layer, has_prompts: bool) -> Self {
        let many = has_prompts || layer.q_heads as usize > Self::Few.rows();
        if many && Self::Many.shared() <= device.shared_of_block { Self::Many } else { Self::Few }
    }
}

fn merge(rows: DType) -> Special {
    Special::new("attention_latent_merge", rows, &[])
}

/// The kernel for Hopper, in clusters of `team` blocks.
fn hopper(rows: DType, team: usize) -> Special {
    Special::new("attention_latent", rows, &[("BLOCKS", team)])
}

/// The kernels for Hopper, or those for all, for rows of a type and a cache of the same.
pub(crate) fn specials(is_hopper: bool, rows: DType) -> Vec<Special> {
    match is_hopper {
        true => (1..=TEAM).map(|team| hopper(rows, team)).chain([merge(rows)]).collect(),
        false => [Mma::Few, Mma::Many].iter().flat_map(|mma| [mma.special(rows), mma.merge(rows)]).collect(),
    }
}

/// What blocks leave of tiles of rows that several of them have.
#[derive(Debug)]
pub(crate) struct Parts {
    parts: Memory,
    splits: Memory,
}

impl Parts {
    pub(crate) fn new(device: &mut Device) -> Option<Self> {
        let blocks = device.context.multiprocessors;
        let part = ROWS * (DIMS.v_dim + 2) * size_of::<f32>();
        let parts = device.allocate(blocks * 2 * part, "parts of latent attention")?;
        Some(Self { parts, splits: device.allocate(blocks * size_of::<Split>(), "splits of latent attention")? })
    }
}

/// Why the kernels do not serve such layers, if they do not.
pub(crate) fn refusal(device: AttentionDevice, expected: ExpectedAttention) -> Option<String> {
    let ExpectedAttention { heads, compute, cache, scores, .. } = expected;
    let HeadDims { dim, v_dim } = DIMS;
    if device.arch < LOWEST {
        return Some(format!("need a GPU of compute capability {} or higher", LOWEST.capability()));
    }
    if compute.size() != 2 || cache != KvDType::Float(compute) {
        return Some("compute latent attention in 16 bits, over a cache of the same type".to_owned());
    }
    if scores != ScoreMods::default() {
        return Some("have no soft cap, ALiBi or relative bias with latent attention".to_owned());
    }
    if (heads.kv, heads.dim, heads.v_dim) != (1, dim, v_dim) {
        return Some(format!(
            "take latent keys of {dim} and values of {v_dim}, not of {} and {}",
            heads.dim, heads.v_dim
        ));
    }
    let (needed, has) = (Mma::Few.shared(), device.shared_of_block);
    (needed > has).then(|| format!("need {needed} bytes of shared memory for latent attention, and there are {has}"))
}

/// Why the kernel for Hopper does not serve such layers, if it does not, where the others do.
pub(crate) fn hopper_refusal(device: AttentionDevice, block_size: usize) -> Option<String> {
    if device.arch != HOPPER || device.shared_of_block < SHARED {
        return Some("need a GPU of the Hopper architecture".to_owned());
    }
    (!block_size.is_multiple_of(ROW_GROUP))
        .then(|| format!("take KV blocks of multiples of {ROW_GROUP} tokens (--block-size), not of {block_size}"))
}

/// Tokens of a block that the copy engine brings at once, where the kernel for Hopper reads such a cache.
pub(crate) fn mapped_tokens(device: AttentionDevice, shape: KvShape) -> Option<usize> {
    let KvShape { block_size, kv_heads, head_dim, v_head_dim, dtype, .. } = shape;
    let is_taken = kv_heads == 1 && dtype.size() == 2 && HeadDims { dim: head_dim, v_dim: v_head_dim } == DIMS;
    let tokens = (KEYS / TEAM).min(1 << block_size.trailing_zeros());
    (is_taken && hopper_refusal(device, block_size).is_none()).then_some(tokens)
}

/// What is attended to.
#[derive(Clone, Copy)]
pub(crate) struct Latent<'a> {
    pub(crate) tensors: Tensors,
    pub(crate) layer: Layer,
    pub(crate) kv: &'a Kv,
}

impl Latent<'_> {
    /// Whether the kernels are for it.
    pub(crate) fn fits(&self, device: AttentionDevice) -> bool {
        let Self { tensors, layer, kv } = *self;
        let types = tensors.types();
        kv.shape.shared
            && device.arch >= LOWEST
            && types.rows.size() == 2
            && types.cache == KvDType::Float(types.rows)
            && tensors.out.dtype == types.rows
            && layer.kv_heads == 1
            && layer.dims() == DIMS
            && layer.sees_all_before()
            && layer.scores() == ScoreMods::default()
            && !layer.has_sinks()
            && Mma::Few.shared() <= device.shared_of_block
    }
}

/// What a step's rows are to the kernels.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    pub(crate) sequences: Sequences,
    /// Some may be several rows of a sequence.
    pub(crate) has_prompts: bool,
    /// Second tiles of rows of clusters are seldom empty.
    pub(crate) fills_teams: bool,
}

impl Step {
    /// All sequences of a batch.
    pub(crate) fn of(batch: &Batch, heads: usize) -> Self {
        let [teams, all] = [TEAM, 1].map(|team| team * batch.all_tiles(heads, team * ROWS));
        let (sequences, has_prompts) = (batch.all(), batch.has(batch::Rows::Several));
        Self { sequences, has_prompts, fills_teams: 15 * teams <= 16 * all }
    }

    /// Sequences, and how many rows of each are to be attended to.
    pub(crate) fn of_some(sequences: Sequences, rows: &[usize], heads: usize) -> Self {
        let tiles = |size: usize| rows.iter().map(|rows| (rows * heads).div_ceil(size)).sum::<usize>();
        let [teams, all] = [TEAM, 1].map(|team| team * tiles(team * ROWS));
        let has_prompts = rows.iter().any(|rows| *rows > 1);
        Self { sequences, has_prompts, fills_teams: 15 * teams <= 16 * all }
    }

    /// Rows that are sequences of their own.
    pub(crate) fn of_rows(sequences: Sequences, heads: usize) -> Self {
        Self { sequences, has_prompts: false, fills_teams: heads.is_multiple_of(TEAM * ROWS) }
    }
}

/// Queues attention of all rows of the sequences, and zeros for rows of none; false if that cannot be here.
pub(crate) fn run(device: &mut Device, parts: &Parts, latent: Latent<'_>, step: Step) -> bool {
    let Latent { tensors: Tensors { out, .. }, layer, kv } = latent;
    let launched = match &kv.maps {
        Some(maps) => run_hopper(device, parts, latent, step, maps),
        None => run_mma(device, parts, latent, step),
    };
    let Some(Launched { blocks, team, merge }) = launched else { return false };
    let shape = Shape { grid: [device.context.multiprocessors, 1], block: MERGE_THREADS, shared: 0 };
    let [blocks, team] = [blocks, team].map(|number| number as u32);
    device.launch_special(merge, shape, args![out.ptr, parts.parts.ptr, parts.splits.ptr, layer, blocks, team])
}

/// Blocks, those of a cluster, and what merges what they leave.
struct Launched {
    blocks: usize,
    team: usize,
    merge: Special,
}

fn run_hopper(
    device: &mut Device,
    Parts { parts, splits }: &Parts,
    Latent { tensors: Tensors { qkv, out, .. }, layer, .. }: Latent<'_>,
    Step { sequences: Sequences { pointers, count, is_new }, fills_teams, .. }: Step,
    maps: &Maps,
) -> Option<Launched> {
    let team = if fills_teams { TEAM } else { 1 };
    let blocks = device.context.multiprocessors / team * team;
    let shape = Shape { grid: [blocks, 1], block: THREADS, shared: SHARED };
    let (count, rows) = (count as u32, qkv.rows as u32);
    let arguments = args![out.ptr, qkv.ptr, maps.keys, parts.ptr, splits.ptr, pointers, layer, count, rows];
    let launched = device.launch_after(is_new, hopper(qkv.dtype, team), shape, arguments);
    launched.then(|| Launched { blocks, team, merge: merge(qkv.dtype) })
}

fn run_mma(
    device: &mut Device,
    Parts { parts, splits }: &Parts,
    Latent { tensors: Tensors { qkv, keys, out, .. }, layer, .. }: Latent<'_>,
    Step { sequences: Sequences { pointers, count, is_new }, has_prompts, .. }: Step,
) -> Option<Launched> {
    let mma = Mma::of((&*device.context).into(), &layer, has_prompts);
    let blocks = device.context.multiprocessors;
    let shape = Shape { grid: [blocks, 1], block: mma.threads(), shared: mma.shared() };
    let (count, rows) = (count as u32, qkv.rows as u32);
    let arguments = args![out.ptr, qkv.ptr, keys, parts.ptr, splits.ptr, pointers, layer, count, rows];
    let launched = device.launch_after(is_new, mma.special(qkv.dtype), shape, arguments);
    launched.then(|| Launched { blocks, team: 1, merge: mma.merge(qkv.dtype) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_device_with_tensor_cores_has_room() {
        let (ada, ampere, hopper) = (99 << 10, 163 << 10, 227 << 10);
        assert!(Mma::Few.shared() <= ada, "{}", Mma::Few.shared());
        assert!(Mma::Many.shared() <= ampere, "{}", Mma::Many.shared());
        assert!(SHARED <= hopper, "{SHARED}");
    }
}
