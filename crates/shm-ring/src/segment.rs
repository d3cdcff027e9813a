//! A ring in a sealed memfd, mapped by two processes.

use std::{
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    ptr::NonNull,
};

use rustix::{
    fs::{MemfdFlags, SealFlags},
    mm::{MapFlags, ProtFlags},
};

use crate::{
    control::Control,
    error::RingError,
    memory::{MAX_CAPACITY, MIN_CAPACITY, Memory},
};

/// "QUIRERNG", little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"QUIRERNG");
/// Version of the layout in `control.rs`.
const VERSION: u64 = 1;
/// Where the data begins.
const DATA_OFFSET: usize = 4096;
/// The size must not change under a mapping: touching a page past the end would be a SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// What a segment says of itself, before anything else in it is believed.
#[repr(C, align(128))]
#[derive(Clone, Copy)]
struct Identity {
    magic: u64,
    version: u64,
    capacity: u64,
}

#[repr(C)]
struct Header {
    identity: Identity,
    control: Control,
}

const _: () = assert!(size_of::<Header>() == 640 && size_of::<Header>() <= DATA_OFFSET);

/// A mapped segment.
#[derive(Debug)]
pub(crate) struct Segment {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the mapping belongs to this value alone within the process, and may be used from any thread.
unsafe impl Send for Segment {}
// SAFETY: through `&Segment` only atomics are reached safely; the bytes need `Memory`'s unsafe contract.
unsafe impl Sync for Segment {}

impl Segment {
    /// Makes an empty ring of at least `capacity` bytes, and the descriptor by which another process maps it.
    pub(crate) fn create(capacity: usize) -> Result<(Self, OwnedFd), RingError> {
        let capacity = capacity.clamp(DATA_OFFSET, MAX_CAPACITY).next_power_of_two();
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("quire-ring", flags).map_err(os("making a ring"))?;
        rustix::fs::ftruncate(&fd, (DATA_OFFSET + capacity) as u64).map_err(os("sizing a ring"))?;
        rustix::fs::fcntl_add_seals(&fd, SEALS).map_err(os("sealing a ring"))?;
        let segment = Self::map(fd.as_fd(), capacity)?;
        let identity = Identity { magic: MAGIC, version: VERSION, capacity: capacity as u64 };
        // SAFETY: the mapping is longer than a header and page-aligned, and nobody else has the descriptor yet.
        unsafe { segment.start.cast::<Identity>().write(identity) };
        Ok((segment, fd))
    }

    /// Maps a ring that another process made, after checking that it is one and cannot shrink.
    pub(crate) fn open(fd: BorrowedFd<'_>) -> Result<Self, RingError> {
        let seals = rustix::fs::fcntl_get_seals(fd).map_err(os("reading a ring's seals"))?;
        if !seals.contains(SEALS) {
            return Err(foreign("seals", seals.bits().into(), SEALS.bits().into()));
        }
        let size = rustix::fs::fstat(fd).map_err(os("reading a ring's size"))?.st_size as u64;
        let capacity = size.saturating_sub(DATA_OFFSET as u64);
        let fits = (MIN_CAPACITY as u64..=MAX_CAPACITY as u64).contains(&capacity);
        if !fits || !capacity.is_power_of_two() {
            return Err(foreign("size", size, (DATA_OFFSET + DATA_OFFSET) as u64));
        }
        let segment = Self::map(fd, capacity as usize)?;
        // SAFETY: the mapping is longer than a header and page-aligned; any bytes are a valid `Identity`. Volatile,
        // because another process may write there: it is read once, then checked.
        let identity = unsafe { segment.start.cast::<Identity>().as_ptr().read_volatile() };
        check("magic", identity.magic, MAGIC)?;
        check("version", identity.version, VERSION)?;
        check("capacity", identity.capacity, capacity)?;
        Ok(segment)
    }

