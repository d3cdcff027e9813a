//! Products of integer codes on the tile unit, with the bits of [`super::dots`]: sixteen rows times sixteen columns
//! times 64 bytes of k an instruction.
//!
//! The integer sum of a block of k is exact, by either kernel. With codes of four bits one tile product takes both
//! digits of a chunk of rows: a tile of weights has sixteen times each code, then each code itself. With codes of eight
//! bits each digit is a product. Codes are made signed bytes in the threads' own memory, some of k at a time, for all
//! rows of a task.
//!
//! While vectors scale and add the sums of some blocks, the unit makes the next ones.

#![allow(clippy::needless_range_loop, reason = "indices of register arrays are unrolled; iterators hide the shape")]

use super::digits::{DIGITS, Digits, RowBlock, SPAN};
use super::integers::{Arithmetic, Integers, Kept, LEAST_BLOCK};
use super::needs::Needs;
use super::product::{Product, Tile};
use crate::cpu::gemm::pack::PANEL;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::simd::ints::{IntKernel, Ints, second_bits};
use crate::cpu::simd::tile::{TILE_BYTES, TILE_ROWS, TileShape, load, multiply_bytes, release, store, zero};
use crate::cpu::simd::x86::ints::with_vnni;
use crate::ops::CodeBits;
use std::ops::Range;

/// Fewer rows than this are left to dot products.
const LEAST_ROWS: usize = 6;
/// Row tiles of a task, at most.
const ROW_TILES: usize = 16;
/// Panels of a task, at most.
const PANELS: usize = 16;
/// Spans whose codes are made bytes at a time, at most: they stay in the first-level cache while row tiles pass.
const DEPTH: usize = 6;
/// Bytes of a span of codes made bytes, at most: sixteen times codes of four bits stand beside them.
const SPAN_BYTES: usize = SPAN * PANEL * DIGITS;
/// Tiles of sums that are made at a time. (With more, the integer sums that are read and those that are written would
/// have the same low bits of their addresses, which makes loads wait for stores.)
const TILES: usize = 2;

/// A product of whole tiles.
pub(super) struct Job<'a> {
    product: Product<'a>,
    codes: &'a Integers,
    digits: Digits,
    row_tiles: usize,
    /// Panels of a task.
    group: usize,
    shape: TileShape,
}

/// One tile of sums.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([f32; TILE_ROWS * PANEL]);

/// A thread's memory: bytes of some spans of a panel and scales of their blocks, and integer sums of two groups.
#[repr(C, align(64))]
struct Room {
    bytes: [u8; DEPTH * SPAN_BYTES],
    scales: [[f32; PANEL]; DEPTH * SPAN / LEAST_BLOCK],
    adds: [[f32; PANEL]; DEPTH * SPAN / LEAST_BLOCK],
    made: [[[u8; TILE_BYTES]; TILES]; 2],
}

impl<'a> Job<'a> {
    /// Absent where there are few rows, or the matrix is not of integers that are multiplied by rounded rows.
    pub(super) fn new(product: Product<'a>, threads: usize) -> Option<Self> {
        let codes = product.w.integers().filter(|_| product.rows >= LEAST_ROWS)?;
        let digits = Digits::new(codes, product.w.k, TILE_ROWS)?;
        let row_tiles = product.rows.div_ceil(TILE_ROWS);
        let shares = (threads * 4).div_ceil(row_tiles.div_ceil(ROW_TILES));
        let group = product.w.panels().div_ceil(shares).clamp(1, PANELS);
        let line = if codes.kept == Kept::Four { DIGITS * digits.chunk } else { digits.chunk };
        Some(Self { product, codes, digits, row_tiles, group, shape: TileShape::of_bytes(line) })
    }

    pub(super) fn needs(&self) -> Needs {
        let Self { row_tiles, group, digits, product: Product { rows, w, .. }, .. } = *self;
        Needs {
            packed: row_tiles * digits.bytes(),
            sums: size_of::<Room>() + row_tiles.min(ROW_TILES) * group * size_of::<Sums>(),
            pack_tasks: row_tiles,
            pack_work: rows * w.k,
            tasks: row_tiles.div_ceil(ROW_TILES) * w.panels().div_ceil(group),
            work: rows * w.k * w.n / 64,
        }
    }

