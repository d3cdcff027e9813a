//! One layer's paged K and V.
//!
//! ```text
//! K  [kv head][block][dim][token]     a vector holds one dimension of neighbouring tokens: no horizontal sums
//! V  [kv head][block][token][dim]     a vector holds neighbouring dimensions of one token: so does the weighted sum
//! ```
//! Where values are a part of keys there is no V, and attention turns the keys' last dimensions around as it reads
//! them. Neighbouring blocks of a head touch, so a sequence on blocks in a row is read as one stream.
//!
//! bf16 on the tile unit, where blocks and heads are whole tiles, keeps pairs of what is summed over side by side:
//! ```text
//! K  [kv head][block][dim / 2][token][2]
//! V  [kv head][block][token / 2][dim][2]
//! ```

use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::{Region, Shared};
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::transpose::transpose;
use crate::cpu::simd::{Element, F32};
use crate::ops::{DType, KvScales, KvShape};

/// Where a token's key and value lie.
#[derive(Clone, Copy)]
pub(crate) struct CacheSlot {
    pub(crate) block: u32,
    /// Token inside the block.
    pub(crate) slot: usize,
}

/// Numbers, and what they are multiplied by before they are stored.
#[derive(Clone, Copy)]
pub(crate) struct Scaled<'a> {
    pub(crate) numbers: &'a [f32],
    pub(crate) factor: f32,
}

/// What keys and values are divided by before they are stored, and multiplied by when they are read.
#[derive(Clone, Copy)]
pub(crate) struct CacheScales<'a> {
    pub(crate) layer: KvScales,
    /// Of keys, and of values: one for each K/V head, times those of the layer.
    pub(crate) heads: Option<[&'a [f32]; 2]>,
}

impl CacheScales<'_> {
    /// Whether numbers are stored as they are.
    pub(crate) fn are_one(&self) -> bool {
        self.layer == KvScales::default() && self.heads.is_none()
    }

    /// Those of a head.
    pub(crate) fn of(&self, head: usize) -> KvScales {
        let [key, value] = self.heads.map_or([1.0; 2], |scales| scales.map(|scales| scales[head]));
        KvScales { key: self.layer.key * key, value: self.layer.value * value }
    }
}

/// K and V of one layer.
pub(crate) struct Kv {
    pub(crate) shape: KvShape,
    /// Whether elements lie in pairs, for tiles.
    pub(crate) paired: bool,
    keys: Region,
    values: Region,
}

impl Kv {
    pub(crate) fn new(shape: KvShape, isa: Isa) -> Self {
        let KvShape { num_blocks, block_size, kv_heads, head_dim, v_head_dim, shared, dtype } = shape;
        shape.check();
        let tokens = num_blocks * block_size * kv_heads * dtype.size();
        let whole = block_size.is_multiple_of(16) && head_dim.is_multiple_of(32) && v_head_dim.is_multiple_of(16);
        let paired = isa == Isa::Amx && dtype == DType::Bf16 && whole;
        let values = Region::new(if shared { 0 } else { tokens * v_head_dim });
        Self { shape, paired, keys: Region::new(tokens * head_dim), values }
    }

    /// The first key element of a head of a block.
    pub(crate) fn keys<E: Element>(&self, block: u32, head: usize) -> *mut E::Bits {
        self.part::<E>(&self.keys, self.shape.head_dim, block, head)
    }

    /// The first value element of a head of a block, where values are stored.
    pub(crate) fn values<E: Element>(&self, block: u32, head: usize) -> *mut E::Bits {
        assert!(!self.shape.shared, "values of a cache that has none");
        self.part::<E>(&self.values, self.shape.v_head_dim, block, head)
    }

    fn part<E: Element>(&self, region: &Region, dim: usize, block: u32, head: usize) -> *mut E::Bits {
        let KvShape { num_blocks, block_size, kv_heads, dtype, .. } = self.shape;
        debug_assert_eq!(dtype, E::DTYPE);
        assert!((block as usize) < num_blocks && head < kv_heads, "block {block}, head {head} of {:?}", self.shape);
        // SAFETY: block and head were checked, so the offset is inside the region.
        unsafe { region.ptr().cast::<E::Bits>().add((head * num_blocks + block as usize) * block_size * dim) }
    }

