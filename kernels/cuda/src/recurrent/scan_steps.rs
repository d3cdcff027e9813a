//! Launches `selective_scan_step.cu`: where a head has one decay, sequences with one row.

use super::selective_scan::{Places, Scan};
use super::{Columns, state_type};
use crate::jit::specialization::{HOPPER, Special};
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Shape, args};
use kernels::ops::DType;

const THREADS: usize = 128;
/// Most channels of a part of a head, and parts of a ring.
const CHANNELS: usize = 32;
const STAGES: usize = 4;
/// Channels of a head and values of a channel that there are kernels for.
const HEAD_DIMS: [usize; 4] = [16, 32, 64, 128];
const STATE_DIMS: [usize; 3] = [64, 128, 256];
/// Bytes that are copied at once, those of a barrier, and those that a multiprocessor keeps of each block's shared
/// memory.
const COPIED: usize = 16;
const BARRIER: usize = 8;
const KEPT_OF_BLOCK: usize = 1024;
/// Most blocks of a multiprocessor.
const BLOCKS: usize = 8;

/// The kernel for rows, states and a shape.
#[derive(Clone, Copy)]
pub(crate) struct Steps {
    dtype: DType,
    kept: DType,
    head_dim: usize,
    state_dim: usize,
}

/// None where rows must be walked: exact types, a decay for each value, other shapes, other devices.
pub(super) fn of(device: &Device, scan: &Scan, columns: &[Columns; 4], out: View, kept: DType) -> Option<Steps> {
    let (head_dim, state_dim) = (scan.head_dim as usize, scan.state_dim as usize);
    let [x, _, b, c] = columns;
    let fits = out.dtype.size() == 2 && HEAD_DIMS.contains(&head_dim) && STATE_DIMS.contains(&state_dim);
    let copied = [x, b, c].iter().all(|columns| columns.is_aligned(COPIED, out.dtype));
    let is_for = scan.each_value == 0 && fits && copied && device.context.arch == HOPPER;
    is_for.then_some(Steps { dtype: out.dtype, kept, head_dim, state_dim })
}

/// What images have compiled ahead: the shape that nearly all models have, with states as they are kept by default.
pub(crate) fn usual(dtype: DType) -> Special {
    Steps { dtype, kept: DType::F16, head_dim: 64, state_dim: 128 }.special()
}

impl Steps {
    fn special(self) -> Special {
        let state = state_type(self.kept) as usize;
        let sizes = [("STATE", state), ("HEAD_DIM", self.head_dim), ("STATE_DIM", self.state_dim)];
        Special::new("selective_scan_step", self.dtype, &sizes)
    }

    /// As the kernel has it: a ring of parts, each with a state, b, c and x.
    fn shared(self) -> usize {
        let channels = self.head_dim.min(CHANNELS);
        STAGES * (channels * self.state_dim * self.kept.size() + 2 * (2 * self.state_dim + channels) + BARRIER)
    }

    /// Whether it could be queued now; it is compiled if not, unless it cannot be.
    pub(super) fn is_ready(self, device: &mut Device) -> bool {
        device.load(self.special())
    }

    /// It will be needed.
    pub(super) fn wish(self, device: &mut Device) {
        device.wish(self.special(), self.shared());
    }

    /// Queues the sequences with one row.
    pub(super) fn queue(self, device: &mut Device, scan: &Scan, columns: [Columns; 4], places: Places<'_>) {
        let Places { batch, out, .. } = places;
        let blocks = (device.context.shared_of_multiprocessor / (self.shared() + KEPT_OF_BLOCK)).clamp(1, BLOCKS);
        let parts = batch.sequences() * scan.heads as usize * self.head_dim.div_ceil(CHANNELS);
        let grid = [parts.min(blocks * device.context.multiprocessors), 1];
        let shape = Shape { grid, block: THREADS, shared: self.shared() };
        let queued = device.launch_special(self.special(), shape, args![columns, *scan, batch.pointers, out.ptr]);
        assert!(queued, "a kernel that was loaded");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many blocks of Mamba-2 as keep a multiprocessor of 228 KiB busy.
    #[test]
    fn rings_are_small_enough_for_several_blocks() {
        let blocks = |kept| {
            let steps = Steps { dtype: DType::Bf16, kept, head_dim: 64, state_dim: 128 };
            (228 << 10) / (steps.shared() + KEPT_OF_BLOCK)
        };
        assert_eq!([DType::F32, DType::Bf16, DType::F16].map(blocks), [3, 6, 6]);
    }
}