    /// Rounds the rows of a tile.
    ///
    /// # Safety
    /// As [`super::job::Job::pack`].
    pub(super) unsafe fn pack(&self, row_tile: usize, packed: Shared<u8>) {
        // SAFETY: the caller's promise.
        unsafe { self.digits.pack(Isa::Amx, &self.product, row_tile, packed) };
    }

    /// Computes some row tiles times some panels.
    ///
    /// # Safety
    /// As [`super::job::Job::run`], and the tile unit is available to this process.
    pub(super) unsafe fn run(&self, task: usize, packed: Shared<u8>, scratch: *mut u8) {
        let groups = self.product.w.panels().div_ceil(self.group);
        let (first_tile, first_panel) = (task / groups * ROW_TILES, task % groups * self.group);
        let strip = Strip {
            job: self,
            row_tiles: first_tile..self.row_tiles.min(first_tile + ROW_TILES),
            panels: first_panel..self.product.w.panels().min(first_panel + self.group),
            packed,
            room: scratch.cast(),
            // SAFETY: the thread's memory is as large as was asked for, and begins on a line of the caches.
            sums: unsafe { scratch.add(size_of::<Room>()).cast() },
        };
        let rows = first_tile * TILE_ROWS..self.product.rows.min(strip.row_tiles.end * TILE_ROWS);
        let panels = strip.panels.clone();
        // SAFETY: the tile unit is there (the caller's promise), and whatever has it has VNNI; the strip wrote what is
        // activated.
        unsafe {
            self.shape.load();
            with_vnni(strip);
            release();
            self.product.activate(Isa::Amx, rows, panels);
        }
    }
}

/// A task.
struct Strip<'a> {
    job: &'a Job<'a>,
    row_tiles: Range<usize>,
    panels: Range<usize>,
    packed: Shared<u8>,
    room: *mut Room,
    /// `[row tile][panel]`.
    sums: *mut Sums,
}

impl IntKernel for Strip<'_> {
    #[inline(always)]
    fn run<S: Ints>(self) {
        let Digits { chunk, span_blocks, .. } = self.job.digits;
        match (self.job.codes.kept.multiplied(), chunk, span_blocks) {
            (CodeBits::Four, 32, 1) => self.all::<S, 4, 32, 1>(),
            (CodeBits::Four, 32, 2) => self.all::<S, 4, 32, 2>(),
            (CodeBits::Four, 32, _) => self.all::<S, 4, 32, 4>(),
            (CodeBits::Four, _, _) => self.all::<S, 4, 16, 8>(),
            (CodeBits::Eight, 64, 1) => self.all::<S, 8, 64, 1>(),
            (CodeBits::Eight, 64, _) => self.all::<S, 8, 64, 2>(),
            (CodeBits::Eight, 32, _) => self.all::<S, 8, 32, 4>(),
            (CodeBits::Eight, _, _) => self.all::<S, 8, 16, 8>(),
        }
    }
}

/// Blocks whose sums are made at a time: a tile each with codes of four bits, and one for each digit with eight.
const fn group(bits: usize, span_blocks: usize) -> usize {
    if bits == 4 && span_blocks > 1 { TILES } else { 1 }
}

