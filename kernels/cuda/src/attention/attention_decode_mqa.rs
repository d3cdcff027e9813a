//! How `kernels/cuda/csrc/decode/attention_decode_mqa.cu` is configured: for many query heads on a key head.

use crate::attention::attention_decode::{Form, row_bytes};
use crate::attention::layer::{AttentionTypes, HeadDims, narrow};
use crate::jit::specialization::Special;
use kernels::ops::KvDType;

/// Query heads of a warp, which are the rows of a matrix operand.
const WARP_HEADS: usize = 16;
/// Elements of a key and a value up to which heads are narrow: what there is room for depends on that.
const NARROW: usize = 128;
/// Shared memory of a multiprocessor on Hopper.
const SHARED: usize = 228 << 10;
/// Keys of a tile.
const TILE: usize = 64;
/// Columns of a query head that a block adds up at least, each with two other numbers: `PIECE` of the kernel.
const PIECE: usize = 16;

/// A block for some query heads of a key head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Mqa {
    warps: usize,
    /// Of its ring in shared memory.
    stages: usize,
    /// Blocks of a multiprocessor: what registers and shared memory suffice for.
    blocks: usize,
}

impl Mqa {
    /// For groups of query heads of a key head; none for those that one operand of `attention_decode.cu` holds, and for
    /// heads so wide that a warp's sums of 16 of them leave too few registers.
    pub(crate) fn of(cache: KvDType, dims: HeadDims, group: usize) -> Option<Self> {
        let width = dims.dim + dims.v_dim;
        if group <= WARP_HEADS || width > 256 {
            return None;
        }
        // Of a block at most, and of a multiprocessor, which registers suffice for.
        let (most_warps, all_warps, stages) = if width <= NARROW { (5, 12, 3) } else { (4, 8, 2) };
        let warps = group.div_ceil(group.div_ceil(WARP_HEADS * most_warps)).div_ceil(WARP_HEADS);
        let mqa = Self { warps, stages, blocks: 1 };
        let blocks = (SHARED / (mqa.shared(cache, dims) + 1024)).min(all_warps / warps);
        Some(Self { blocks, ..mqa })
    }

    /// Shared memory of a block; as `DecodeMqa::set` of the kernel lays it out.
    fn shared(self, cache: KvDType, HeadDims { dim, v_dim }: HeadDims) -> usize {
        const CURSORS: usize = 2 * 10 * size_of::<u32>();
        let stage = TILE * (row_bytes(cache, dim) + row_bytes(cache, v_dim));
        self.stages * stage + self.heads() * (v_dim + 6) * size_of::<f32>() + CURSORS
    }

    /// Query heads of a key head that a block takes at once.
    fn heads(self) -> usize {
        WARP_HEADS * self.warps
    }

    /// The kernel, and what a launch must know of it.
    pub(crate) fn form(self, types: AttentionTypes, dims: HeadDims) -> Form {
        let HeadDims { dim, v_dim } = dims;
        let Self { warps, stages, blocks } = self;
        let sizes = [("DIM", dim), ("V_DIM", v_dim), ("WARPS", warps), ("STAGES", stages), ("BLOCKS", blocks)];
        Form {
            special: Special::new("attention_decode_mqa", types.rows, &[&sizes, narrow(types.cache)].concat()),
            shared: self.shared(types.cache, dims),
            threads: 32 * warps,
            blocks,
            heads: self.heads(),
            leaves: 2 * self.heads() * (v_dim + v_dim.div_ceil(PIECE) * 2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::ops::DType;

    #[test]
    fn blocks_of_a_multiprocessor_have_shared_memory() {
        for cache in [KvDType::Float(DType::Bf16), KvDType::E4m3] {
            for dim in [16, 64, 80, 96, 112, 128] {
                for group in [17, 29, 48, 64, 71, 80, 96, 128, 300] {
                    let dims = HeadDims::same(dim);
                    let mqa = Mqa::of(cache, dims, group).unwrap();
                    let all = mqa.blocks * (mqa.shared(cache, dims) + 1024);
                    assert!(mqa.blocks >= 2 && all <= SHARED, "{mqa:?} of {dim} {cache:?}: {all} bytes");
                }
            }
        }
    }

    #[test]
    fn all_query_heads_of_a_key_head_are_in_a_block_up_to_80() {
        let heads = |group| Mqa::of(DType::Bf16.into(), HeadDims::same(64), group).map(Mqa::heads);
        let groups = [1, 16, 17, 48, 71, 80, 81, 128, 160, 161];
        let wanted = [0, 0, 32, 48, 80, 80, 48, 64, 80, 64].map(|heads| Some(heads).filter(|heads| *heads > 0));
        assert_eq!(groups.map(heads), wanted);
    }

    #[test]
    fn wide_heads_stay_where_they_are() {
        assert_eq!(Mqa::of(DType::Bf16.into(), HeadDims::same(256), 48), None);
        assert_eq!(Mqa::of(KvDType::E4m3, HeadDims { dim: 192, v_dim: 128 }, 48), None);
    }
}