    /// Where a token's element of a key lies in its block's head.
    #[inline(always)]
    pub(crate) fn key_offset(&self, slot: usize, dim: usize) -> usize {
        let block_size = self.shape.block_size;
        if self.paired { (dim / 2 * block_size + slot) * 2 + dim % 2 } else { dim * block_size + slot }
    }

    /// Writes one token's key of a head, and its value where values are stored, to a slot; each times a factor.
    ///
    /// # Safety
    /// Nobody else uses this token's slot meanwhile.
    pub(crate) unsafe fn write<E: Element>(
        &self,
        CacheSlot { block, slot }: CacheSlot,
        head: usize,
        key: Scaled<'_>,
        value: Option<Scaled<'_>>,
    ) {
        let Scaled { numbers: key, factor: key_factor } = key;
        let KvShape { block_size, head_dim, v_head_dim, .. } = self.shape;
        debug_assert!(slot < block_size && key.len() == head_dim);
        let keys = self.keys::<E>(block, head);
        for (dim, &x) in key.iter().enumerate() {
            // SAFETY: slot < block_size and the dimensions are the shape's, so all offsets are inside this head of this
            // block.
            unsafe { *keys.add(self.key_offset(slot, dim)) = E::encode(x * key_factor) };
        }
        let Some(Scaled { numbers: value, factor: value_factor }) = value else { return };
        debug_assert!(value.len() == v_head_dim);
        let values = self.values::<E>(block, head);
        for (dim, &x) in value.iter().enumerate() {
            let at = if self.paired { (slot / 2 * v_head_dim + dim) * 2 + slot % 2 } else { slot * v_head_dim + dim };
            // SAFETY: as above.
            unsafe { *values.add(at) = E::encode(x * value_factor) };
        }
    }

    /// Writes keys of a head, and values where they are stored, to slots from `first` on: numbers of a cache of f32, as
    /// they are.
    ///
    /// # Safety
    /// Nobody else uses these slots meanwhile.
    pub(crate) unsafe fn write_plain(&self, isa: Isa, first: CacheSlot, head: usize, [keys, values]: [&[&[f32]]; 2]) {
        let CacheSlot { block, slot } = first;
        let KvShape { block_size, head_dim, v_head_dim, shared, .. } = self.shape;
        assert!(slot + keys.len() <= block_size && keys.iter().all(|key| key.len() == head_dim), "keys of a block");
        // SAFETY: slots and dimensions are inside this head of this block (checked); the rest is the caller's promise.
        unsafe { transpose(isa, keys, self.keys::<F32>(block, head).add(slot), block_size) };
        if shared {
            return;
        }
        let to = self.values::<F32>(block, head);
        for (slot, value) in (slot..).zip(values) {
            assert!(slot < block_size && value.len() == v_head_dim, "values of a block");
            // SAFETY: as above.
            unsafe { to.add(slot * v_head_dim).copy_from_nonoverlapping(value.as_ptr(), v_head_dim) };
        }
    }

    /// Copies block `from[i]` to `to[i]`, in order.
    pub(crate) fn copy_blocks(&mut self, pool: &mut Pool, from: &[u32], to: &[u32]) {
        self.shape.check_copies(from, to);
        let blocks = self.shape.num_blocks;
        let KvShape { block_size, kv_heads, head_dim, v_head_dim, shared, dtype, .. } = self.shape;
        let regions = [(&self.keys, head_dim), (&self.values, if shared { 0 } else { v_head_dim })];
        let regions = regions.map(|(region, dim)| (Shared::new(region.ptr()), block_size * dim * dtype.size()));
        pool.run(2 * kv_heads, &|task, _| {
            let (region, bytes) = regions[task % 2];
            let first = task / 2 * blocks * bytes;
            for (&from, &to) in from.iter().zip(to) {
                // SAFETY: both blocks are inside the head's part of the region (checked), each task has its own part,
                // and `copy` allows overlap.
                unsafe {
                    let (from, to) = (region.at(first + from as usize * bytes), region.at(first + to as usize * bytes));
                    std::ptr::copy(from, to, bytes);
                }
            }
        });
    }
}