impl Strip<'_> {
    #[inline(always)]
    fn all<S: Ints, const BITS: usize, const CHUNK: usize, const BLOCKS: usize>(&self) {
        let Arithmetic::Rounded { adds, .. } = &self.job.codes.arithmetic else { unreachable!("checked in new") };
        let (digits, panels) = (self.job.digits, self.panels.len());
        // Parts of equal size.
        let depth = digits.spans.div_ceil(digits.spans.div_ceil(DEPTH));
        for first in (0..digits.spans).step_by(depth) {
            let spans = first..digits.spans.min(first + depth);
            for panel in 0..panels {
                // SAFETY: the panel is the matrix's; each thread has its own room.
                unsafe { self.unpack::<S, BITS, CHUNK>(self.panels.start + panel, spans.clone()) };
                for tile in 0..self.row_tiles.len() {
                    // SAFETY: the row tile was packed, and there is a sum for every row tile and panel.
                    unsafe {
                        let x = digits.row_block(self.packed, self.row_tiles.start + tile);
                        let sums = self.sums.add(tile * panels + panel);
                        match adds.is_empty() {
                            true => self.tile::<S, BITS, CHUNK, BLOCKS, false>(&x, spans.clone(), sums),
                            false => self.tile::<S, BITS, CHUNK, BLOCKS, true>(&x, spans.clone(), sums),
                        }
                    }
                }
            }
        }
        for tile in 0..self.row_tiles.len() {
            for panel in 0..panels {
                // SAFETY: all sums have been written.
                self.write::<S>(self.row_tiles.start + tile, panel, unsafe { &*self.sums.add(tile * panels + panel) });
            }
        }
    }

    /// Makes the codes of some spans signed bytes, and their scales f32: zero behind the matrix's end, where a row's
    /// digits are zero too.
    ///
    /// # Safety
    /// The spans are the panel's, and no more than [`DEPTH`].
    #[inline(always)]
    unsafe fn unpack<S: Ints, const BITS: usize, const CHUNK: usize>(&self, panel: usize, spans: Range<usize>) {
        let Job { codes, digits, product, .. } = self.job;
        let Arithmetic::Rounded { scales, adds, .. } = &codes.arithmetic else { unreachable!("checked in new") };
        let (first, bytes) = (spans.start * digits.span_blocks, chunk_bytes(BITS, CHUNK));
        let levels = if let Kept::Levels(levels) = codes.kept { Some(levels.map(|code| code ^ 0x80)) } else { None };
        let stored = if levels.is_some() { 4 } else { BITS };
        // SAFETY: a chunk has `CHUNK * stored / 8` bytes of codes times sixteen; the room has a place for each chunk
        // and block of the spans.
        unsafe {
            for block in first..spans.end * digits.span_blocks {
                for chunk in digits.chunks_of(block) {
                    let from = product.w.panel(panel).add(chunk * (CHUNK * stored / 8 * PANEL));
                    let at = (chunk - first * digits.block_chunks) * bytes;
                    let to = (&raw mut (*self.room).bytes).cast::<u8>().add(at);
                    match &levels {
                        Some(levels) => look_up::<S, CHUNK>(levels, from, to),
                        None => unpack::<BITS, CHUNK>(from.cast(), to.cast()),
                    }
                }
                let place = (block < digits.blocks).then(|| codes.place(panel, block * digits.block_chunks * CHUNK));
                let load = |from: &[u16]| place.map_or(S::splat(0.0), |at| S::load_f16(from.as_ptr().add(at)));
                load(scales).store((&raw mut (*self.room).scales[block - first]).cast());
                if !adds.is_empty() {
                    load(adds).store((&raw mut (*self.room).adds[block - first]).cast());
                }
            }
        }
    }

    /// Adds the products of some spans to a tile of sums, which begins at zero with the first.
    ///
    /// # Safety
    /// The operands exist as described, and the tile unit is configured.
    #[inline(always)]
    unsafe fn tile<S: Ints, const BITS: usize, const CHUNK: usize, const BLOCKS: usize, const ADDS: bool>(
        &self,
        x: &RowBlock,
        spans: Range<usize>,
        sums: *mut Sums,
    ) {
        let (group, groups) = (group(BITS, BLOCKS), spans.len() * BLOCKS / group(BITS, BLOCKS));
        // SAFETY: the caller's promise; what is made of a block is read after the unit has written it.
        unsafe {
            if spans.start == 0 {
                (*sums).0.fill(0.0);
            }
            let digits = x.digits.add(spans.start * SPAN * TILE_ROWS * DIGITS);
            let made = |index: usize| (&raw mut (*self.room).made[index % 2]).cast::<[u8; TILE_BYTES]>();
            let multiply = |index: usize| {
                let chunk = index * group * (SPAN / BLOCKS / CHUNK);
                let x = digits.add(chunk * TILE_ROWS * DIGITS * CHUNK);
                let w = (&raw const (*self.room).bytes).cast::<u8>().add(chunk * chunk_bytes(BITS, CHUNK));
                multiply::<BITS, CHUNK, BLOCKS>(x, w, made(index));
            };
            multiply(0);
            for span in spans.clone() {
                let mut rows = [S::splat(0.0); TILE_ROWS];
                for of_span in 0..BLOCKS / group {
                    let index = (span - spans.start) * (BLOCKS / group) + of_span;
                    if index + 1 < groups {
                        multiply(index + 1);
                    }
                    for of_group in 0..group {
                        let slot = index * group + of_group;
                        let sums = x.sums.add((spans.start * BLOCKS + slot) * TILE_ROWS);
                        let made = made(index).add(of_group).cast();
                        self.block::<S, BITS, ADDS>(made, sums, slot, &mut rows);
                    }
                }
                let scales = x.scales.add(span * TILE_ROWS);
                for row in 0..TILE_ROWS {
                    let sum = (*sums).0.as_mut_ptr().add(row * PANEL);
                    rows[row].fma(S::splat(*scales.add(row)), S::load(sum)).store(sum);
                }
            }
        }
    }

    /// Adds the integer sums of a block, times the scales of its slot, to those of a span.
    ///
    /// # Safety
    /// The sums have been made, and the slot's scales too.
    #[inline(always)]
    unsafe fn block<S: Ints, const BITS: usize, const ADDS: bool>(
        &self,
        made: *const u8,
        sums: *const f32,
        slot: usize,
        rows: &mut [S; TILE_ROWS],
    ) {
        // SAFETY: the caller's promise.
        unsafe {
            let scale = S::load((&raw const (*self.room).scales).cast::<f32>().add(slot * PANEL));
            let add = S::load((&raw const (*self.room).adds).cast::<f32>().add(slot * PANEL));
            for row in 0..TILE_ROWS {
                let integers = S::load_integers(made.add(row * PANEL * 4));
                let whole = match BITS {
                    4 => integers,
                    _ => S::plus(
                        S::shift_left::<{ second_bits(8) }>(integers),
                        S::load_integers(made.add(TILE_BYTES + row * PANEL * 4)),
                    ),
                };
                rows[row] = S::number(whole).fma(scale, rows[row]);
                if ADDS {
                    rows[row] = add.fma(S::splat(*sums.add(row)), rows[row]);
                }
            }
        }
    }

    #[inline(always)]
    fn write<S: Ints>(&self, row_tile: usize, panel: usize, sums: &Sums) {
        let (row, col) = (row_tile * TILE_ROWS, (self.panels.start + panel) * PANEL);
        let rows = TILE_ROWS.min(self.job.product.rows - row);
        let tile = Tile { sums: &sums.0, stride: PANEL, row, col, rows, cols: PANEL };
        // SAFETY: each strip writes its own rows and columns.
        unsafe { self.job.product.write::<S>(&tile) };
    }
}

