//! Launches `delta_rule_step.cu`: the gated delta rule of sequences with one row.

use super::delta_chunks::ChunkedCall;
use super::state_type;
use crate::jit::specialization::{HOPPER, Special};
use crate::runtime::activations::View;
use crate::runtime::arch::Arch;
use crate::runtime::batch::Batch;
use crate::runtime::device::{Device, Shape, args};
use kernels::ops::{DType, DeltaRule, ExpectedDeltaRule};

const THREADS: usize = 256;
/// Heads of a ring.
const STAGES: usize = 3;
/// Key and value sizes that there are kernels for.
const DIMS: [usize; 2] = [64, 128];
/// Bytes that are copied at once, those of a barrier, those that sums over warps take for a column, and those that a
/// multiprocessor keeps of each block's shared memory.
const COPIED: usize = 16;
const BARRIER: usize = 8;
const SUMS: usize = 2 * THREADS / 32 * size_of::<f32>();
const KEPT_OF_BLOCK: usize = 1024;
/// Most blocks of a multiprocessor: their registers.
const BLOCKS: usize = 2;

/// The kernel for rows, states and a shape.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    dtype: DType,
    kept: DType,
    key_dim: usize,
    value_dim: usize,
}

impl Steps {
    /// None where rows must be walked: exact types, other shapes, other devices.
    fn of(arch: Arch, dtype: DType, kept: DType, [key_dim, value_dim]: [usize; 2]) -> Option<Self> {
        let fits = dtype.size() == 2 && DIMS.contains(&key_dim) && DIMS.contains(&value_dim);
        (fits && arch == HOPPER).then_some(Self { dtype, kept, key_dim, value_dim })
    }

    fn special(self) -> Special {
        let state = state_type(self.kept) as usize;
        let sizes = [("STATE", state), ("KEY_DIM", self.key_dim), ("VALUE_DIM", self.value_dim)];
        Special::new("delta_rule_step", self.dtype, &sizes)
    }

    /// As the kernel has it: a ring of heads, each with a state, a query, a key and values.
    fn shared(self) -> usize {
        let Self { kept, key_dim, value_dim, .. } = self;
        STAGES * (key_dim * value_dim * kept.size() + 2 * (2 * key_dim + value_dim) + BARRIER)
    }

    /// Blocks of a multiprocessor with so much shared memory.
    fn blocks(self, memory: usize) -> usize {
        (memory / (self.shared() + SUMS * self.value_dim + KEPT_OF_BLOCK)).clamp(1, BLOCKS)
    }
}

/// Begins to compile what such layers need.
pub(crate) fn prepare(device: &Device, expected: ExpectedDeltaRule) {
    let ExpectedDeltaRule { key_dim, value_dim, compute, kept, .. } = expected;
    if let Some(steps) = Steps::of(device.context.arch, compute, kept, [key_dim, value_dim]) {
        device.order(steps.special());
    }
}

/// What images have compiled ahead: the shape that nearly all models have, with states as they are kept by default.
pub(crate) fn usual(dtype: DType) -> Special {
    Steps { dtype, kept: DType::F16, key_dim: 128, value_dim: 128 }.special()
}

/// Queues the sequences with one row; false where these are left.
pub(super) fn run(device: &mut Device, call: &ChunkedCall, kept: DType, batch: &Batch, out: View) -> bool {
    let ChunkedCall { rule, parameters, columns } = call;
    let DeltaRule { value_heads, key_dim, value_dim, .. } = *rule;
    let steps = Steps::of(device.context.arch, out.dtype, kept, [key_dim, value_dim]);
    let Some(steps) = steps.filter(|_| columns[0].is_aligned(COPIED, out.dtype)) else { return false };
    if batch.sequences() == batch.with_rows(2) {
        device.wish(steps.special(), steps.shared());
        return false;
    }
    let blocks = steps.blocks(device.context.shared_of_multiprocessor) * device.context.multiprocessors;
    let grid = [(batch.sequences() * value_heads).min(blocks), 1];
    let shape = Shape { grid, block: THREADS, shared: steps.shared() };
    device.launch_special(steps.special(), shape, args![*columns, *parameters, batch.pointers, out.ptr])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_for_16_bits_on_hopper() {
        let of = |arch, dtype, dims| Steps::of(arch, dtype, DType::F16, dims).is_some();
        assert!(of(HOPPER, DType::Bf16, [128, 128]) && of(HOPPER, DType::F16, [64, 128]));
        assert!(!of(HOPPER, DType::F32, [128, 128]) && !of(HOPPER, DType::Bf16, [256, 128]));
        assert!(!of(Arch::new(8, 0), DType::Bf16, [128, 128]));
    }

    /// Of Qwen3-Next's shape on a multiprocessor of 228 KiB, whose blocks may have 227.
    #[test]
    fn rings_fit() {
        for (kept, blocks) in [(DType::F32, 1), (DType::Bf16, 2), (DType::F16, 2)] {
            let steps = Steps::of(HOPPER, DType::Bf16, kept, [128, 128]).expect("a kernel");
            assert_eq!(steps.blocks(228 << 10), blocks, "{kept:?}");
            assert!(steps.shared() + SUMS * 128 <= 227 << 10, "{kept:?}");
        }
    }
}
