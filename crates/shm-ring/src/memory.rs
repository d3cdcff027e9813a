//! Where a ring lives: its control words and its data bytes.

use std::mem::MaybeUninit;

use crate::control::Control;

/// Smallest capacity of a ring in bytes.
pub const MIN_CAPACITY: usize = 16;
/// Largest capacity of a ring in bytes: a record's length is a `u32`.
pub const MAX_CAPACITY: usize = 1 << 31;

/// Memory of one ring.
///
/// # Safety
///
/// `capacity` is a constant power of two within [`MIN_CAPACITY`] and [`MAX_CAPACITY`]; `control` always gives the same
/// words; `write` and `read` reach exactly the bytes asked for; and at most one [`crate::Producer`] and one
/// [`crate::Consumer`] ever work on the same bytes.
pub unsafe trait Memory {
    /// The shared words.
    fn control(&self) -> &Control;

    /// Data bytes.
    fn capacity(&self) -> usize;

    /// Copies `bytes` to `offset`.
    ///
    /// # Safety
    ///
    /// `offset + bytes.len() <= capacity`, and the caller is the producer and has not published these bytes.
    unsafe fn write(&self, offset: usize, bytes: &[u8]);

    /// Copies from `offset` on and fills `out`.
    ///
    /// # Safety
    ///
    /// `offset + out.len() <= capacity`, and the caller is the consumer and these bytes are published and not released.
    unsafe fn read(&self, offset: usize, out: &mut [MaybeUninit<u8>]);
}
