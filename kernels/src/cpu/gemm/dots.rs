//! Products of integer codes where inputs may be rounded: each number of a row becomes two digits, integers of 8 bits,
//! with a scale for every 16 or 32 numbers, and four products a lane are summed by one instruction.
//!
//! Two digits keep 15 bits beside a block's largest number. One digit, 7 bits, moved SmolLM2's log-probabilities by 0.3
//! and its perplexity by 1 %, which the bf16 that inputs may be rounded to does not.
//!
//! Sums of integers are exact, so how many rows share a tile changes no bit. A block of k gives an integer sum, which
//! is multiplied by the scales of row and column and added to the sum in f32; what a weight has beside its code times
//! its scale is multiplied by the row's own sum. (Rounding inputs for dot products of bytes is llama.cpp's idea.)

#![allow(clippy::needless_range_loop, reason = "indices of register arrays are unrolled; iterators hide the shape")]

use super::integers::{Arithmetic, Integers};
use super::needs::Needs;
use super::product::{Product, Tile};
use crate::cpu::gemm::pack::PANEL;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::simd::ints::{IntKernel, Ints, vectorize_ints};
use crate::ops::CodeBits;
use std::ops::Range;

/// Integers that a number becomes: the first with the block's scale, the second with a 254th of it.
const DIGITS: usize = 2;
/// The second digit's unit: what is left of a number is half a scale at most, and becomes 127 at most.
const SECOND: f32 = 254.0;
/// Digits of rows in a tile, at most.
const MOST_ROWS: usize = 4;
/// Row blocks of a task, at most.
const TASK_BLOCKS: usize = 16;
/// Panels of a task.
const TASK_PANELS: usize = 4;
/// The largest integer that an input becomes.
const MOST: f32 = 127.0;

/// A product of integers.
pub(super) struct Job<'a> {
    isa: Isa,
    product: Product<'a>,
    codes: &'a Integers,
    /// k of an integer sum, and how many there are.
    block: usize,
    blocks: usize,
    /// Rows of a tile, each of them [`DIGITS`] rows of integers, and how many tiles there are.
    rows: usize,
    row_blocks: usize,
}

/// A packed row block: `[k / 4][rows][digits][4]` integers, then for each block of k and digit of a row what sums begin
/// with, the scale, and the scale times the sum of the integers.
#[derive(Clone, Copy)]
struct Layout {
    integers: usize,
    /// Entries of each of the three.
    entries: usize,
}

impl Layout {
    fn bytes(self) -> usize {
        (self.integers + self.entries * 12).next_multiple_of(64)
    }
}

impl<'a> Job<'a> {
    /// Absent where the matrix is not of integers that may be multiplied by rounded rows.
    pub(super) fn new(isa: Isa, product: Product<'a>) -> Option<Self> {
        let codes = product.w.integers()?;
        let Arithmetic::Rounded { block, .. } = codes.arithmetic else { return None };
        let rows = product.rows.clamp(1, MOST_ROWS / DIGITS);
        let blocks = product.w.k.div_ceil(block);
        Some(Self { isa, product, codes, block, blocks, rows, row_blocks: product.rows.div_ceil(rows) })
    }

    fn layout(&self) -> Layout {
        let digits = self.rows * DIGITS;
        Layout { integers: self.blocks * self.block * digits, entries: self.blocks * digits }
    }

    fn groups(&self) -> usize {
        self.product.w.panels().div_ceil(TASK_PANELS)
    }

    pub(super) fn needs(&self) -> Needs {
        let Product { rows, w, .. } = self.product;
        Needs {
            packed: self.row_blocks * self.layout().bytes(),
            sums: 0,
            pack_tasks: self.row_blocks,
            pack_work: rows * w.k,
            tasks: self.row_blocks.div_ceil(TASK_BLOCKS) * self.groups(),
            work: rows * DIGITS * w.k * w.n / 16,
        }
    }

