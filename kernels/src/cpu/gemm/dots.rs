//! Products of integer codes where inputs may be rounded: rows are of integers ([`super::digits`]), and several
//! products a lane are summed by one instruction ([`Ints::multiply`]).
//!
//! Sums of integers are exact, so neither how many rows share a tile nor the instruction set changes a bit. A block of
//! k gives an integer sum, which is multiplied by the columns' scales and added in f32 to that of a span, which is
//! multiplied by the rows' scales. What a weight has beside its code times its scale is multiplied by the row's own
//! sum. (Rounding inputs for dot products of bytes is llama.cpp's idea.)

#![allow(clippy::needless_range_loop, reason = "indices of register arrays are unrolled; iterators hide the shape")]

use super::digits::{DIGITS, Digits, RowBlock};
use super::integers::{Arithmetic, Integers, Kept};
use super::needs::Needs;
use super::product::{Product, Tile};
use crate::cpu::gemm::pack::PANEL;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::simd::ints::{IntKernel, Ints, vectorize_ints};
use std::ops::Range;

/// Rows of a tile, at most.
const MOST_ROWS: usize = 8;
/// Rows from which on tiles of AVX-512 have all of these, by one panel. Fewer rows have tiles of four by two panels,
/// which are read at once: memory is what bounds them.
const MANY_ROWS: usize = 32;
/// Row blocks of a task, at most.
const TASK_BLOCKS: usize = 16;
/// Panels of a task.
const TASK_PANELS: usize = 4;

/// A product of integers.
pub(super) struct Job<'a> {
    isa: Isa,
    product: Product<'a>,
    codes: &'a Integers,
    digits: Digits,
    row_blocks: usize,
}

impl<'a> Job<'a> {
    /// Absent where the matrix is not of integers that may be multiplied by rounded rows.
    pub(super) fn new(isa: Isa, product: Product<'a>) -> Option<Self> {
        let codes = product.w.integers()?;
        let most = if isa == Isa::Avx2 || product.rows >= MANY_ROWS { MOST_ROWS } else { MOST_ROWS / 2 };
        let rows = product.rows.clamp(1, most).next_power_of_two();
        let digits = Digits::new(codes, product.w.k, rows)?;
        Some(Self { isa, product, codes, digits, row_blocks: product.rows.div_ceil(rows) })
    }

    fn groups(&self) -> usize {
        self.product.w.panels().div_ceil(TASK_PANELS)
    }

    pub(super) fn needs(&self) -> Needs {
        let Product { rows, w, .. } = self.product;
        Needs {
            packed: self.row_blocks * self.digits.bytes(),
            sums: 0,
            pack_tasks: self.row_blocks,
            pack_work: rows * w.k / 4,
            tasks: self.row_blocks.div_ceil(TASK_BLOCKS) * self.groups(),
            work: rows * DIGITS * w.k * w.n / 16,
        }
    }

    /// Rounds a row block.
    ///
    /// # Safety
    /// As [`super::job::Job::pack`].
    pub(super) unsafe fn pack(&self, row_block: usize, packed: Shared<u8>) {
        // SAFETY: the caller's promise.
        unsafe { self.digits.pack(self.isa, &self.product, row_block, packed) };
    }

    /// Computes some row blocks times some panels.
    ///
    /// # Safety
    /// As [`super::job::Job::run`].
    pub(super) unsafe fn run(&self, task: usize, packed: Shared<u8>) {
        let (groups, w) = (self.groups(), self.product.w);
        let (first_block, first_panel) = (task / groups * TASK_BLOCKS, task % groups * TASK_PANELS);
        let strip = Strip {
            job: self,
            blocks: first_block..self.row_blocks.min(first_block + TASK_BLOCKS),
            panels: first_panel..w.panels().min(first_panel + TASK_PANELS),
            packed,
        };
        let (block, panels) = (self.digits.rows, strip.panels.clone());
        let rows = strip.blocks.start * block..self.product.rows.min(strip.blocks.end * block);
        vectorize_ints(self.isa, strip);
        // SAFETY: the strip wrote these columns, and no other task does.
        unsafe { self.product.activate(self.isa, rows, panels) };
    }
}

/// A task.
struct Strip<'a> {
    job: &'a Job<'a>,
    blocks: Range<usize>,
    panels: Range<usize>,
    packed: Shared<u8>,
}

