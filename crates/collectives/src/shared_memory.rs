//! A group of processes on one host that meet in a shared segment.
//!
//! Small buffers take one meeting: every rank publishes its part, waits for all, and adds all parts up itself. Large
//! ones take two: each rank adds up its share (reduce-scatter), then all read the result (all-gather). Buffers
//! alternate between two halves of the segment: a rank that writes a half again has since met the others once more, so
//! nobody can still be reading it.

use std::{
    ops::Range,
    process,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    AbortHandle, Collective, CollectiveError,
    segment::{Layout, Segment, name_of},
};

/// Buffers up to this many floats are summed by every rank: a second meeting costs more than the reading.
const SMALL: usize = 8 * 1024;

/// Floats that travel at once: 256 KiB, so that writer and readers share it in cache.
const CHUNK: usize = 64 * 1024;

/// How often a forming rank looks whether the name leads elsewhere by now, and whether it was aborted.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// Where and as whom a process joins a group.
#[derive(Clone, Debug)]
pub struct RankPlacement {
    /// Names the group; the same for all of its ranks, and for no other living group on this host.
    pub rendezvous: String,
    /// This process's rank.
    pub rank: usize,
    /// Ranks in the group.
    pub world_size: usize,
    /// How long forming, and later each wait for another rank, may take.
    pub timeout: Duration,
}

/// A rank of a group in shared memory.
pub struct SharedMemory {
    segment: Arc<Segment>,
    abort: AbortHandle,
    place: RankPlacement,
    /// Times that this rank has arrived.
    arrived: u32,
    half: usize,
    /// Set by the first error: the ranks no longer agree on what comes next.
    lost: bool,
}

impl SharedMemory {
    /// Meets the other ranks. `abort` ends this, and everything that the group does later.
    pub fn join(place: RankPlacement, abort: AbortHandle) -> Result<Self, CollectiveError> {
        if place.rank >= place.world_size || place.world_size > 1 << 16 {
            let reason = format!("rank {} of {}", place.rank, place.world_size);
            return Err(CollectiveError::Setup { doing: "joining a group", reason });
        }
        let segment = if place.rank == 0 { host(&place, &abort)? } else { visit(&place, &abort)? };
        let segment = Arc::new(segment);
        abort.attach(&segment);
        Ok(Self { segment, abort, place, arrived: 1, half: 0, lost: false })
    }

    /// Arrives and waits for all.
    fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.arrived = self.arrived.wrapping_add(1);
        self.segment.turn(self.place.rank).arrive();
        (0..self.place.world_size).try_for_each(|rank| self.segment.turn(rank).wait(self.arrived, self.place.timeout))
    }

    /// Publishes `mine` (at most a chunk) in this rank's area of a fresh half, and waits until all have done so.
    fn publish(&mut self, mine: &[f32]) -> Result<(), CollectiveError> {
        self.half = 1 - self.half;
        // SAFETY: this rank's own area. Others read this half last before the meeting of the other half, which is over.
        let area = unsafe { self.segment.area_mut(self.half, self.place.rank) };
        area[..mine.len()].copy_from_slice(mine);
        self.barrier()
    }

    /// `out = sum over ranks`, of that part of their areas, in rank order.
    fn add_up(&self, part: Range<usize>, out: &mut [f32]) {
        for rank in 0..self.place.world_size {
            // SAFETY: all ranks published and met; they write this half again only after meeting for the other half,
            // where this rank arrives after this function.
            let area = unsafe { self.segment.area(self.half, rank) };
            let area = &area[part.clone()];
            if rank == 0 {
                out.copy_from_slice(area);
            } else {
                out.iter_mut().zip(area).for_each(|(sum, x)| *sum += x);
            }
        }
    }

    fn reduce_chunk(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        self.publish(data)?;
        if data.len() <= SMALL {
            self.add_up(0..data.len(), data);
            return Ok(());
        }
        let share = share_of(data.len(), self.place.rank, self.place.world_size);
        // SAFETY: shares of ranks do not overlap, and the result of this half was last read before the meeting of the
        // other half.
        let result = unsafe { self.segment.result_mut(self.half, share.clone()) };
        self.add_up(share, result);
        self.barrier()?;
        // SAFETY: all ranks wrote their share and met; the next write to this half's result follows two further
        // meetings.
        data.copy_from_slice(unsafe { self.segment.result(self.half, data.len()) });
        Ok(())
    }

    fn gather_chunk(&mut self, mine: &[f32], range: Range<usize>, all: &mut [f32]) -> Result<(), CollectiveError> {
        self.publish(&mine[range.clone()])?;
        for (rank, out) in all.chunks_exact_mut(mine.len()).enumerate() {
            // SAFETY: as in `add_up`.
            let area = unsafe { self.segment.area(self.half, rank) };
            out[range.clone()].copy_from_slice(&area[..range.len()]);
        }
        Ok(())
    }

    /// Appends to `all` what each rank gave; `mine` is at most a chunk.
    fn exchange_chunk(&mut self, mine: &[u8], all: &mut [Vec<u8>]) -> Result<(), CollectiveError> {
        self.half = 1 - self.half;
        // SAFETY: as in `publish`.
        let area = unsafe { self.segment.area_bytes_mut(self.half, self.place.rank) };
        area[..mine.len()].copy_from_slice(mine);
        self.barrier()?;
        for (rank, bytes) in all.iter_mut().enumerate() {
            // SAFETY: as in `add_up`.
            let area = unsafe { self.segment.area_bytes(self.half, rank) };
            bytes.extend_from_slice(&area[..mine.len()]);
        }
        Ok(())
    }

    /// Remembers an error: after it, nothing is tried any more.
    fn settle(&mut self, result: Result<(), CollectiveError>) -> Result<(), CollectiveError> {
        self.lost |= result.is_err();
        result
    }

    fn check(&self) -> Result<(), CollectiveError> {
        if self.lost || self.abort.is_aborted() { Err(CollectiveError::Aborted) } else { Ok(()) }
    }
}

