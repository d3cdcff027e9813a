//! Launches `kernels/cuda/csrc/weights/noise.cu`: random weights made where they will lie.

use crate::jit::layouts::twin;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::weights::{Staging, Weights};
use kernels::ops::{DType, Noise, NoiseRows};

/// Blocks of a launch at most, and threads of each.
const MOST_BLOCKS: usize = 1 << 12;
const THREADS: usize = 256;

/// `struct Noise` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    key: u64,
    first_row: u64,
    size: u64,
    period: u64,
    offset: u64,
    rows: u64,
    first_col: u64,
    cols: u64,
    mask: u32,
}

twin!(Part = "Noise" { key, first_row, size, period, offset, rows, first_col, cols, mask });

/// Sets of values that elements may have, on the device: matrices of one width share one.
#[derive(Default)]
pub(crate) struct Levels {
    known: Vec<(Vec<u8>, Memory)>,
}

impl Levels {
    /// Queues the making of a matrix that will meet inputs of type `compute`.
    pub(crate) fn matrix(
        &mut self,
        device: &mut Device,
        staging: &mut Staging,
        noise: Noise<'_>,
        compute: DType,
    ) -> Weights {
        let Noise { dtype, cols, parts, pad_rows } = noise;
        let rows = parts.iter().map(|part| part.rows.len()).sum::<usize>() + pad_rows;
        let weights = Weights::empty(device, [rows, cols], dtype, compute);
        if pad_rows > 0 {
            weights.clear(device);
        }
        let mut at = weights.ptr();
        for part in parts {
            let Some(levels) = self.on_device(device, staging, part.levels) else { break };
            let NoiseRows { key, rows: ref range, size, period, offset, first_col, .. } = *part;
            let [first_row, size, period, offset, rows, first_col, cols] =
                [range.start, size, period, offset, range.len(), first_col, cols].map(|number| number as u64);
            let mask = (part.levels.len() / dtype.size()) as u32 - 1;
            assert!((part.levels.len() / dtype.size()).is_power_of_two(), "levels of {} bytes", part.levels.len());
            let made = Part { key, first_row, size, period, offset, rows, first_col, cols, mask };
            let shape = Shape { grid: [range.len().min(MOST_BLOCKS), 1], block: THREADS, shared: 0 };
            device.launch(Name::of("noise", &[dtype]), shape, args![at, levels, made]);
            at += rows * cols * dtype.size() as u64;
        }
        weights
    }

    fn on_device(&mut self, device: &mut Device, staging: &mut Staging, levels: &[u8]) -> Option<u64> {
        if !self.known.iter().any(|(known, _)| known == levels) {
            self.known.push((levels.to_vec(), staging.load(device, levels)?));
        }
        self.known.iter().find(|(known, _)| known == levels).map(|(_, memory)| memory.ptr)
    }
}
