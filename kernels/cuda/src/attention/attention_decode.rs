//! Launches `kernels/cuda/csrc/decode/attention_decode.cu` for sequences with one row, or `attention_decode_mqa.cu`
//! where many query heads share a key head.

use crate::attention::attention_cascade::Cascade;
use crate::attention::attention_decode_mqa::Mqa;
use crate::attention::layer::{AttentionTypes, HeadDims, Layer, Tensors, narrow};
use crate::jit::layouts::twin;
use crate::jit::specialization::Special;
use crate::runtime::batch::Sequences;
use crate::runtime::context::{Context, Memory};
use crate::runtime::device::{Device, Shape, args};
use kernels::ops::{Heads, KvDType};

/// Keys that a warp takes at a time.
const KEYS: usize = 16;
/// Query heads of one tile of a matrix operand, and most tiles.
const TILE_HEADS: usize = 8;
const MOST_TILES: usize = 2;
/// Sequences from which on more query heads of a key head are taken at once. With fewer, what several blocks leave of a
/// head takes longer in short contexts than keys do that are read more than once.
const MQA_SEQUENCES: usize = 32;
/// Blocks of the grid at most, on any device.
const MOST_BLOCKS: usize = 4 * 256;
/// Numbers that all blocks of a launch may leave each other.
const SCRATCH: usize = 6 << 20;
/// Tokens of a cache's block at most: where a position lies is found by a product instead of a quotient.
const MOST_TOKENS: u32 = 1 << 11;

/// A block's warps, and stages of each warp's ring in shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ring {
    warps: usize,
    stages: usize,
}

impl Ring {
    /// For few heads and for many: with few, a head's keys go to more warps.
    pub(crate) fn of(cache: KvDType, HeadDims { dim, v_dim }: HeadDims) -> [Self; 2] {
        if dim + v_dim <= 256 {
            [Self { warps: 8, stages: 2 }, Self { warps: 4, stages: if cache == KvDType::E4m3 { 2 } else { 3 } }]
        } else {
            [Self { warps: 4, stages: 2 }; 2]
        }
    }

    /// Shared memory of a block; as `Decode::set` of the kernel lays it out.
    fn shared(&self, cache: KvDType, HeadDims { dim, v_dim }: HeadDims, group: usize) -> usize {
        let stage = KEYS * (row_bytes(cache, dim) + row_bytes(cache, v_dim));
        let sums = group * (v_dim + 6) * size_of::<f32>();
        self.warps * (self.stages * stage + sums)
    }
}

/// Blocks of a multiprocessor at most. A warp waits for what it does with 16 keys, one after another: where these are
/// half as many bytes, twice the warps keep as many on their way, if registers suffice.
fn most_blocks(cache: KvDType, HeadDims { dim, v_dim }: HeadDims, tiles: usize, ring: Ring) -> usize {
    match cache {
        KvDType::E4m3 if dim + v_dim <= 256 && tiles == 1 => 16 / ring.warps,
        KvDType::E4m3 => 8 / ring.warps,
        _ => 2,
    }
}

/// As `Row` of the kernel: pieces of 16 bytes, swizzled or an odd number of them.
pub(crate) fn row_bytes(cache: KvDType, dim: usize) -> usize {
    let bytes = dim * cache.size();
    if bytes.is_multiple_of(128) || !bytes.is_multiple_of(32) { bytes } else { bytes + 16 }
}

/// For rows of a type, and a cache of the same or of 8-bit floats.
pub(crate) fn special(types: AttentionTypes, HeadDims { dim, v_dim }: HeadDims, tiles: usize, ring: Ring) -> Special {
    let sizes = [("DIM", dim), ("V_DIM", v_dim), ("TILES_Q", tiles), ("WARPS", ring.warps), ("STAGES", ring.stages)];
    Special::new("attention_decode", types.rows, &[&sizes, narrow(types.cache)].concat())
}

/// A kernel, and what a launch must know of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    pub(crate) special: Special,
    /// Shared memory of a block.
    pub(crate) shared: usize,
    pub(crate) threads: usize,
    /// Of a multiprocessor at most.
    pub(crate) blocks: usize,
    /// Query heads of a key head that a block takes at once, at most.
    pub(crate) heads: usize,
    /// Numbers that a block may leave others.
    pub(crate) leaves: usize,
}

