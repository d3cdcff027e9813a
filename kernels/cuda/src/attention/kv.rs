//! A layer's keys and values in device memory.

use cudarc::driver::sys::{CUdeviceptr, CUtensorMap};

use crate::runtime::context::Memory;
use crate::runtime::device::Device;
use crate::runtime::tensor_map::tensor_map_of_groups;
use kernels::ops::{KvDType, KvShape};

/// K and V of one layer: `[block][kv head][token][dim]`.
pub(crate) struct Kv {
    pub(crate) shape: KvShape,
    keys: Option<Memory>,
    values: Option<Memory>,
    /// Where a kernel reads it by the copy engine.
    pub(crate) maps: Option<Maps>,
}

/// Keys and values as the copy engine sees them: rows `[block, kv head, token][dim]`, in groups of 8.
#[derive(Clone, Copy)]
pub(crate) struct Maps {
    pub(crate) keys: CUtensorMap,
    pub(crate) values: CUtensorMap,
}

impl Kv {
    pub(crate) fn new(device: &mut Device, shape: KvShape) -> Self {
        let KvShape { num_blocks, block_size, kv_heads, head_dim, v_head_dim, shared, dtype } = shape;
        shape.check();
        // One block more than the pool has: it is written by steps that are only timed.
        let heads = (num_blocks + 1) * block_size * kv_heads * dtype.size();
        let keys = device.allocate(heads * head_dim, "keys");
        let values = if shared { None } else { device.allocate(heads * v_head_dim, "values") };
        Self { shape, keys, values, maps: None }
    }

    /// Describes it to the copy engine, which will bring `tokens` tokens of a block at once. Values that are a part of
    /// keys are read as these.
    pub(crate) fn map(&mut self, device: &mut Device, tokens: usize) {
        let values = if self.shape.shared { &self.keys } else { &self.values };
        let memory = self.keys.as_ref().zip(values.as_ref());
        self.maps = memory.and_then(|(keys, values)| Maps::new(device, self.shape, tokens, keys, values));
    }

    /// Where keys and values begin. Values that are a part of keys are the last elements of each.
    pub(crate) fn pointers(&self) -> (CUdeviceptr, CUdeviceptr) {
        let start = |memory: &Option<Memory>| memory.as_ref().map_or(0, |memory| memory.ptr);
        let KvShape { head_dim, v_head_dim, shared, dtype, .. } = self.shape;
        let keys = start(&self.keys);
        let inside = keys + ((head_dim.saturating_sub(v_head_dim)) * dtype.size()) as u64;
        (keys, if shared { inside } else { start(&self.values) })
    }

    /// Elements from one token's value to the next one's.
    pub(crate) fn value_stride(&self) -> usize {
        if self.shape.shared { self.shape.head_dim } else { self.shape.v_head_dim }
    }

    /// Copies block `from[i]` to `to[i]`, in order.
    pub(crate) fn copy_blocks(&self, device: &mut Device, from: &[u32], to: &[u32]) {
        let KvShape { block_size, kv_heads, head_dim, v_head_dim, shared, dtype, .. } = self.shape;
        self.shape.check_copies(from, to);
        let (keys, values) = self.pointers();
        for (start, dim) in [(keys, head_dim), (values, if shared { 0 } else { v_head_dim })] {
            let bytes = block_size * kv_heads * dim * dtype.size();
            let at = |block: u32| start + u64::from(block) * bytes as u64;
            from.iter()
                .zip(to)
                .filter(|(from, to)| from != to)
                .for_each(|(from, to)| device.copy(at(*from), at(*to), bytes));
        }
    }
}

impl Maps {
    fn new(device: &mut Device, shape: KvShape, tokens: usize, keys: &Memory, values: &Memory) -> Option<Self> {
        let KvShape { num_blocks, block_size, kv_heads, head_dim, dtype, .. } = shape;
        let KvDType::Float(dtype) = dtype else { return None };
        let rows = num_blocks * kv_heads * block_size;
        let mut map = |memory: &Memory| {
            let what = || "describing the cache".to_owned();
            device.attempt(what, |_| tensor_map_of_groups(memory.ptr, dtype, [rows, head_dim], [tokens, head_dim]))
        };
        Some(Self { keys: map(keys)?, values: map(values)? })
    }
}
