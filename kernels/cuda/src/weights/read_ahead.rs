//! Many small matrices of a checkpoint, read together while those before are packed: for each alone, threads take
//! longer to start than to read.

use std::collections::HashMap;
use std::ops::Range;
use std::panic::resume_unwind;
use std::thread::{Scope, ScopedJoinHandle};

use cudarc::driver::sys::CUdeviceptr;

use crate::CudaBackend;
use crate::runtime::context::{Event, Pinned};
use crate::runtime::device::Device;
use crate::weights::staging::{gather, threads};
use kernels::ops::{DType, Encoding, HostMatrix, Load, Matrix};

/// Bytes that are read together at most.
const MOST: usize = 32 << 20;
/// What a thread reads at least.
const LEAST_SHARE: usize = 1 << 20;

/// Where what was read lies in a batch, by its address and length.
type Places = HashMap<(usize, usize), usize>;

/// Pinned memory of one batch, and when all copies from it are done.
struct Arena {
    pinned: Pinned,
    copied: Event,
}

/// Matrices that are read together.
pub(crate) struct Batch<'a> {
    /// Which of all that are loaded.
    pub(crate) stacks: Range<usize>,
    sources: Vec<&'a [u8]>,
}

impl<'a> Batch<'a> {
    /// All of these, in their order. A stack that is too large is alone, with nothing to read.
    pub(crate) fn of(stacks: &[Vec<HostMatrix<'a>>]) -> Vec<Self> {
        let mut batches: Vec<Self> = Vec::new();
        let mut bytes = 0;
        for (number, stack) in stacks.iter().enumerate() {
            let mut sources: Vec<&[u8]> = stack.iter().flat_map(sources).collect();
            let more = sources.iter().map(|source| source.len()).sum::<usize>();
            if more > MOST {
                sources.clear();
            }
            match batches.last_mut() {
                Some(batch) if bytes + more <= MOST => {
                    batch.stacks.end = number + 1;
                    batch.sources.extend(sources);
                    bytes += more;
                }
                _ => {
                    batches.push(Self { stacks: number..number + 1, sources });
                    bytes = more;
                }
            }
        }
        batches
    }

    fn bytes(&self) -> usize {
        self.sources.iter().map(|source| source.len()).sum()
    }

    /// Reads all of them.
    fn read(&self, to: &mut [u8]) {
        let share = to.len().div_ceil(threads()).max(LEAST_SHARE);
        let (here, others) = to.split_at_mut(share.min(to.len()));
        std::thread::scope(|scope| {
            for (number, part) in others.chunks_mut(share).enumerate() {
                scope.spawn(move || gather(&self.sources, (number + 1) * share, part));
            }
            gather(&self.sources, 0, here);
        });
    }

    fn places(&self) -> Places {
        let mut start = 0;
        let place = |source: &&[u8]| {
            let place = (key(source), start);
            start += source.len();
            place
        };
        self.sources.iter().map(place).collect()
    }
}

/// What is copied of a matrix as it is stored.
fn sources<'a>(matrix: &HostMatrix<'a>) -> impl Iterator<Item = &'a [u8]> {
    let sources: [&[u8]; 3] = match matrix.encoding {
        Encoding::Plain(_) | Encoding::Scaled(_) => [matrix.bytes(), &[], &[]],
        Encoding::Grouped(codes) => [codes.codes, codes.scales, codes.zeros],
        // They are taken apart on the host.
        Encoding::Blocks(_) => [&[]; 3],
    };
    sources.into_iter().filter(|source| !source.is_empty())
}

fn key(source: &[u8]) -> (usize, usize) {
    (source.as_ptr() as usize, source.len())
}

/// Room for two batches: one that is copied, and one that is read.
#[derive(Default)]
pub(super) struct ReadAhead {
    free: Vec<Arena>,
    made: usize,
    /// The batch that is being loaded.
    now: Option<(Arena, Places)>,
}

impl ReadAhead {
    /// Memory for a batch, which no copy reads any more.
    fn arena(&mut self, device: &mut Device, batch: &Batch<'_>) -> Option<Arena> {
        const ARENAS: usize = 2;
        if batch.stacks.len() == 1 {
            return None;
        }
        if self.free.is_empty() && self.made < ARENAS {
            let (pinned, copied) = device.pin(MOST).zip(device.event())?;
            self.made += 1;
            return Some(Arena { pinned, copied });
        }
        let arena = self.free.pop()?;
        device.attempt(|| "loading weights".to_owned(), |_| arena.copied.wait());
        Some(arena)
    }

