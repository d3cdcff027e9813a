//! The tile unit (AMX): its configuration and instructions.
//!
//! Rust has no stable intrinsics for tiles, so the instructions are spelled out. Tile registers hold nothing between
//! calls of a kernel. Using any of this is safe where the unit was detected (and so asked for), and the configuration
//! loaded on this thread.

use std::arch::asm;

/// Rows of a tile.
pub(crate) const TILE_ROWS: usize = 16;
/// Bytes of a tile.
pub(crate) const TILE_BYTES: usize = 1024;

/// The tile unit's configuration: 64 bytes as `ldtilecfg` reads them.
#[repr(C, align(64))]
pub(crate) struct TileShape {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row of each tile.
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

impl TileShape {
    /// Sums in tiles 0 to 3 and activations in 4 and 5 have `rows` rows, weights in 6 and 7 sixteen k pairs.
    pub(crate) fn new(rows: usize) -> Self {
        let rows = rows as u8;
        let mut shape = Self { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
        shape.row_bytes[..8].fill(64);
        shape.rows[..8].copy_from_slice(&[rows, rows, rows, rows, rows, rows, 16, 16]);
        shape
    }

    /// Of bytes: sums in tiles 0 to 3, sixteen rows of `k` activations in 4 and 5, `k` weights of sixteen columns in 6
    /// and 7.
    pub(crate) fn of_bytes(k: usize) -> Self {
        let mut shape = Self::new(TILE_ROWS);
        shape.row_bytes[4..6].fill(k as u16);
        shape.rows[6..8].fill((k / 4) as u8);
        shape
    }

    /// # Safety
    /// The tile unit is available to this process.
    #[inline(always)]
    pub(crate) unsafe fn load(&self) {
        // SAFETY: 64 valid bytes; the caller vouches for the instruction.
        unsafe { asm!("ldtilecfg [{}]", in(reg) self, options(nostack, readonly, preserves_flags)) };
    }
}

/// # Safety
/// The tile unit is available to this process.
#[inline(always)]
pub(crate) unsafe fn release() {
    // SAFETY: drops tile state of this thread only, and nothing lives there between calls.
    unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
}

/// `tile = memory`, lines 64 bytes apart or as many as told.
macro_rules! load {
    ($tile:literal, $from:expr) => {
        $crate::cpu::simd::tile::load!($tile, $from, 64_usize)
    };
    ($tile:literal, $from:expr, $stride:expr) => {
        std::arch::asm!(concat!("tileloadd tmm", $tile, ", [{0} + {1}]"), in(reg) $from, in(reg) $stride,
            options(nostack, readonly, preserves_flags))
    };
}

/// `memory = tile`, lines 64 bytes apart or as many as told.
macro_rules! store {
    ($tile:literal, $to:expr) => {
        $crate::cpu::simd::tile::store!($tile, $to, 64_usize)
    };
    ($tile:literal, $to:expr, $stride:expr) => {
        std::arch::asm!(concat!("tilestored [{0} + {1}], tmm", $tile), in(reg) $to, in(reg) $stride,
            options(nostack, preserves_flags))
    };
}

/// `sums += activations * weights`.
macro_rules! multiply {
    ($sums:literal, $x:literal, $w:literal) => {
        std::arch::asm!(
            concat!("tdpbf16ps tmm", $sums, ", tmm", $x, ", tmm", $w),
            options(nostack, nomem, preserves_flags)
        )
    };
}

/// `sums += activations * weights` of bytes with signs.
macro_rules! multiply_bytes {
    ($sums:literal, $x:literal, $w:literal) => {
        std::arch::asm!(
            concat!("tdpbssd tmm", $sums, ", tmm", $x, ", tmm", $w),
            options(nostack, nomem, preserves_flags)
        )
    };
}

/// `tile = 0`.
macro_rules! zero {
    ($tile:literal) => {
        std::arch::asm!(concat!("tilezero tmm", $tile), options(nostack, nomem, preserves_flags))
    };
}

pub(crate) use {load, multiply, multiply_bytes, store, zero};