impl Form {
    /// For groups of query heads of a key head.
    fn with_ring(types: AttentionTypes, dims: HeadDims, group: usize, ring: Ring) -> Self {
        let tiles = tiles(group);
        Self {
            special: special(types, dims, tiles, ring),
            shared: ring.shared(types.cache, dims, group.min(TILE_HEADS * tiles)),
            threads: 32 * ring.warps,
            blocks: most_blocks(types.cache, dims, tiles, ring),
            heads: TILE_HEADS * MOST_TILES,
            leaves: TILE_HEADS * tiles * (dims.v_dim + 2),
        }
    }

    /// For many query heads on a key head, where a block has the shared memory that it takes.
    fn mqa(types: AttentionTypes, dims: HeadDims, group: usize, shared_of_block: usize) -> Option<Self> {
        let form = Mqa::of(types.cache, dims, group)?.form(types, dims);
        (form.shared <= shared_of_block).then_some(form)
    }

    /// For steps of that many sequences.
    fn of(context: &Context, types: AttentionTypes, layer: &Layer, sequences: usize) -> Self {
        let (dims, group) = (layer.dims(), layer.group_size());
        let mqa = Self::mqa(types, dims, group, context.shared_of_block);
        if let Some(form) = mqa.filter(|_| sequences >= MQA_SEQUENCES) {
            return form;
        }
        let [few, many] = Ring::of(types.cache, dims);
        let heads = layer.kv_heads as usize * group.div_ceil(TILE_HEADS * MOST_TILES);
        let ring = if sequences * heads <= context.multiprocessors { few } else { many };
        Self::with_ring(types, dims, group, ring)
    }

    /// The kernel that follows [`attention_cascade`](crate::attention::attention_cascade): what is left is short, and
    /// one ring will do.
    fn cascaded(types: AttentionTypes, dims: HeadDims, group: usize) -> Self {
        let [_, ring] = Ring::of(types.cache, dims);
        let form = Self::with_ring(types, dims, group, ring);
        Self { special: form.special.with("CASCADE", 1), ..form }
    }
}

/// The kernel that follows [`attention_cascade`](crate::attention::attention_cascade), for groups of query heads, and
/// its shared memory.
pub(crate) fn cascaded(types: AttentionTypes, dims: HeadDims, group: usize) -> (Special, usize) {
    let form = Form::cascaded(types, dims, group);
    (form.special, form.shared)
}

/// All kernels that steps of such heads may take: for few of them and for many, and for many on a key head.
pub(crate) fn specials(types: AttentionTypes, heads: Heads, shared_of_block: usize) -> Vec<Special> {
    let (dims, group) = (HeadDims { dim: heads.dim, v_dim: heads.v_dim }, heads.q / heads.kv);
    let mut all = Ring::of(types.cache, dims).map(|ring| special(types, dims, tiles(group), ring)).to_vec();
    all.dedup();
    all.extend(Form::mqa(types, dims, group, shared_of_block).map(|form| form.special));
    all
}

/// Most shared memory of a block that takes up to 16 query heads at once: more are taken where there is more.
pub(crate) fn most_shared(cache: KvDType, dims: HeadDims, heads: Heads) -> usize {
    let group = heads.q / heads.kv;
    let shared = |ring: Ring| ring.shared(cache, dims, group.min(TILE_HEADS * tiles(group)));
    Ring::of(cache, dims).map(shared).into_iter().max().unwrap_or(0)
}

/// Tiles of a group of query heads.
fn tiles(group: usize) -> usize {
    group.div_ceil(TILE_HEADS).min(MOST_TILES)
}

/// What blocks leave each other of heads that several have parts of. All bits are set where nothing is.
#[derive(Debug)]
pub(crate) struct Scratch(Memory);

impl Scratch {
    /// For any shape and batch.
    pub(crate) fn new(device: &mut Device) -> Option<Self> {
        let parts = device.allocate(SCRATCH * size_of::<f32>(), "parts of attention")?;
        device.fill(&parts, u8::MAX);
        Some(Self(parts))
    }
}