    /// Rounds a row block.
    ///
    /// # Safety
    /// As [`super::job::Job::pack`].
    pub(super) unsafe fn pack(&self, row_block: usize, packed: Shared<u8>) {
        let (layout, rows) = (self.layout(), self.rows);
        // SAFETY: each task writes its own row block, which has these parts; it begins on a line of the caches.
        let (integers, begins, scales, sums) = unsafe {
            let at = packed.at(row_block * layout.bytes());
            let numbers = at.add(layout.integers);
            let part = |index: usize| numbers.add(index * layout.entries * 4);
            (
                std::slice::from_raw_parts_mut(at.cast::<i8>(), layout.integers),
                std::slice::from_raw_parts_mut(part(0).cast::<i32>(), layout.entries),
                std::slice::from_raw_parts_mut(part(1).cast::<f32>(), layout.entries),
                std::slice::from_raw_parts_mut(part(2).cast::<f32>(), layout.entries),
            )
        };
        let first = row_block * rows;
        for row in 0..rows {
            // SAFETY: the row exists, and is only read (the caller's promise).
            let x = if first + row < self.product.rows { unsafe { self.product.row(first + row) } } else { &[] };
            for block in 0..self.blocks {
                let start = (block * self.block).min(x.len());
                let x = &x[start..(start + self.block).min(x.len())];
                let scale = x.iter().fold(0.0_f32, |most, x| most.max(x.abs())) / MOST;
                let factor = if scale > 0.0 { 1.0 / scale } else { 0.0 };
                let mut sum = [0; DIGITS];
                for at in 0..self.block {
                    // What is no number becomes zero; the scale carries an infinity on.
                    let number = x.get(at).map_or(0.0, |x| x * factor);
                    let first = number.round_ties_even();
                    let digits = [first, ((number - first) * SECOND).round_ties_even()].map(|digit| digit as i8);
                    for (digit, integer) in digits.into_iter().enumerate() {
                        sum[digit] += i32::from(integer);
                        let place = ((block * self.block + at) / 4 * rows + row) * DIGITS + digit;
                        integers[place * 4 + at % 4] = integer;
                    }
                }
                let scale = if x.iter().any(|x| x.is_nan()) { f32::NAN } else { scale * self.unit() };
                for (digit, scale) in [scale, scale / SECOND].into_iter().enumerate() {
                    let entry = (block * rows + row) * DIGITS + digit;
                    begins[entry] = -self.base() * sum[digit];
                    scales[entry] = scale;
                    sums[entry] = scale * sum[digit] as f32;
                }
            }
        }
    }

    /// What is taken from every code.
    fn base(&self) -> i32 {
        if let Arithmetic::Rounded { base, .. } = self.codes.arithmetic { i32::from(base) } else { 0 }
    }

    fn unit(&self) -> f32 {
        if let Arithmetic::Rounded { unit, .. } = self.codes.arithmetic { unit } else { 1.0 }
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
        vectorize_ints(self.isa, strip);
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
        match (self.job.codes.bits, self.job.block) {
            (CodeBits::Four, 32) => self.all::<S, 4, 32>(),
            (CodeBits::Four, _) => self.all::<S, 4, 16>(),
            (CodeBits::Eight, 32) => self.all::<S, 8, 32>(),
            (CodeBits::Eight, _) => self.all::<S, 8, 16>(),
        }
    }
}