impl Collective for SharedMemory {
    fn rank(&self) -> usize {
        self.place.rank
    }

    fn world_size(&self) -> usize {
        self.place.world_size
    }

    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        self.check()?;
        let result = data.chunks_mut(CHUNK).try_for_each(|chunk| self.reduce_chunk(chunk));
        self.settle(result)
    }

    fn all_gather(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        self.check()?;
        let world_size = self.place.world_size;
        if mine.len() * world_size != all.len() {
            return Err(CollectiveError::Sizes { mine: mine.len(), all: all.len(), world_size });
        }
        let starts = (0..mine.len()).step_by(CHUNK);
        let mut ranges = starts.map(|start| start..mine.len().min(start + CHUNK));
        let result = ranges.try_for_each(|range| self.gather_chunk(mine, range, all));
        self.settle(result)
    }

    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.check()?;
        let mut all = vec![Vec::with_capacity(mine.len()); self.place.world_size];
        let mut chunks = mine.chunks(CHUNK * size_of::<f32>());
        let result = chunks.try_for_each(|chunk| self.exchange_chunk(chunk, &mut all));
        self.settle(result).map(|()| all)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // A rank that leaves ends the group: whoever waits for it learns at once.
        self.segment.abort();
        self.abort.detach();
    }
}

/// The part of `0 .. len` that a rank adds up, in whole cache lines.
fn share_of(len: usize, rank: usize, world_size: usize) -> Range<usize> {
    let lines = len.div_ceil(16);
    let at = |rank: usize| (lines * rank / world_size * 16).min(len);
    at(rank)..at(rank + 1)
}

fn layout(place: &RankPlacement) -> Layout {
    Layout { world_size: place.world_size, chunk: CHUNK }
}

/// Rank 0: makes the segment, waits for everybody, takes the name away.
fn host(place: &RankPlacement, abort: &AbortHandle) -> Result<Segment, CollectiveError> {
    let start = Instant::now();
    let clock = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_nanos() as u64);
    let nonce = clock ^ u64::from(process::id()) << 32;
    let mut segment = Segment::create(&name_of(&place.rendezvous), layout(place), nonce)?;
    segment.turn(0).claim();
    for rank in 1..place.world_size {
        while let Err(error) = segment.turn(rank).wait(1, LOOK_AGAIN) {
            patience(error, start, place, abort)?;
        }
    }
    segment.take_name_away();
    segment.formed().arrive();
    Ok(segment)
}

/// Other ranks: find rank 0's segment, claim a place in it, wait until rank 0 saw all.
///
/// The name may first lead to what an earlier group left. Nobody moves that segment's `formed` any more, so the rank
/// looks again and again whether rank 0 has put a new segment under the name.
fn visit(place: &RankPlacement, abort: &AbortHandle) -> Result<Segment, CollectiveError> {
    let start = Instant::now();
    let name = name_of(&place.rendezvous);
    let mut mine: Option<Segment> = None;
    loop {
        if let Some(segment) = mine.take() {
            match segment.formed().wait(1, LOOK_AGAIN) {
                Ok(()) => return Ok(segment),
                Err(error) => patience(error, start, place, abort)?,
            }
            mine = Some(segment);
        }
        let newer = Segment::open(&name, layout(place));
        let known = mine.as_ref().map(Segment::nonce);
        match newer {
            Ok(Some(segment)) if Some(segment.nonce()) != known => {
                mine = segment.turn(place.rank).claim().then_some(segment);
            }
            // A stale segment of another layout is replaced soon; a living rank 0 that disagrees is told by the
            // deadline.
            Err(error) if start.elapsed() >= place.timeout => return Err(error),
            _ => {}
        }
        if mine.is_none() {
            patience(CollectiveError::Deadline { deadline_ms: 0 }, start, place, abort)?;
            std::thread::park_timeout(LOOK_AGAIN);
        }
    }
}

/// Whether a wait that ended like this, in a group that forms, may go on.
fn patience(
    error: CollectiveError,
    start: Instant,
    place: &RankPlacement,
    abort: &AbortHandle,
) -> Result<(), CollectiveError> {
    if abort.is_aborted() {
        return Err(CollectiveError::Aborted);
    }
    match error {
        CollectiveError::Deadline { .. } if start.elapsed() < place.timeout => Ok(()),
        CollectiveError::Deadline { .. } => {
            Err(CollectiveError::Deadline { deadline_ms: place.timeout.as_millis() as u64 })
        }
        other => Err(other),
    }
}