/// `struct Shares` of the kernel: what it cuts a step's work by, beside the batch.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shares {
    rows: u32,
    sequences: u32,
    multiprocessors: u32,
    group_size: u32,
    groups_per_head: u32,
    heads: u32,
    block_inverse: u32,
}

twin!(Shares = "Shares" { rows, sequences, multiprocessors, group_size, groups_per_head, heads, block_inverse });

/// How to launch it, or none where its memory does not suffice.
struct Plan {
    special: Special,
    shape: Shape,
    shares: Shares,
}

/// Rows and sequences of a launch.
#[derive(Clone, Copy)]
struct Extent {
    rows: usize,
    sequences: usize,
}

impl Plan {
    fn new(context: &Context, types: AttentionTypes, layer: &Layer, extent: Extent) -> Option<Self> {
        let form = Form::of(context, types, layer, extent.sequences);
        Self::with(context, layer, extent, form)
    }

    /// After [`attention_cascade`](crate::attention::attention_cascade).
    fn cascaded(context: &Context, types: AttentionTypes, layer: &Layer, extent: Extent) -> Option<Self> {
        let form = Form::cascaded(types, layer.dims(), layer.group_size());
        Self::with(context, layer, extent, form)
    }

    fn with(context: &Context, layer: &Layer, Extent { rows, sequences }: Extent, form: Form) -> Option<Self> {
        let group = layer.group_size();
        let groups_per_head = group.div_ceil(form.heads);
        let heads = layer.kv_heads as usize * groups_per_head;
        let multiprocessors = context.multiprocessors;
        // A block has 1 KiB beside what it asks for.
        let fit = context.shared_of_multiprocessor / (form.shared + 1024);
        let most = (SCRATCH / form.leaves).min(MOST_BLOCKS);
        let blocks = (multiprocessors * fit.min(form.blocks)).min(most);
        let fits = form.shared <= context.shared_of_block && layer.block_size <= MOST_TOKENS;
        let number = |number: usize| number as u32;
        fits.then(|| Self {
            special: form.special,
            shape: Shape { grid: [blocks, 1], block: form.threads, shared: form.shared },
            shares: Shares {
                rows: number(rows),
                sequences: number(sequences),
                multiprocessors: number(multiprocessors),
                group_size: number(group),
                groups_per_head: number(groups_per_head),
                heads: number(heads),
                block_inverse: number((1_usize << 35).div_ceil(layer.block_size as usize)),
            },
        })
    }
}

/// Whether a batch of `sequences` can be done here.
pub(crate) fn fits(device: &Device, tensors: Tensors, layer: Layer, sequences: usize) -> bool {
    let types = tensors.types();
    Plan::new(&device.context, types, &layer, Extent { rows: tensors.qkv.rows, sequences }).is_some()
}

/// Queues attention of the sequences with one row, and zeros for rows of none; false if that cannot be here.
pub(crate) fn run(
    device: &mut Device,
    scratch: &Scratch,
    tensors: Tensors,
    layer: Layer,
    sequences: Sequences,
) -> bool {
    let types = tensors.types();
    let Tensors { qkv, keys, values, out, .. } = tensors;
    let Sequences { pointers, count, is_new } = sequences;
    let Some(plan) = Plan::new(&device.context, types, &layer, Extent { rows: qkv.rows, sequences: count }) else {
        return false;
    };
    let Plan { special, shape, shares } = plan;
    let arguments = args![out.ptr, qkv.ptr, keys, values, scratch.0.ptr, pointers, layer, shares];
    if is_new {
        return device.launch_special_in_order(special, shape, arguments);
    }
    device.launch_special(special, shape, arguments)
}

/// Sequences of which some share a prefix, that was attended to before.
pub(crate) struct Cascaded {
    pub(crate) sequences: Sequences,
    pub(crate) cascade: Cascade,
}

