//! Long copies to the device in the background: a piece at a time through pinned memory, on a stream of their own.
//! Neither the host nor a step ever waits for them.

use std::borrow::Cow;
use std::ops::Range;

use cudarc::driver::sys::CUdeviceptr;

use crate::runtime::context::{Event, Pinned};
use crate::runtime::device::Device;
use kernels::ops::Taken;

/// Bytes of a piece: what the host copies at a time, in about 0.1 ms.
const PIECE: usize = 1 << 20;
/// Pieces under way.
const PIECES: usize = 3;

/// Bytes on the host, and where they belong on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extent<'a> {
    pub(crate) bytes: Cow<'a, [u8]>,
    pub(crate) to: CUdeviceptr,
}

/// Copies in the background.
#[derive(Default)]
pub(crate) struct BackgroundCopies {
    pieces: Vec<Piece>,
    next: usize,
    /// When the steps are over that copies wait for.
    free: Option<Event>,
}

/// Pinned memory that a part of a copy passes through, and when it has.
struct Piece {
    pinned: Pinned,
    arrived: Event,
}

impl Piece {
    fn new(device: &mut Device) -> Option<Self> {
        Some(Self { pinned: device.pin(PIECE)?, arrived: device.event()? })
    }
}

impl Drop for Piece {
    fn drop(&mut self) {
        // The device may be reading the memory.
        let _ = self.arrived.wait();
    }
}

impl BackgroundCopies {
    /// Makes room for pieces, once.
    pub(crate) fn prepare(&mut self, device: &mut Device) {
        if self.free.is_none() {
            self.free = device.event();
            self.pieces.extend((0..PIECES).filter_map(|_| Piece::new(device)));
        }
    }

    /// Copies from here on begin when the stream has passed all that is queued by now.
    pub(crate) fn begin(&mut self, device: &mut Device) {
        let Some(free) = &self.free else { return };
        device.attempt(
            || "a copy in the background".to_owned(),
            |_| {
                free.record()?;
                free.hold_background()
            },
        );
    }

    /// Takes a piece of these extents, behind the bytes that were `taken` before, if there is room for one. Nothing
    /// that is queued on the stream between [`Self::begin`] and the arrival reads what they fill.
    pub(crate) fn copy(&mut self, device: &mut Device, extents: &[Extent<'_>], taken: &mut usize) -> Taken {
        if self.pieces.len() < PIECES || device.fault().is_some() {
            return Taken::All;
        }
        let Piece { pinned, arrived } = &mut self.pieces[self.next];
        if !arrived.is_done() {
            return Taken::Nothing;
        }
        let all: usize = extents.iter().map(|extent| extent.bytes.len()).sum();
        let range = *taken..all.min(*taken + PIECE);
        let mut rest = pinned.slice_mut(range.len());
        for (bytes, _) in within(extents, range.clone()) {
            let (here, after) = rest.split_at_mut(bytes.len());
            here.copy_from_slice(bytes);
            rest = after;
        }
        let mut at = 0;
        for (bytes, to) in within(extents, range.clone()) {
            device.upload_in_background(pinned, at..at + bytes.len(), to);
            at += bytes.len();
        }
        device.attempt(|| "a copy in the background".to_owned(), |_| arrived.record_in_background());
        self.next = (self.next + 1) % PIECES;
        *taken = range.end;
        if range.end == all { Taken::All } else { Taken::Part }
    }

    /// Whether all that was taken has arrived.
    pub(crate) fn have_arrived(&self) -> bool {
        self.pieces.iter().all(|piece| piece.arrived.is_done())
    }
}

/// The parts of extents that lie in a range of all their bytes, and where they go.
fn within<'a>(extents: &'a [Extent<'_>], range: Range<usize>) -> impl Iterator<Item = (&'a [u8], CUdeviceptr)> {
    let mut first = 0;
    extents.iter().filter_map(move |Extent { bytes, to }| {
        let [start, end] = [range.start, range.end].map(|at| at.saturating_sub(first).min(bytes.len()));
        first += bytes.len();
        (start < end).then(|| (&bytes[start..end], to + start as u64))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_extents_are_all_of_them_at_their_places() {
        let bytes: Vec<u8> = (0..=255).collect();
        let extents = [(0..7, 1000), (7..7, 2000), (7..100, 3000), (100..256, 500)]
            .map(|(range, to)| Extent { bytes: bytes[range].into(), to });
        for size in [1, 3, 93, 200, 256, 1000] {
            let mut memory = vec![None; 4000];
            for start in (0..bytes.len()).step_by(size) {
                let mut taken = 0;
                for (part, to) in within(&extents, start..bytes.len().min(start + size)) {
                    taken += part.len();
                    for (at, byte) in memory[to as usize..].iter_mut().zip(part) {
                        assert_eq!(at.replace(*byte), None, "written once");
                    }
                }
                assert_eq!(taken, size.min(bytes.len() - start), "a piece from {start} on");
            }
            for Extent { bytes, to } in &extents {
                let there: Vec<u8> = memory[*to as usize..][..bytes.len()].iter().copied().flatten().collect();
                assert_eq!(there, **bytes, "pieces of {size}");
            }
        }
        let some: Vec<_> = within(&extents, 5..8).collect();
        assert_eq!(some, [(&bytes[5..7], 1005), (&bytes[7..8], 3000)]);
    }
}