/// Bytes of a chunk of sixteen columns, made bytes.
const fn chunk_bytes(bits: usize, chunk: usize) -> usize {
    chunk * PANEL * if bits == 4 { DIGITS } else { 1 }
}

/// Multiplies the blocks of a group.
///
/// # Safety
/// Digits and bytes of the group are there, and the tile unit is configured.
#[inline(always)]
unsafe fn multiply<const BITS: usize, const CHUNK: usize, const BLOCKS: usize>(
    x: *const u8,
    w: *const u8,
    made: *mut [u8; TILE_BYTES],
) {
    let (line, chunks) = (DIGITS * CHUNK, SPAN / BLOCKS / CHUNK);
    // SAFETY: the caller's promise; a chunk's digits are sixteen lines.
    unsafe {
        let x = |chunk: usize| x.add(chunk * TILE_ROWS * line);
        let w = |chunk: usize| w.add(chunk * chunk_bytes(BITS, CHUNK));
        zero!("0");
        if BITS == 8 || group(BITS, BLOCKS) == 2 {
            zero!("1");
        }
        for chunk in 0..chunks {
            load!("4", x(chunk), line);
            load!("6", w(chunk));
            multiply_bytes!("0", "4", "6");
            if BITS == 8 {
                load!("5", x(chunk).add(CHUNK), line);
                multiply_bytes!("1", "5", "6");
            } else if group(BITS, BLOCKS) == 2 {
                load!("5", x(chunks + chunk), line);
                load!("7", w(chunks + chunk));
                multiply_bytes!("1", "5", "7");
            }
        }
        store!("0", made);
        if BITS == 8 || group(BITS, BLOCKS) == 2 {
            store!("1", made.add(1));
        }
    }
}

