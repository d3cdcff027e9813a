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
    pub(crate) fn copy<'a>(
        &mut self,
        device: &mut Device,
        extents: impl Iterator<Item = Extent<'a>>,
        taken: &mut usize,
    ) -> Taken {
        if self.pieces.len() < PIECES || device.fault().is_some() {
            return Taken::All;
        }
        let Piece { pinned, arrived } = &mut self.pieces[self.next];
        if !arrived.is_done() {
            return Taken::Nothing;
        }
        let mut filled = 0;
        let so_far = take(extents, *taken..*taken + PIECE, |bytes, to| {
            let place = filled..filled + bytes.len();
            pinned.slice_mut(place.end)[place.clone()].copy_from_slice(bytes);
            device.upload_in_background(pinned, place, to);
            filled += bytes.len();
        });
        device.attempt(|| "a copy in the background".to_owned(), |_| arrived.record_in_background());
        self.next = (self.next + 1) % PIECES;
        *taken += filled;
        so_far
    }

    /// Whether all that was taken has arrived.
    pub(crate) fn have_arrived(&self) -> bool {
        self.pieces.iter().all(|piece| piece.arrived.is_done())
    }
}

/// Gives `copy` the parts of extents that lie in a range of all their bytes, and where they go. Whether that is all or
/// more lies behind; what does is not looked at.
fn take<'a>(
    extents: impl Iterator<Item = Extent<'a>>,
    range: Range<usize>,
    mut copy: impl FnMut(&[u8], CUdeviceptr),
) -> Taken {
    let mut first = 0;
    for Extent { bytes, to } in extents {
        let [start, end] = [range.start, range.end].map(|at| at.saturating_sub(first).min(bytes.len()));
        if start < end {
            copy(&bytes[start..end], to + start as u64);
        }
        first += bytes.len();
        if first > range.end {
            return Taken::Part;
        }
    }
    Taken::All
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
                let so_far = take(extents.iter().cloned(), start..start + size, |part, to| {
                    taken += part.len();
                    for (at, byte) in memory[to as usize..].iter_mut().zip(part) {
                        assert_eq!(at.replace(*byte), None, "written once");
                    }
                });
                assert_eq!(taken, size.min(bytes.len() - start), "a piece from {start} on");
                assert_eq!(so_far == Taken::All, start + size >= bytes.len(), "a piece from {start} on");
            }
            for Extent { bytes, to } in &extents {
                let there: Vec<u8> = memory[*to as usize..][..bytes.len()].iter().copied().flatten().collect();
                assert_eq!(there, **bytes, "pieces of {size}");
            }
        }
        let mut some = Vec::new();
        let behind = std::iter::once_with(|| unreachable!("what is behind a piece"));
        let so_far = take(extents.into_iter().chain(behind), 5..8, |part, to| some.push((part.to_vec(), to)));
        assert_eq!((some, so_far), (vec![(bytes[5..7].to_vec(), 1005), (bytes[7..8].to_vec(), 3000)], Taken::Part));
    }
}
