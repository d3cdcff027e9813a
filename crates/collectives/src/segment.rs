//! The group's memory: a named segment, mapped by every rank, and what lies where in it.
//!
//! ```text
//! | Header | Turn 0 | .. | Turn n-1 | half 0: area 0 | .. | area n-1 | result | half 1: the same |
//! ```
//! Each area and result is `chunk` floats. Rank 0 creates the segment and takes its name away as soon as all ranks have
//! mapped it, so a killed group leaves nothing behind; a segment that a group left while forming is replaced by the
//! next rank 0 of that name.

use std::{
    ffi::CString,
    mem::size_of,
    slice,
    sync::atomic::{
        AtomicU32, AtomicU64,
        Ordering::{Acquire, Relaxed, Release},
    },
};

use ::shared_memory::{Shmem, ShmemConf};

use crate::{CollectiveError, turn::Turn};

const MAGIC: u32 = 0x5152_0001;

/// First line of the segment. All zero until rank 0 has written it; `magic` last.
#[repr(C, align(64))]
struct Header {
    magic: AtomicU32,
    world_size: AtomicU32,
    chunk: AtomicU64,
    /// Drawn by rank 0: tells this segment from another one of the same name.
    nonce: AtomicU64,
}

/// What must agree between ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub world_size: usize,
    /// Floats of an area; a multiple of 16, so that areas begin on cache lines.
    pub chunk: usize,
}

impl Layout {
    fn bytes(self) -> usize {
        self.data_offset() + 2 * self.half_floats() * size_of::<f32>()
    }

    fn data_offset(self) -> usize {
        size_of::<Header>() + (self.world_size + 1) * size_of::<Turn>()
    }

    fn half_floats(self) -> usize {
        (self.world_size + 1) * self.chunk
    }
}

/// A mapped segment.
pub(crate) struct Segment {
    memory: Shmem,
    layout: Layout,
}