impl IntKernel for Strip<'_> {
    #[inline(always)]
    fn run<S: Ints>(self) {
        match (self.job.codes.kept, self.job.digits.chunk) {
            (Kept::Four, 32) => self.all::<S, 4, 4, 32>(),
            (Kept::Four, _) => self.all::<S, 4, 4, 16>(),
            (Kept::Eight, 64) => self.all::<S, 8, 8, 64>(),
            (Kept::Eight, 32) => self.all::<S, 8, 8, 32>(),
            (Kept::Eight, _) => self.all::<S, 8, 8, 16>(),
            (Kept::Levels(_), 64) => self.all::<S, 4, 8, 64>(),
            (Kept::Levels(_), 32) => self.all::<S, 4, 8, 32>(),
            (Kept::Levels(_), _) => self.all::<S, 4, 8, 16>(),
        }
    }
}

impl Strip<'_> {
    #[inline(always)]
    fn all<S: Ints, const STORED: usize, const BITS: usize, const CHUNK: usize>(&self) {
        for row_block in self.blocks.clone() {
            let mut panel = self.panels.start;
            while panel < self.panels.end {
                let left = self.panels.end - panel;
                panel += match (self.job.digits.rows, left, S::N) {
                    (1, 4.., 16) => self.tile::<S, STORED, BITS, CHUNK, 1, 4>(row_block, panel),
                    (1, 2.., 16) => self.tile::<S, STORED, BITS, CHUNK, 1, 2>(row_block, panel),
                    (1, _, 16) => self.tile::<S, STORED, BITS, CHUNK, 1, 1>(row_block, panel),
                    (2, 2.., 16) => self.tile::<S, STORED, BITS, CHUNK, 2, 2>(row_block, panel),
                    (2, _, 16) => self.tile::<S, STORED, BITS, CHUNK, 2, 1>(row_block, panel),
                    (4, 2.., 16) => self.tile::<S, STORED, BITS, CHUNK, 4, 2>(row_block, panel),
                    (4, _, 16) => self.tile::<S, STORED, BITS, CHUNK, 4, 1>(row_block, panel),
                    (8, _, 16) => self.tile::<S, STORED, BITS, CHUNK, 8, 1>(row_block, panel),
                    (1, 2.., _) => self.tile::<S, STORED, BITS, CHUNK, 1, 4>(row_block, panel),
                    (1, _, _) => self.tile::<S, STORED, BITS, CHUNK, 1, 2>(row_block, panel),
                    (2, _, _) => self.tile::<S, STORED, BITS, CHUNK, 2, 2>(row_block, panel),
                    (4, _, _) => self.tile::<S, STORED, BITS, CHUNK, 4, 2>(row_block, panel),
                    (_, _, _) => self.tile::<S, STORED, BITS, CHUNK, 8, 2>(row_block, panel),
                };
            }
        }
    }

    /// `R` rows times `C` vectors; the number of panels that they are.
    #[inline(always)]
    fn tile<S: Ints, const STORED: usize, const BITS: usize, const CHUNK: usize, const R: usize, const C: usize>(
        &self,
        row_block: usize,
        panel: usize,
    ) -> usize {
        let Job { codes, digits, product, .. } = self.job;
        let Arithmetic::Rounded { scales, adds, .. } = &codes.arithmetic else { unreachable!("checked in new") };
        let (per_panel, panel_bytes) = (PANEL / S::N, product.w.panel_bytes());
        let mut sums = [[S::splat(0.0); C]; R];
        // SAFETY: the row block was packed with these parts; panels exist, each with whole blocks of codes, and have
        // scales (and what is added) for every group.
        unsafe {
            let x = digits.row_block(self.packed, row_block);
            let panel_codes = product.w.panel(panel);
            let of_vector = |c: usize| panel_codes.add(c / per_panel * panel_bytes + c % per_panel * S::N * 4);
            for span in 0..digits.spans {
                let mut part = [[S::splat(0.0); C]; R];
                for block in digits.blocks_of(span) {
                    let dots = self.block::<S, STORED, BITS, CHUNK, R, C>(&x, block, of_vector);
                    let k = digits.chunks_of(block).start * CHUNK;
                    for c in 0..C {
                        let place = codes.place(panel + c / per_panel, k) + c % per_panel * S::N;
                        let scale = S::load_f16(scales.as_ptr().add(place));
                        for r in 0..R {
                            part[r][c] = S::number(dots[r][c]).fma(scale, part[r][c]);
                        }
                        if !adds.is_empty() {
                            let add = S::load_f16(adds.as_ptr().add(place));
                            for r in 0..R {
                                part[r][c] = add.fma(S::splat(*x.sums.add(block * R + r)), part[r][c]);
                            }
                        }
                    }
                }
                for r in 0..R {
                    let scale = S::splat(*x.scales.add(span * R + r));
                    for c in 0..C {
                        sums[r][c] = part[r][c].fma(scale, sums[r][c]);
                    }
                }
            }
        }
        self.write::<S, R, C>(row_block, panel, &sums);
        C / per_panel
    }

    /// The integer sums of a block; `of_vector`: where the codes of each vector begin.
    ///
    /// # Safety
    /// As in [`Self::tile`].
    #[inline(always)]
    unsafe fn block<
        S: Ints,
        const STORED: usize,
        const BITS: usize,
        const CHUNK: usize,
        const R: usize,
        const C: usize,
    >(
        &self,
        x: &RowBlock,
        block: usize,
        of_vector: impl Fn(usize) -> *const u8,
    ) -> [[S::Integers; C]; R] {
        // SAFETY: the caller's promise.
        unsafe {
            if R <= 2 {
                return self.dots::<S, STORED, BITS, CHUNK, R, C>(x, block, of_vector);
            }
            // The sums of many rows leave no registers for inputs that vectors would share.
            let mut sums = [[S::integer(0); C]; R];
            for c in 0..C {
                let one = self.dots::<S, STORED, BITS, CHUNK, R, 1>(x, block, |_| of_vector(c));
                for r in 0..R {
                    sums[r][c] = one[r][0];
                }
            }
            sums
        }
    }

    /// The same of vectors that go through the block together.
    ///
    /// # Safety
    /// As in [`Self::tile`].
    #[inline(always)]
    unsafe fn dots<
        S: Ints,
        const STORED: usize,
        const BITS: usize,
        const CHUNK: usize,
        const R: usize,
        const C: usize,
    >(
        &self,
        x: &RowBlock,
        block: usize,
        of_vector: impl Fn(usize) -> *const u8,
    ) -> [[S::Integers; C]; R] {
        let levels = if let Kept::Levels(levels) = self.job.codes.kept { levels } else { &[0; 16] };
        // SAFETY: the caller's promise.
        unsafe {
            let mut dots = [[S::sums(0); C]; R];
            for r in 0..R {
                dots[r] = [S::sums(*x.begins.add(block * R + r)); C];
            }
            for chunk in self.job.digits.chunks_of(block) {
                let numbers = x.digits.add(chunk * R * DIGITS * CHUNK);
                // Four bits hold eight k in a vector, eight bits four.
                let step = 32 / STORED;
                for k in (0..CHUNK).step_by(step) {
                    for c in 0..C {
                        let from = of_vector(c).add((chunk * CHUNK + k) / step * PANEL * 4);
                        if STORED == BITS {
                            let codes = S::load_codes::<BITS>(from);
                            for r in 0..R {
                                let numbers = numbers.add(r * DIGITS * CHUNK);
                                dots[r][c] = S::multiply::<BITS, CHUNK>(dots[r][c], codes, numbers, k);
                            }
                        } else {
                            let [low, high] = S::load_levels(from, levels);
                            for r in 0..R {
                                let numbers = numbers.add(r * DIGITS * CHUNK);
                                let low = S::multiply::<BITS, CHUNK>(dots[r][c], low, numbers, k);
                                dots[r][c] = S::multiply::<BITS, CHUNK>(low, high, numbers, k + 4);
                            }
                        }
                    }
                }
            }
            // Loops, since closures of an array's `map` are compiled for themselves, without the instruction set.
            let mut whole = [[S::integer(0); C]; R];
            for r in 0..R {
                for c in 0..C {
                    whole[r][c] = S::whole::<BITS>(dots[r][c]);
                }
            }
            whole
        }
    }

    /// Hands finished sums over.
    #[inline(always)]
    fn write<S: Ints, const R: usize, const C: usize>(&self, row_block: usize, panel: usize, sums: &[[S; C]; R]) {
        let mut flat = [0.0_f32; 128];
        let width = C * S::N;
        for r in 0..R {
            for c in 0..C {
                // SAFETY: a tile is one row of four panels, four of two, or eight of one at most.
                unsafe { sums[r][c].store(flat.as_mut_ptr().add(r * width + c * S::N)) };
            }
        }
        let row = row_block * R;
        let rows = R.min(self.job.product.rows - row);
        let tile = Tile { sums: &flat, stride: width, row, col: panel * PANEL, rows, cols: width };
        // SAFETY: each tile writes its own rows and columns.
        unsafe { self.job.product.write::<S>(&tile) };
    }
}