    /// Begins to read a batch; absent where nothing is gained.
    fn begin<'scope, 'env>(
        &mut self,
        device: &mut Device,
        scope: &'scope Scope<'scope, 'env>,
        batch: &'env Batch<'_>,
    ) -> Option<ScopedJoinHandle<'scope, Arena>> {
        let mut arena = self.arena(device, batch)?;
        Some(scope.spawn(move || {
            batch.read(arena.pinned.slice_mut(batch.bytes()));
            arena
        }))
    }

    /// Queues copies of what was read ahead; false where it was not.
    pub(super) fn copy(&self, device: &mut Device, pieces: &[&[u8]], to: CUdeviceptr) -> bool {
        let Some((arena, places)) = &self.now else { return false };
        let Some(places) = pieces.iter().map(|piece| places.get(&key(piece))).collect::<Option<Vec<_>>>() else {
            return false;
        };
        let mut to = to;
        for (piece, place) in pieces.iter().zip(places) {
            device.upload(&arena.pinned, *place..place + piece.len(), to);
            to += piece.len() as u64;
        }
        true
    }

    /// The batch is loaded.
    fn end(&mut self, device: &mut Device) {
        if let Some((arena, _)) = self.now.take() {
            device.attempt(|| "loading weights".to_owned(), |_| arena.copied.record());
            self.free.push(arena);
        }
    }
}

impl CudaBackend {
    /// Loads matrices, each a stack of pieces, while those that come next are read.
    pub(crate) fn load_reading_ahead(&mut self, stacks: &[Vec<HostMatrix<'_>>], compute: DType) -> Vec<Matrix> {
        let batches = Batch::of(stacks);
        let mut loaded = Vec::with_capacity(stacks.len());
        std::thread::scope(|scope| {
            let mut next = batches.first().and_then(|batch| self.staging.ahead.begin(&mut self.device, scope, batch));
            for (number, batch) in batches.iter().enumerate() {
                let arena = next.take().map(|reader| reader.join().unwrap_or_else(|panic| resume_unwind(panic)));
                let following = batches.get(number + 1);
                next = following.and_then(|batch| self.staging.ahead.begin(&mut self.device, scope, batch));
                self.staging.ahead.now = arena.map(|arena| (arena, batch.places()));
                loaded.extend(stacks[batch.stacks.clone()].iter().map(|stack| self.load_stack(stack, compute)));
                self.staging.ahead.end(&mut self.device);
            }
        });
        loaded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of such sizes in MiB.
    fn stacks<'a>(bytes: &'a [u8], sizes: &[usize]) -> Vec<Vec<HostMatrix<'a>>> {
        let matrix = |size: &usize| HostMatrix::plain(DType::Bf16, size << 10, 512, &bytes[..size << 20]);
        sizes.iter().map(|size| vec![matrix(size)]).collect()
    }

    #[test]
    fn batches_have_room_and_hold_everything_in_order() {
        let bytes = vec![0; MOST + (1 << 20)];
        let most = MOST >> 20;
        let stacks = stacks(&bytes, &[1, 2, most - 3, 1, most + 1, 4, most, 3, 3]);
        let batches = Batch::of(&stacks);
        let found: Vec<_> = batches.iter().map(|batch| (batch.stacks.clone(), batch.bytes() >> 20)).collect();
        assert_eq!(found, [(0..3, most), (3..4, 1), (4..5, 0), (5..6, 4), (6..7, most), (7..9, 6)]);
    }

    #[test]
    fn parts_lie_where_their_places_say() {
        let bytes: Vec<u8> = (0..5 << 20).map(|i: usize| (i * 7 + i / 251) as u8).collect();
        let parts = [0..3, 3..(2 << 20) + 1, (2 << 20) + 1..5 << 20];
        let batch = Batch { stacks: 0..3, sources: parts.iter().map(|part| &bytes[part.clone()]).collect() };
        let mut to = vec![0; batch.bytes()];
        batch.read(&mut to);
        assert!(to == bytes);
        let places = batch.places();
        assert!(parts.iter().all(|part| places[&key(&bytes[part.clone()])] == part.start));
    }
}