// SAFETY: `Shmem` is a pointer to memory that is shared with other processes anyway, an fd and a name. The memory is
// reached through atomics (`Header`, `Turn`), or through `area_mut`, `result_mut` and `floats`, whose callers promise
// exclusivity; nothing mutates the fields of `Shmem` after construction.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates the segment of that name, in place of any older one.
    pub fn create(name: &str, layout: Layout, nonce: u64) -> Result<Self, CollectiveError> {
        unlink(name);
        let failed = |error| setup("creating shared memory", error);
        let memory = ShmemConf::new().os_id(name).size(layout.bytes()).create().map_err(failed)?;
        reserve(name, layout.bytes())?;
        let segment = Self { memory, layout };
        let header = segment.header();
        header.world_size.store(layout.world_size as u32, Relaxed);
        header.chunk.store(layout.chunk as u64, Relaxed);
        header.nonce.store(nonce, Relaxed);
        // Pairs with the Acquire in `open`: whoever sees the magic sees the rest.
        header.magic.store(MAGIC, Release);
        Ok(segment)
    }

    /// Maps the segment of that name; `None` while there is none that is ready.
    pub fn open(name: &str, layout: Layout) -> Result<Option<Self>, CollectiveError> {
        let Ok(memory) = ShmemConf::new().os_id(name).open() else { return Ok(None) };
        if memory.len() < size_of::<Header>() {
            return Ok(None);
        }
        let bytes = memory.len();
        let segment = Self { memory, layout };
        let header = segment.header();
        if header.magic.load(Acquire) != MAGIC {
            return Ok(None);
        }
        let (world_size, chunk) = (header.world_size.load(Relaxed) as usize, header.chunk.load(Relaxed) as usize);
        if (Layout { world_size, chunk }) != layout || bytes < layout.bytes() {
            return Err(setup("joining a group", format!("rank 0 has {world_size} ranks and {chunk} floats a chunk")));
        }
        Ok(Some(segment))
    }

    /// What rank 0 drew.
    pub fn nonce(&self) -> u64 {
        self.header().nonce.load(Relaxed)
    }

    /// The turn counter of a rank; the one after the last rank's says "formed".
    pub fn turn(&self, rank: usize) -> &Turn {
        assert!(rank <= self.layout.world_size);
        // SAFETY: the mapping is `layout.bytes()` long (checked in `create` and `open`), page-aligned, and holds
        // `world_size + 1` turns after the header; `Turn` is made of atomics and valid for any bytes. The reference
        // lives no longer than the mapping.
        unsafe { &*self.memory.as_ptr().add(size_of::<Header>()).cast::<Turn>().add(rank) }
    }

    /// The counter that rank 0 moves when all have come.
    pub fn formed(&self) -> &Turn {
        self.turn(self.layout.world_size)
    }

    /// Ranks that have arrived less often than the furthest of them: a rank that waits now waits for these.
    pub fn missing(&self) -> Vec<usize> {
        let arrivals: Vec<u32> = (0..self.layout.world_size).map(|rank| self.turn(rank).arrivals()).collect();
        // On a circle: nobody is half of it ahead of another.
        let is_behind = |mine: u32, other: &u32| (other.wrapping_sub(mine) << 1) as i32 > 0;
        let behind = arrivals.iter().map(|mine| arrivals.iter().any(|other| is_behind(*mine, other)));
        behind.enumerate().filter_map(|(rank, is_behind)| is_behind.then_some(rank)).collect()
    }

    /// Ends all waits in this segment.
    pub fn abort(&self) {
        (0..=self.layout.world_size).for_each(|rank| self.turn(rank).abort());
    }

    /// A rank's area, for reading.
    ///
    /// # Safety
    /// Nobody may write to it while the slice lives: the rank has arrived since its last write and will not write
    /// before this rank arrives.
    pub unsafe fn area(&self, half: usize, rank: usize) -> &[f32] {
        assert!(rank < self.layout.world_size);
        // SAFETY: in bounds by `floats`; not written meanwhile by the caller's promise. Any bytes are a valid f32.
        unsafe { slice::from_raw_parts(self.floats(half, rank), self.layout.chunk) }
    }

    /// A rank's own area, for writing.
    ///
    /// # Safety
    /// `rank` must be the caller's, and all ranks must have arrived since they last read it.
    #[expect(clippy::mut_from_ref, reason = "memory shared between processes; the caller promises exclusivity")]
    pub unsafe fn area_mut(&self, half: usize, rank: usize) -> &mut [f32] {
        assert!(rank < self.layout.world_size);
        // SAFETY: in bounds by `floats`; exclusive by the caller's promise.
        unsafe { slice::from_raw_parts_mut(self.floats(half, rank), self.layout.chunk) }
    }

    /// The bytes of a rank's area, for reading.
    ///
    /// # Safety
    /// As for [`Self::area`].
    pub unsafe fn area_bytes(&self, half: usize, rank: usize) -> &[u8] {
        // SAFETY: the caller's promise.
        let area = unsafe { self.area(half, rank) };
        // SAFETY: the same memory, as long, and no byte of it is uninitialised.
        unsafe { slice::from_raw_parts(area.as_ptr().cast(), size_of_val(area)) }
    }

    /// The bytes of a rank's own area, for writing.
    ///
    /// # Safety
    /// As for [`Self::area_mut`].
    #[expect(clippy::mut_from_ref, reason = "memory shared between processes; the caller promises exclusivity")]
    pub unsafe fn area_bytes_mut(&self, half: usize, rank: usize) -> &mut [u8] {
        // SAFETY: the caller's promise.
        let area = unsafe { self.area_mut(half, rank) };
        // SAFETY: the same memory, borrowed as exclusively; any bytes are a valid f32.
        unsafe { slice::from_raw_parts_mut(area.as_mut_ptr().cast(), size_of_val(area)) }
    }

    /// The first `len` floats of the half's result, for reading.
    ///
    /// # Safety
    /// As for [`Self::area`], for every rank that writes a part of it.
    pub unsafe fn result(&self, half: usize, len: usize) -> &[f32] {
        assert!(len <= self.layout.chunk);
        // SAFETY: in bounds by the assertion and `floats`; not written meanwhile by the caller's promise.
        unsafe { slice::from_raw_parts(self.floats(half, self.layout.world_size), len) }
    }

    /// A part of the half's result, for writing.
    ///
    /// # Safety
    /// The part must be this rank's alone, and all ranks must have arrived since they last read it.
    #[expect(clippy::mut_from_ref, reason = "memory shared between processes; the caller promises exclusivity")]
    pub unsafe fn result_mut(&self, half: usize, part: std::ops::Range<usize>) -> &mut [f32] {
        assert!(part.start <= part.end && part.end <= self.layout.chunk);
        let start = self.floats(half, self.layout.world_size);
        // SAFETY: in bounds by the assertion and `floats`; exclusive by the caller's promise.
        unsafe { slice::from_raw_parts_mut(start.add(part.start), part.len()) }
    }

    /// Where area `index` of a half begins; index `world_size` is the result. `chunk` floats follow inside the mapping.
    fn floats(&self, half: usize, index: usize) -> *mut f32 {
        assert!(half < 2 && index <= self.layout.world_size);
        let at = half * self.layout.half_floats() + index * self.layout.chunk;
        // SAFETY: the offset lies within the mapping, whose length was checked against `layout.bytes()`.
        unsafe { self.memory.as_ptr().add(self.layout.data_offset()).cast::<f32>().add(at) }
    }

    fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned and at least a header long; `Header` is made of atomics, valid for any
        // bytes.
        unsafe { &*self.memory.as_ptr().cast::<Header>() }
    }

    /// Takes the name away; the mapping stays.
    pub fn take_name_away(&mut self) {
        if self.memory.set_owner(false) {
            unlink(self.memory.get_os_id());
        }
    }
}

