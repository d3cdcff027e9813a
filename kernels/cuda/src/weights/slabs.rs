//! Memory of many small weights. A driver takes some tenths of a millisecond to give memory and to take it back, and
//! gives whole pages of 2 MiB: a mixture of 128 experts has tens of thousands of matrices of 1 to 4 MiB. So they lie in
//! slabs of several pages.

use std::sync::Arc;

use crate::runtime::context::Memory;
use crate::runtime::device::Device;

/// What a driver gives at least, bytes.
const PAGE: usize = 2 << 20;
/// What a slab has at most.
const LARGEST_SLAB: usize = 64 << 20;
/// Slabs are this share of all that was given before, so that little of the last one stays empty.
const SHARE: usize = 16;
/// More than this is memory of its own: less of it than of a slab's end is lost.
const LARGEST_PART: usize = 8 << 20;
/// What parts are aligned to: as memory of their own.
const ALIGNMENT: usize = 256;

/// The slab that is being filled.
#[derive(Debug, Default)]
pub(super) struct Slabs {
    last: Option<Arc<Memory>>,
    /// Bytes of it that were given.
    given: usize,
    /// Bytes of all of them.
    total: usize,
}

impl Slabs {
    /// Memory for `bytes` bytes, aligned to 256, with nothing in it yet.
    pub(super) fn allocate(&mut self, device: &mut Device, bytes: usize, what: &str) -> Option<Memory> {
        if bytes > LARGEST_PART {
            return device.allocate(bytes, what);
        }
        if self.last.as_ref().is_none_or(|slab| self.given + bytes > slab.bytes) {
            let size = slab_bytes(self.total, bytes);
            self.last = device.allocate(size, what).map(Arc::new);
            (self.given, self.total) = (0, self.total + size);
        }
        let start = self.given;
        self.given = (start + bytes).next_multiple_of(ALIGNMENT);
        Some(Memory::part(self.last.as_ref()?, start, bytes))
    }
}

/// Bytes of the next slab, for a part and what comes.
fn slab_bytes(total: usize, part: usize) -> usize {
    (total / SHARE).min(LARGEST_SLAB).max(part).max(PAGE).next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slabs_grow_with_what_was_given() {
        let sizes = [(0, 1), (0, 5 << 20), (64 << 20, 1), (1 << 30, 1), (30 << 30, 1)];
        let sizes = sizes.map(|(total, part)| slab_bytes(total, part) >> 20);
        assert_eq!(sizes, [2, 6, 4, 64, 64]);
    }
}
