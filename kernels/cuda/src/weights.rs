//! Weights on the device, and how they get there: through pinned memory, the next piece read while the last one is copied.

use cudarc::driver::sys::CUdeviceptr;

use super::acts::cast;
use super::context::{Event, Memory, Pinned};
use super::device::Device;
use kernels::ops::{DType, HostMatrix};

/// A piece of a copy.
const PIECE: usize = 16 << 20;
/// Pieces under way.
const SLOTS: usize = 3;
/// A piece from which on several threads read it (from a mapped file, mostly).
const WORTH_THREADS: usize = 4 << 20;
const THREADS: usize = 8;

/// A matrix or table as it lies in device memory: row-major `[rows, cols]`.
pub(crate) struct Weights {
    memory: Option<Memory>,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// What inputs may be rounded to.
    pub(crate) compute: DType,
}

impl Weights {
    /// Room for a matrix, with nothing in it yet.
    pub(crate) fn empty(device: &mut Device, (rows, cols): (usize, usize), dtype: DType, compute: DType) -> Self {
        let memory = device.allocate(rows * cols * dtype.size(), "weights");
        Self { memory, dtype, rows, cols, compute }
    }

    /// Makes all of it zero.
    pub(crate) fn clear(&self, device: &mut Device) {
        self.memory.iter().for_each(|memory| device.clear(memory));
    }

    pub(crate) fn ptr(&self) -> CUdeviceptr {
        self.memory.as_ref().map_or(0, |memory| memory.ptr)
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
                cast(device, (self.ptr(), DType::F32), (memory.ptr, dtype), self.len);
            }
        }
        self.rounded.as_ref().map_or(0, |(_, memory)| memory.ptr)
    }
}

/// Pinned memory that weights pass through.
#[derive(Default)]
pub(crate) struct Staging {
    slots: Vec<(Pinned, Event)>,
    next: usize,
}

impl Staging {
    pub(crate) fn matrix(&mut self, device: &mut Device, source: HostMatrix<'_>, compute: DType) -> Weights {
        let HostMatrix { dtype, rows, cols, bytes } = source;
        let wanted = rows.checked_mul(cols).and_then(|count| count.checked_mul(dtype.size()));
        assert_eq!(Some(bytes.len()), wanted, "bytes of {rows} x {cols} {dtype:?}");
        Weights { memory: self.load(device, bytes), dtype, rows, cols, compute }
    }

    pub(crate) fn vector(&mut self, device: &mut Device, values: &[f32]) -> Vector {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        Vector { len: values.len(), memory: self.load(device, &bytes), rounded: None }
    }

    /// New device memory with these bytes. Copies may still be under way; the stream orders them before what uses them.
    pub(crate) fn load(&mut self, device: &mut Device, bytes: &[u8]) -> Option<Memory> {
        let memory = device.allocate(bytes.len(), "weights")?;
        self.reserve(device, bytes.len().min(PIECE));
        for (index, piece) in bytes.chunks(PIECE).enumerate() {
            self.next = (self.next + 1) % SLOTS;
            let (pinned, event) = self.slots.get_mut(self.next)?;
            device.attempt(|| "loading weights".to_owned(), |_| event.wait());
            read(piece, pinned.slice_mut(piece.len()));
            device.upload(pinned, 0..piece.len(), memory.ptr + (index * PIECE) as u64);
            device.attempt(|| "loading weights".to_owned(), |_| event.record());
        }
        Some(memory)
    }

    fn reserve(&mut self, device: &mut Device, bytes: usize) {
        if self.slots.first().is_some_and(|(pinned, _)| pinned.bytes >= bytes) {
            return;
        }
        device.synchronize();
        self.slots.clear();
        for _ in 0..SLOTS {
            let (pinned, event) = (device.pin(bytes.next_power_of_two().max(64 << 10)), device.event());
            self.slots.extend(pinned.zip(event));
        }
    }
}

/// Copies a piece, with several threads where it is long: pages of a file that was not read yet come one by one otherwise.
fn read(from: &[u8], to: &mut [u8]) {
    if from.len() < WORTH_THREADS {
        return to.copy_from_slice(from);
    }
    let share = from.len().div_ceil(THREADS);
    std::thread::scope(|scope| {
        for (from, to) in from.chunks(share).zip(to.chunks_mut(share)) {
            scope.spawn(|| to.copy_from_slice(from));
        }
    });
}
