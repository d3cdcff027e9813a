//! How weights get to the device: through pinned memory, the next parts read while those before are copied.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, mpsc};

use cudarc::driver::sys::CUdeviceptr;

use crate::runtime::context::{Event, Memory, Pinned};
use crate::runtime::device::Device;
use crate::weights::packed::Packed;
use crate::weights::read_ahead::ReadAhead;
use crate::weights::slabs::Slabs;
use crate::weights::{Vector, Weights};
use kernels::ops::{DType, HostMatrix, StackedShape, WeightFormat};

/// What a thread reads at once, bytes: less takes no longer than to start it, ...
const LEAST_PART: usize = 512 << 10;
/// ... and of more there would be no other to copy meanwhile.
const MOST_PART: usize = 2 << 20;
/// Parts that wait for a thread, so that none waits for the next one.
const WAITING: usize = 2;

/// Bytes up to which what is packed on the device passes through memory that stays.
const SMALL_SOURCE: usize = 8 << 20;

/// Pinned memory that weights pass through, and memory of the device that those pass through which are packed there.
#[derive(Default)]
pub(crate) struct Staging {
    /// The one whose copy was queued first comes first.
    slots: VecDeque<Slot>,
    source: Option<Memory>,
    pub(super) slabs: Slabs,
    pub(super) ahead: ReadAhead,
}

/// Pinned memory, and when its last copy is done.
struct Slot {
    pinned: Pinned,
    copied: Event,
}

/// Bytes on the device that a kernel packs: the stream has it read them before others take their place.
pub(super) struct Source {
    pub(super) ptr: CUdeviceptr,
    pub(super) bytes: usize,
    /// Their memory, where they have their own.
    own: Option<Memory>,
}

impl Source {
    /// The kernels that read it are queued.
    pub(super) fn release(self, device: &mut Device) {
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
    pub(super) fn source(&mut self, device: &mut Device, pieces: &[&[u8]]) -> Option<Source> {
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        let own = if bytes > SMALL_SOURCE { Some(device.allocate(bytes, "weights")?) } else { None };
        let ptr = match &own {
            Some(own) => own.ptr,
            None => device.reserve(&mut self.source, SMALL_SOURCE, "weights"),
        };
        self.fill(device, pieces, ptr)?;
        Some(Source { ptr, bytes, own })
    }

    /// Fills device memory, which has room, with bytes that lie in several places, when the stream comes to it. Several
    /// threads read what is long, each part of it into a slot of its own, while those before are copied.
    pub(crate) fn fill(&mut self, device: &mut Device, pieces: &[&[u8]], to: CUdeviceptr) -> Option<()> {
        if self.ahead.copy(device, pieces, to) {
            return Some(());
        }
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let threads = threads();
        let part = bytes.div_ceil(threads).clamp(LEAST_PART, MOST_PART).min(bytes);
        self.reserve(device, 2 * threads + WAITING, part);
        let mut parts = (0..bytes).step_by(part.max(1)).map(|start| start..bytes.min(start + part));
        if parts.len() <= 1 {
            for part in parts {
                let mut slot = self.free_slot(device)?;
                gather(pieces, part.start, slot.pinned.slice_mut(part.len()));
                self.copy(device, slot, part, to);
            }
            return Some(());
        }
        let threads = parts.len().min(threads);
        let (reading, asked) = mpsc::channel::<(Slot, Range<usize>)>();
        let asked = Mutex::new(asked);
        std::thread::scope(|scope| {
            let (done, read) = mpsc::channel();
            for _ in 0..threads {
                let (asked, done) = (&asked, done.clone());
                scope.spawn(move || {
                    let next = || asked.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    while let Ok((mut slot, part)) = next() {
                        gather(pieces, part.start, slot.pinned.slice_mut(part.len()));
                        let Ok(()) = done.send((slot, part)) else { return };
                    }
                });
            }
            let mut under_way = 0;
            loop {
                while under_way < threads + WAITING
                    && let Some(part) = parts.next()
                {
                    reading.send((self.free_slot(device)?, part)).ok()?;
                    under_way += 1;
                }
                if under_way == 0 {
                    // Their threads end as nothing more can be asked for.
                    drop(reading);
                    return Some(());
                }
                let (slot, part) = read.recv().ok()?;
                self.copy(device, slot, part, to);
                under_way -= 1;
            }
        })
    }

    /// The slot whose copy was queued first, when it is done.
    fn free_slot(&mut self, device: &mut Device) -> Option<Slot> {
        let slot = self.slots.pop_front()?;
        device.attempt(|| "loading weights".to_owned(), |_| slot.copied.wait());
        Some(slot)
    }

    /// Queues the copy of a part that was read.
    fn copy(&mut self, device: &mut Device, slot: Slot, part: Range<usize>, to: CUdeviceptr) {
        device.upload(&slot.pinned, 0..part.len(), to + part.start as u64);
        device.attempt(|| "loading weights".to_owned(), |_| slot.copied.record());
        self.slots.push_back(slot);
    }

    fn reserve(&mut self, device: &mut Device, slots: usize, bytes: usize) {
        if self.slots.len() == slots && self.slots.iter().all(|slot| slot.pinned.bytes >= bytes) {
            return;
        }
        device.synchronize();
        self.slots.clear();
        for _ in 0..slots {
            let (pinned, copied) = (device.pin(bytes.next_power_of_two().max(LEAST_PART)), device.event());
            self.slots.extend(pinned.zip(copied).map(|(pinned, copied)| Slot { pinned, copied }));
        }
    }
}

/// Threads that read what is long, or take it apart: eight take 20 GB/s from the page cache, 16 take 28, and a device
/// 25 to 55. The system is asked once, as it answers from files.
pub(super) fn threads() -> usize {
    const MOST: usize = 16;
    static THREADS: LazyLock<usize> =
        LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from).min(MOST));
    *THREADS
}

/// Fills `to` with what lies in pieces, from the byte `start` on.
pub(super) fn gather(pieces: &[&[u8]], start: usize, to: &mut [u8]) {
    let (mut skip, mut left) = (start, to);
    for piece in pieces {
        let rest = &piece[skip.min(piece.len())..];
        skip = skip.saturating_sub(piece.len());
        let (here, after) = left.split_at_mut(rest.len().min(left.len()));
        model_files::read_into(&rest[..here.len()], here);
        left = after;
    }
    assert!(left.is_empty(), "{} bytes past the last piece", left.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_as_one() {
        let bytes: Vec<u8> = (0..3 * LEAST_PART + 5).map(|i| (i * 31 + i / 253) as u8).collect();
        let (first, rest) = bytes.split_at(LEAST_PART + 1);
        let pieces = [first, &[], &rest[..7], &rest[7..]];
        for part in [0..0, 0..9, first.len() - 3..first.len() + 11, 100..bytes.len() - 1, bytes.len() - 1..bytes.len()]
        {
            let mut to = vec![0; part.len()];
            gather(&pieces, part.start, &mut to);
            assert!(to == bytes[part.clone()], "{part:?}");
        }
    }
}