impl Strip<'_> {
    #[inline(always)]
    fn all<S: Ints, const BITS: usize, const BLOCK: usize>(&self) {
        for row_block in self.blocks.clone() {
            let mut panel = self.panels.start;
            while panel < self.panels.end {
                let two = panel + 2 <= self.panels.end;
                panel += match (self.job.rows * DIGITS, two, S::N) {
                    (2, true, 16) if panel + 4 <= self.panels.end => {
                        self.tile::<S, BITS, BLOCK, 2, 4>(row_block, panel)
                    }
                    (2, true, 16) => self.tile::<S, BITS, BLOCK, 2, 2>(row_block, panel),
                    (2, _, 16) => self.tile::<S, BITS, BLOCK, 2, 1>(row_block, panel),
                    (_, true, 16) => self.tile::<S, BITS, BLOCK, MOST_ROWS, 2>(row_block, panel),
                    (_, _, 16) => self.tile::<S, BITS, BLOCK, MOST_ROWS, 1>(row_block, panel),
                    (2, _, _) => self.tile::<S, BITS, BLOCK, 2, 2>(row_block, panel),
                    (_, _, _) => self.tile::<S, BITS, BLOCK, MOST_ROWS, 2>(row_block, panel),
                };
            }
        }
    }

    /// `R` digits of rows times `C` vectors; the number of panels that they are.
    #[inline(always)]
    fn tile<S: Ints, const BITS: usize, const BLOCK: usize, const R: usize, const C: usize>(
        &self,
        row_block: usize,
        panel: usize,
    ) -> usize {
        let job = self.job;
        let Arithmetic::Rounded { scales, adds, .. } = &job.codes.arithmetic else { unreachable!("checked in new") };
        let (layout, per_panel, panel_bytes) = (job.layout(), PANEL / S::N, job.product.w.panel_bytes());
        let mut sums = [[S::splat(0.0); C]; R];
        // SAFETY: the row block was packed with these parts; panels exist, each with whole blocks of codes, and have
        // scales (and what is added) for every group.
        unsafe {
            let x = self.packed.at(row_block * layout.bytes()).cast_const();
            let begins = x.add(layout.integers).cast::<i32>();
            let (x_scales, x_sums) =
                (begins.add(layout.entries).cast::<f32>(), begins.add(2 * layout.entries).cast::<f32>());
            let codes = job.product.w.panel(panel);
            for block in 0..job.blocks {
                let mut dots = [[S::integer(0); C]; R];
                if BITS == 4 || S::UNSIGNED {
                    for r in 0..R {
                        dots[r] = [S::integer(*begins.add(block * R + r)); C];
                    }
                }
                // Four bits hold eight k in a vector, eight bits four.
                let step = 32 / BITS;
                for k in (block * BLOCK..(block + 1) * BLOCK).step_by(step) {
                    for c in 0..C {
                        let at = c / per_panel * panel_bytes + (k / step * PANEL + c % per_panel * S::N) * 4;
                        let code = S::load_integers(codes.add(at));
                        for r in 0..R {
                            let four = |k: usize| S::broadcast(x.add((k / 4 * R + r) * 4));
                            dots[r][c] = match BITS {
                                4 => S::dot(S::dot(dots[r][c], S::low(code), four(k)), S::high(code), four(k + 4)),
                                _ => S::dot_bytes(dots[r][c], code, four(k)),
                            };
                        }
                    }
                }
                for c in 0..C {
                    let place = job.codes.place(panel + c / per_panel, block * BLOCK) + c % per_panel * S::N;
                    let scale = S::load_f16(scales.as_ptr().add(place));
                    for r in 0..R {
                        let factor = scale.mul(S::splat(*x_scales.add(block * R + r)));
                        sums[r][c] = S::number(dots[r][c]).fma(factor, sums[r][c]);
                    }
                    if !adds.is_empty() {
                        let add = S::load_f16(adds.as_ptr().add(place));
                        for r in 0..R {
                            sums[r][c] = add.fma(S::splat(*x_sums.add(block * R + r)), sums[r][c]);
                        }
                    }
                }
            }
        }
        self.write::<S, R, C>(row_block, panel, &sums);
        C / per_panel
    }

    /// Hands finished sums over.
    #[inline(always)]
    fn write<S: Ints, const R: usize, const C: usize>(&self, row_block: usize, panel: usize, sums: &[[S; C]; R]) {
        let mut flat = [0.0_f32; MOST_ROWS / DIGITS * TASK_PANELS * PANEL];
        let width = C * S::N;
        for r in 0..R / DIGITS {
            for c in 0..C {
                let sum = sums[r * DIGITS][c].add(sums[r * DIGITS + 1][c]);
                // SAFETY: a tile has at most two rows of four panels.
                unsafe { sum.store(flat.as_mut_ptr().add(r * width + c * S::N)) };
            }
        }
        let row = row_block * (R / DIGITS);
        let rows = (R / DIGITS).min(self.job.product.rows - row);
        let tile = Tile { sums: &flat, stride: width, row, col: panel * PANEL, rows, cols: width };
        // SAFETY: each tile writes its own rows and columns.
        unsafe { self.job.product.write::<S>(&tile) };
    }
}
