//! Weights on the device.

pub(crate) mod noise;
pub(crate) mod packed;
mod read_ahead;
mod slabs;
mod staging;

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use crate::runtime::activations::{Elements, cast};
use crate::runtime::context::Memory;
use crate::runtime::device::Device;
use crate::weights::packed::Packed;
use kernels::ops::DType;

pub(crate) use staging::Staging;

/// A matrix or table as it lies in device memory: row-major `[rows, cols]`. Clones share it.
#[derive(Clone)]
pub(crate) struct Weights {
    pub(crate) memory: Option<Arc<Memory>>,
    /// Of its numbers; those that packed codes stand for are f32.
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// What inputs may be rounded to.
    pub(crate) compute: DType,
    /// Codes and what they stand for, in place of numbers.
    pub(crate) packed: Option<Packed>,
}

impl Weights {
    /// Room for a matrix, with nothing in it yet.
    pub(crate) fn empty(device: &mut Device, [rows, cols]: [usize; 2], dtype: DType, compute: DType) -> Self {
        let memory = device.allocate(rows * cols * dtype.size(), "weights").map(Arc::new);
        Self { memory, dtype, rows, cols, compute, packed: None }
    }

    /// Makes all of it zero.
    pub(crate) fn clear(&self, device: &mut Device) {
        if let Some(memory) = &self.memory {
            device.clear(memory);
        }
    }

    pub(crate) fn ptr(&self) -> CUdeviceptr {
        self.memory.as_ref().map_or(0, |memory| memory.ptr)
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let packed = self.packed.as_ref().map_or(0, Packed::bytes);
        self.memory.as_ref().map_or(0, |memory| memory.bytes) + packed
    }
}

/// A vector of f32, and its copies in 16 bits where products want them.
#[derive(Default)]
pub(crate) struct Vector {
    pub(crate) len: usize,
    memory: Option<Memory>,
    rounded: Option<(DType, Memory)>,
}

impl Vector {
    pub(crate) fn ptr(&self) -> CUdeviceptr {
        self.memory.as_ref().map_or(0, |memory| memory.ptr)
    }

    /// Its elements in `dtype`.
    pub(crate) fn ptr_in(&mut self, device: &mut Device, dtype: DType) -> CUdeviceptr {
        if dtype == DType::F32 {
            return self.ptr();
        }
        if self.rounded.as_ref().is_none_or(|(known, _)| *known != dtype) {
            self.rounded = device.allocate(self.len * dtype.size(), "a bias").map(|memory| (dtype, memory));
            if let Some((_, memory)) = &self.rounded {
                let from = Elements { ptr: self.ptr(), dtype: DType::F32 };
                cast(device, from, Elements { ptr: memory.ptr, dtype }, self.len);
            }
        }
        self.rounded.as_ref().map_or(0, |(_, memory)| memory.ptr)
    }
}