/// Shared-memory name of a rendezvous: readable, and different for different rendezvous.
pub(crate) fn name_of(rendezvous: &str) -> String {
    // FNV-1a: the readable part alone could make two names equal.
    let hash =
        rendezvous.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    let readable =
        rendezvous.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(64).collect::<String>();
    format!("/quire-{readable}-{hash:016x}")
}

fn unlink(name: &str) {
    if let Ok(name) = CString::new(name) {
        // SAFETY: a valid C string; the call only removes a name.
        unsafe { libc::shm_unlink(name.as_ptr()) };
    }
}

/// Takes the memory now: a full `/dev/shm` is an error here instead of a SIGBUS later.
fn reserve(name: &str, bytes: usize) -> Result<(), CollectiveError> {
    let path = format!("/dev/shm{name}");
    let failed = |error: rustix::io::Errno| setup("reserving shared memory (is /dev/shm large enough?)", error);
    let file = match rustix::fs::open(path, rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty()) {
        Ok(file) => file,
        // Another mount point: then there is nothing to reserve through.
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    match rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, bytes as u64) {
        Ok(()) | Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(failed(error)),
    }
}

fn setup(doing: &'static str, reason: impl std::fmt::Display) -> CollectiveError {
    CollectiveError::Setup { doing, reason: reason.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_file_names_and_differ() {
        let name = name_of("ring:/run/a b/../x");
        assert!(name.starts_with("/quire-ring--run-a-b"), "{name}");
        assert_eq!(name.matches('/').count(), 1);
        assert_ne!(name_of("a/b"), name_of("a-b"));
        assert!(name_of(&"x".repeat(5000)).len() < 200);
    }

    #[test]
    fn layouts_that_differ_are_refused_and_the_name_goes() {
        let name = name_of(&format!("segment-test-{}", std::process::id()));
        let layout = Layout { world_size: 2, chunk: 16 };
        let mut made = Segment::create(&name, layout, 7).unwrap();
        assert_eq!(Segment::open(&name, layout).unwrap().unwrap().nonce(), 7);
        assert!(matches!(Segment::open(&name, Layout { world_size: 3, ..layout }), Err(CollectiveError::Setup { .. })));
        let newer = Segment::create(&name, layout, 8).unwrap();
        assert_eq!(Segment::open(&name, layout).unwrap().unwrap().nonce(), 8);
        drop(newer);
        made.take_name_away();
        assert!(Segment::open(&name, layout).unwrap().is_none());
    }
}
