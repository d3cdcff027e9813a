//! Weights on the device, and how they get there: through pinned memory, the next piece read while the last one is
//! copied.

pub(crate) mod noise;
pub(crate) mod packed;
mod slabs;

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;

use crate::runtime::activations::{Elements, cast};
use crate::runtime::context::{Event, Memory, Pinned};
use crate::runtime::device::Device;
use crate::weights::packed::Packed;
use crate::weights::slabs::Slabs;
use kernels::ops::{DType, HostMatrix, StackedShape, WeightFormat};

/// A piece of a copy.
const PIECE: usize = 16 << 20;
/// Pieces under way.
const SLOTS: usize = 3;
/// A piece from which on several threads read it (from a mapped file, mostly).
const WORTH_THREADS: usize = 4 << 20;
const THREADS: usize = 8;

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

/// Bytes up to which what is packed on the device passes through memory that stays.
const SMALL_SOURCE: usize = 8 << 20;

/// Pinned memory that weights pass through, and memory of the device that those pass through which are packed there.
#[derive(Default)]
pub(crate) struct Staging {
    slots: Vec<(Pinned, Event)>,
    next: usize,
    source: Option<Memory>,
    slabs: Slabs,
}

/// Bytes on the device that a kernel packs: the stream has it read them before others take their place.
struct Source {
    ptr: CUdeviceptr,
    bytes: usize,
    /// Their memory, where they have their own.
    own: Option<Memory>,
}

impl Source {
    /// The kernels that read it are queued.
    fn release(self, device: &mut Device) {
        if self.own.is_some() {
            device.synchronize();
        }
    }
}

impl Staging {
    /// One matrix of pieces that lie below each other.
    pub(crate) fn matrix(&mut self, device: &mut Device, pieces: &[HostMatrix<'_>], compute: DType) -> Weights {
        let StackedShape { format, rows, cols } = HostMatrix::stacked(pieces);
        let WeightFormat::Plain(dtype) = format else {
            let packed = Packed::load(device, self, pieces, compute);
            return Weights { memory: None, dtype: DType::F32, rows, cols, compute, packed };
        };
        let bytes: Vec<&[u8]> = pieces.iter().map(|piece| piece.bytes()).collect();
        Weights { memory: self.load_pieces(device, &bytes).map(Arc::new), dtype, rows, cols, compute, packed: None }
    }

    /// A lookup table: a matrix that nothing multiplies by.
    pub(crate) fn table(&mut self, device: &mut Device, source: HostMatrix<'_>) -> Weights {
        let table = self.matrix(device, &[source], DType::F32);
        Weights { compute: table.dtype, ..table }
    }

    pub(crate) fn vector(&mut self, device: &mut Device, values: &[f32]) -> Vector {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_ne_bytes()).collect();
        Vector { len: values.len(), memory: self.load(device, &bytes), rounded: None }
    }

    /// New device memory with these bytes. Copies may still be under way; the stream orders them before what uses them.
    pub(crate) fn load(&mut self, device: &mut Device, bytes: &[u8]) -> Option<Memory> {
        self.load_pieces(device, &[bytes])
    }

    /// The same for bytes that lie in several places, one after the other.
    fn load_pieces(&mut self, device: &mut Device, pieces: &[&[u8]]) -> Option<Memory> {
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        let memory = device.allocate(bytes, "weights")?;
        self.fill(device, pieces, memory.ptr)?;
        Some(memory)
    }

    /// The same to be packed by kernels that are queued next, until when no other source may be asked for.
    fn source(&mut self, device: &mut Device, pieces: &[&[u8]]) -> Option<Source> {
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        let own = if bytes > SMALL_SOURCE { Some(device.allocate(bytes, "weights")?) } else { None };
        let ptr = match &own {
            Some(own) => own.ptr,
            None => device.reserve(&mut self.source, SMALL_SOURCE, "weights"),
        };
        self.fill(device, pieces, ptr)?;
        Some(Source { ptr, bytes, own })
    }

    /// Fills device memory, which has room, with bytes that lie in several places, when the stream comes to it.
    pub(crate) fn fill(&mut self, device: &mut Device, pieces: &[&[u8]], to: CUdeviceptr) -> Option<()> {
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        self.reserve(device, bytes.min(PIECE));
        for start in (0..bytes).step_by(PIECE) {
            let part = start..bytes.min(start + PIECE);
            self.next = (self.next + 1) % SLOTS;
            let (pinned, event) = self.slots.get_mut(self.next)?;
            device.attempt(|| "loading weights".to_owned(), |_| event.wait());
            read(pieces, part.clone(), pinned.slice_mut(part.len()));
            device.upload(pinned, 0..part.len(), to + start as u64);
            device.attempt(|| "loading weights".to_owned(), |_| event.record());
        }
        Some(())
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

/// Copies a part of what lies in pieces, with several threads where it is long: pages of a file that was not read yet
/// come one by one otherwise.
fn read(pieces: &[&[u8]], part: Range<usize>, to: &mut [u8]) {
    if part.len() < WORTH_THREADS {
        return gather(pieces, part.start, to);
    }
    let share = part.len().div_ceil(THREADS);
    std::thread::scope(|scope| {
        for (start, to) in part.step_by(share).zip(to.chunks_mut(share)) {
            scope.spawn(move || gather(pieces, start, to));
        }
    });
}

/// Fills `to` with what lies in pieces, from the byte `start` on.
fn gather(pieces: &[&[u8]], start: usize, to: &mut [u8]) {
    let (mut skip, mut left) = (start, to);
    for piece in pieces {
        let rest = &piece[skip.min(piece.len())..];
        skip = skip.saturating_sub(piece.len());
        let (here, after) = left.split_at_mut(rest.len().min(left.len()));
        here.copy_from_slice(&rest[..here.len()]);
        left = after;
    }
    assert!(left.is_empty(), "{} bytes past the last piece", left.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_as_one() {
        let bytes: Vec<u8> = (0..3 * WORTH_THREADS + 5).map(|i| (i * 31 + i / 253) as u8).collect();
        let (first, rest) = bytes.split_at(WORTH_THREADS + 1);
        let pieces = [first, &[], &rest[..7], &rest[7..]];
        for part in [0..0, 0..9, first.len() - 3..first.len() + 11, 100..bytes.len() - 1, bytes.len() - 1..bytes.len()]
        {
            let mut to = vec![0; part.len()];
            read(&pieces, part.clone(), &mut to);
            assert!(to == bytes[part.clone()], "{part:?}");
        }
    }
}