/// Makes the codes of a chunk signed bytes, which are these, as a tile of weights has them.
///
/// # Safety
/// As [`unpack`].
#[inline(always)]
unsafe fn look_up<S: Ints, const CHUNK: usize>(levels: &[u8; 16], from: *const u8, to: *mut u8) {
    for line in 0..CHUNK / 8 {
        for lanes in (0..PANEL).step_by(S::N) {
            // SAFETY: the caller's promise.
            unsafe {
                let [low, high] = S::load_levels(from.add((line * PANEL + lanes) * 4), levels);
                S::store_codes(low, to.add((line * 2 * PANEL + lanes) * 4));
                S::store_codes(high, to.add(((line * 2 + 1) * PANEL + lanes) * 4));
            }
        }
    }
}

/// Makes the codes of a chunk signed bytes, as a tile of weights has them: of four bits sixteen times each, then each.
///
/// # Safety
/// A chunk's codes are readable, and a tile is writable.
#[inline(always)]
unsafe fn unpack<const BITS: usize, const CHUNK: usize>(from: *const [u32; PANEL], to: *mut [u32; PANEL]) {
    // SAFETY: the caller's promise.
    unsafe {
        for line in 0..CHUNK * BITS / 32 {
            let codes = from.add(line).read_unaligned();
            if BITS == 8 {
                *to.add(line) = codes.map(|four| four ^ 0x8080_8080);
                continue;
            }
            // The middle taken from a code of four bits flips its sign's bit.
            let (low, high) = (codes.map(|four| four << 4), codes);
            for (half, codes) in [low, high].into_iter().enumerate() {
                let times_sixteen = codes.map(|four| four & 0xf0f0_f0f0 ^ 0x8080_8080);
                *to.add(line * 2 + half) = times_sixteen;
                // Bytes from 0x78 to 0x87, none of which carries into the next.
                let signed = codes.map(|four| ((four >> 4 & 0x0f0f_0f0f) + 0x7878_7878) ^ 0x8080_8080);
                *to.add(CHUNK / 4 + line * 2 + half) = signed;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::simd::ints::vectorize_ints;

    struct LookUp<'a> {
        levels: &'a [u8; 16],
        from: &'a [u8; 16 * PANEL],
        to: &'a mut [u8; 32 * PANEL],
    }

    impl IntKernel for LookUp<'_> {
        fn run<S: Ints>(self) {
            // SAFETY: these are 32 k of a panel, in four bits and in eight.
            unsafe { look_up::<S, 32>(self.levels, self.from.as_ptr(), self.to.as_mut_ptr()) };
        }
    }

    #[test]
    fn levels_are_looked_up_in_the_order_of_codes_of_eight_bits() {
        let levels: [u8; 16] = std::array::from_fn(|number| (number * number + 3) as u8);
        let from = std::array::from_fn(|at| (at * 37 % 251) as u8);
        for isa in Isa::available() {
            let mut to = [0; 32 * PANEL];
            vectorize_ints(isa, LookUp { levels: &levels, from: &from, to: &mut to });
            for (k, column) in (0..32).flat_map(|k| (0..PANEL).map(move |column| (k, column))) {
                let half = from[(k / 8 * PANEL + column) * 4 + k % 4] >> (k % 8 / 4 * 4) & 15;
                let got = to[(k / 4 * PANEL + column) * 4 + k % 4];
                assert_eq!(got, levels[usize::from(half)], "{isa:?}: {k} of column {column}");
            }
        }
    }
}