/// The same for the rest of what they see.
pub(crate) fn run_cascaded(
    device: &mut Device,
    scratch: &Scratch,
    tensors: Tensors,
    layer: Layer,
    Cascaded { sequences, cascade }: Cascaded,
) -> bool {
    let types = tensors.types();
    let Tensors { qkv, keys, values, out, .. } = tensors;
    let Sequences { pointers, count, .. } = sequences;
    let extent = Extent { rows: qkv.rows, sequences: count };
    let Some(Plan { special, shape, shares }) = Plan::cascaded(&device.context, types, &layer, extent) else {
        return false;
    };
    let arguments = args![out.ptr, qkv.ptr, keys, values, scratch.0.ptr, pointers, layer, shares, cascade];
    device.launch_special(special, shape, arguments)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::ops::DType;

    #[test]
    fn every_head_size_fits_a_block() {
        for cache in [KvDType::Float(DType::Bf16), KvDType::E4m3] {
            for dim in [64, 80, 96, 112, 128, 192, 256] {
                for ring in Ring::of(cache, HeadDims::same(dim)) {
                    for tiles in [1, 2] {
                        let shared = ring.shared(cache, HeadDims::same(dim), TILE_HEADS * tiles);
                        assert!(shared <= 227 << 10, "{shared} bytes for heads of {dim} {cache:?} with {ring:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn steps_of_many_query_heads_on_a_key_head_have_their_own_kernel() {
        const HOPPER: usize = 227 << 10;
        let types = AttentionTypes { rows: DType::Bf16, cache: DType::Bf16.into() };
        let files = |q, kv, dim, has| -> Vec<_> {
            let specials = specials(types, Heads { q, kv, dim, v_dim: dim }, has);
            specials.into_iter().map(|special| special.file).collect()
        };
        let all = ["attention_decode", "attention_decode", "attention_decode_mqa"];
        for (q, kv, dim) in [(71, 1, 64), (142, 2, 64), (29, 1, 64), (48, 1, 128)] {
            assert_eq!(files(q, kv, dim, HOPPER), all, "{q} on {kv} of {dim}");
        }
        for (q, kv, dim) in [(16, 1, 64), (32, 8, 128)] {
            assert_eq!(files(q, kv, dim, HOPPER), ["attention_decode"; 2], "{q} on {kv} of {dim}");
        }
        assert_eq!(files(48, 1, 256, HOPPER), ["attention_decode"], "too wide");
        assert_eq!(files(71, 1, 64, 64 << 10), ["attention_decode"; 2], "too little shared memory");
    }

    #[test]
    fn as_many_blocks_as_run_at_once_have_room_for_what_they_leave() {
        const MULTIPROCESSORS: usize = 132;
        for cache in [KvDType::Float(DType::Bf16), KvDType::E4m3] {
            let types = AttentionTypes { rows: DType::Bf16, cache };
            for (dim, group) in [(64, 8), (64, 20), (64, 71), (64, 80), (128, 16), (128, 20), (128, 48), (128, 64)] {
                let dims = HeadDims::same(dim);
                let rings = Ring::of(cache, dims).map(|ring| Form::with_ring(types, dims, group, ring));
                for form in rings.into_iter().chain(Form::mqa(types, dims, group, 227 << 10)) {
                    let all = MULTIPROCESSORS * form.blocks;
                    assert!(all <= MOST_BLOCKS && all * form.leaves <= SCRATCH, "{group} of {dim}: {form:?}");
                }
            }
        }
    }

    #[test]
    fn the_usual_shape_has_as_many_blocks_a_multiprocessor_as_it_may() {
        for cache in [KvDType::Float(DType::Bf16), KvDType::E4m3] {
            let dims = HeadDims::same(128);
            let [_, many] = Ring::of(cache, dims);
            let blocks = most_blocks(cache, dims, 1, many);
            assert!(blocks * (many.shared(cache, dims, 4) + 1024) <= 228 << 10, "{cache:?}");
        }
    }

    #[test]
    fn a_product_finds_the_block_of_a_position() {
        for size in (16..=MOST_TOKENS).step_by(16) {
            let inverse = (1_u64 << 35).div_ceil(u64::from(size));
            assert!(u32::try_from(inverse).is_ok());
            let last = (1_u32 << 24) / size * size;
            for position in [0, size - 1, size, 7 * size - 1, 7 * size, last - 1, last] {
                assert_eq!(
                    (u64::from(position) * inverse) >> 35,
                    u64::from(position / size),
                    "{position} in blocks of {size}"
                );
            }
        }
    }
}
