//! Device memory of the CPU backend: zeroed anonymous mappings on huge pages, and a pointer that tasks may share.

use std::ptr::NonNull;

/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Regions from this size on are whole huge pages. (Small matrices are many, and each lookup of a page costs.)
const HUGE_FROM: usize = HUGE / 4;

/// A zeroed anonymous mapping. Pages that nobody touched cost nothing.
pub(crate) struct Region {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a region is plain memory owned by this value; nothing about it belongs to one thread.
unsafe impl Send for Region {}
// SAFETY: shared access only hands out pointers and shared slices.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `bytes` zero bytes, aligned to a page. Panics when the address space has no room, as `Vec` does.
    pub(crate) fn new(bytes: usize) -> Self {
        let bytes = bytes.max(64);
        let base = if bytes < HUGE_FROM { map(bytes) } else { map_huge(mapped(bytes)) };
        // Advice only: without huge pages everything works, slower.
        // SAFETY: the range is the mapping just made.
        unsafe { libc::madvise(base.as_ptr().cast(), mapped(bytes), libc::MADV_HUGEPAGE) };
        Self { base, bytes }
    }

    /// First byte.
    pub(crate) fn ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length and is not used after this.
        unsafe { libc::munmap(self.base.as_ptr().cast(), mapped(self.bytes)) };
    }
}

/// What a region of `bytes` bytes maps.
fn mapped(bytes: usize) -> usize {
    if bytes < HUGE_FROM { bytes } else { bytes.next_multiple_of(HUGE) }
}

fn map(bytes: usize) -> NonNull<u8> {
    // SAFETY: a private anonymous mapping at an address of the kernel's choice touches no existing memory.
    let base = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            bytes,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
            -1,
            0,
        )
    };
    assert!(base != libc::MAP_FAILED, "no address space for {bytes} bytes: {}", std::io::Error::last_os_error());
    NonNull::new(base.cast()).expect("mmap never returns null")
}

/// The same of whole huge pages, aligned to one: cut out of a mapping that is larger by a huge page.
fn map_huge(bytes: usize) -> NonNull<u8> {
    let base = map(bytes + HUGE);
    let before = base.as_ptr().align_offset(HUGE);
    // SAFETY: both parts belong to the mapping just made, and nobody uses them; the rest is `bytes` long.
    unsafe {
        if before > 0 {
            libc::munmap(base.as_ptr().cast(), before);
        }
        libc::munmap(base.as_ptr().add(before + bytes).cast(), HUGE - before);
        base.add(before)
    }
}

/// Memory that grows to the largest need.
#[derive(Default)]
pub(crate) struct Reserve(Option<Region>);

impl Reserve {
    /// At least `bytes` bytes with unspecified content.
    pub(crate) fn reserve(&mut self, bytes: usize) -> *mut u8 {
        if self.0.as_ref().is_none_or(|region| region.len() < bytes) {
            self.0 = Some(Region::new(bytes));
        }
        self.0.as_ref().map_or(std::ptr::null_mut(), Region::ptr)
    }
}

/// A pointer that the tasks of one job share. Each task writes only its own part; every use says which.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(*mut T);

// SAFETY: sending the address is harmless; uses are unsafe and state their own reason.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T> Shared<T> {
    pub(crate) fn new(ptr: *mut T) -> Self {
        Self(ptr)
    }

    /// The address, `offset` elements on.
    ///
    /// # Safety
    /// The offset stays inside the allocation.
    #[inline(always)]
    pub(crate) unsafe fn at(&self, offset: usize) -> *mut T {
        // SAFETY: the caller's promise.
        unsafe { self.0.add(offset) }
    }
}

/// Memory of the machine in bytes, as the kernel counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineMemory {
    /// All of it (or the control group's limit where that is lower).
    pub total: u64,
    /// What a new workload could take without swapping (same limit applied).
    pub available: u64,
}

/// Reads the machine's memory; absent where `/proc/meminfo` cannot be read.
pub fn machine_memory() -> Option<MachineMemory> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let mut memory = MachineMemory { total: field(&text, "MemTotal:")?, available: field(&text, "MemAvailable:")? };
    if let Some((limit, used)) = control_group() {
        memory.total = memory.total.min(limit);
        memory.available = memory.available.min(limit.saturating_sub(used));
    }
    Some(memory)
}

fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Limit and use of a version 2 control group mounted as this container's root.
fn control_group() -> Option<(u64, u64)> {
    let read = |name: &str| std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok();
    let limit = read("memory.max")?.trim().parse().ok()?;
    let used = read("memory.current")?.trim().parse().ok()?;
    Some((limit, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_start_zeroed_and_aligned() {
        let region = Region::new(1 << 20);
        assert_eq!(region.ptr() as usize % 4096, 0);
        // SAFETY: the region is a megabyte and nobody writes it.
        let bytes = unsafe { std::slice::from_raw_parts(region.ptr(), region.len()) };
        assert!(bytes.iter().all(|&byte| byte == 0));
        assert_eq!(region.ptr() as usize % HUGE, 0);
    }

    #[test]
    fn the_machine_has_memory() {
        let memory = machine_memory().expect("Linux has /proc/meminfo");
        assert!(memory.available > 0 && memory.available <= memory.total);
    }
}