    fn map(fd: BorrowedFd<'_>, capacity: usize) -> Result<Self, RingError> {
        let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { rustix::mm::mmap(std::ptr::null_mut(), DATA_OFFSET + capacity, protection, flags, fd, 0) };
        let start = start.map_err(os("mapping a ring"))?;
        let Some(start) = NonNull::new(start.cast()) else {
            return Err(foreign("address", 0, 1));
        };
        Ok(Self { start, capacity })
    }

    /// A pointer into the data. `offset` is at most the capacity.
    fn data(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.capacity);
        // SAFETY: the data lies in the mapping, from `DATA_OFFSET` on.
        unsafe { self.start.as_ptr().add(DATA_OFFSET + offset) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: made by `map` with this size, and nothing borrows from it any more. Failing is harmless and
        // impossible.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), DATA_OFFSET + self.capacity) };
    }
}

// SAFETY: the capacity is a power of two within bounds, kept in this process. A segment becomes one producer or one
// consumer, here and in the peer (`handover`). A peer that breaks the protocol can change bytes while they are copied;
// that garbles the copy, which is only parsed as untrusted bytes, and reaches nothing else.
unsafe impl Memory for Segment {
    fn control(&self) -> &Control {
        // SAFETY: the mapping is longer than a header and page-aligned, lives as long as `self`, and holds only
        // atomics, for which any bytes are valid.
        unsafe { &(*self.start.as_ptr().cast::<Header>()).control }
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    unsafe fn write(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: the caller keeps the range within the capacity; `bytes` is no part of the mapping, of which no
        // reference to data ever exists.
        unsafe { self.data(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    unsafe fn read(&self, offset: usize, out: &mut [MaybeUninit<u8>]) {
        // SAFETY: as in `write`.
        unsafe { self.data(offset).copy_to_nonoverlapping(out.as_mut_ptr().cast(), out.len()) };
    }
}

fn check(what: &'static str, found: u64, expected: u64) -> Result<(), RingError> {
    if found == expected { Ok(()) } else { Err(foreign(what, found, expected)) }
}

fn foreign(what: &'static str, found: u64, expected: u64) -> RingError {
    RingError::Foreign { what, found, expected }
}

fn os(doing: &'static str) -> impl FnOnce(rustix::io::Errno) -> RingError {
    move |errno| RingError::Io { doing, source: errno.into() }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    fn raw(size: u64, seals: SealFlags) -> OwnedFd {
        let fd = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&fd, size).unwrap();
        rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
        fd
    }

    fn check_refused(fd: &OwnedFd, field: &str) {
        match Segment::open(fd.as_fd()) {
            Err(RingError::Foreign { what, .. }) => assert_eq!(what, field),
            other => panic!("expected a refusal for {field}, got {other:?}"),
        }
    }

    #[test]
    fn capacity_is_rounded_up_and_found_by_the_peer() {
        let (made, fd) = Segment::create(5000).unwrap();
        let opened = Segment::open(fd.as_fd()).unwrap();
        assert_eq!((made.capacity, opened.capacity), (8192, 8192));
    }

    #[test]
    fn a_ring_cannot_shrink_or_grow() {
        let (_segment, fd) = Segment::create(4096).unwrap();
        assert!(rustix::fs::ftruncate(&fd, 4096).is_err());
        assert!(rustix::fs::ftruncate(&fd, 1 << 20).is_err());
    }

    #[test]
    fn what_is_no_ring_is_refused() {
        check_refused(&raw(8192, SealFlags::GROW), "seals");
        check_refused(&raw(4096, SEALS), "size");
        check_refused(&raw(4096 + 5000, SEALS), "size");
        check_refused(&raw(8192, SEALS), "magic");
        let (segment, fd) = Segment::create(4096).unwrap();
        // SAFETY: the mapping is this test's alone.
        unsafe { (*segment.start.cast::<Identity>().as_ptr()).version = VERSION + 1 };
        check_refused(&fd, "version");
        // SAFETY: as above.
        unsafe {
            *segment.start.cast::<Identity>().as_ptr() = Identity { magic: MAGIC, version: VERSION, capacity: 8 }
        };
        check_refused(&fd, "capacity");
    }
}
