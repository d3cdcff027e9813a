//! A product as the kernels see it: its operands, and where a finished tile of sums goes.

use crate::cpu::gemm::pack::{PANEL, Packed};
use crate::cpu::layers::activate::Gate;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::simd::{Simd, vectorize};
use crate::ops::{Activation, Epilogue};
use std::ops::Range;

/// Where the rows of an operand lie.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    base: Shared<f32>,
    /// Elements from one row to the next.
    stride: usize,
    /// Which row comes when; absent: as they lie.
    order: Option<&'a [u32]>,
    /// Numbers in `order` that mean the same row, one after the other.
    share: usize,
}

impl<'a> Rows<'a> {
    /// Rows one after the other.
    pub(crate) fn dense(base: Shared<f32>, stride: usize) -> Self {
        Self { base, stride, order: None, share: 1 }
    }

    /// Row `order[i] / share` as the one at `i`.
    pub(crate) fn picked(base: Shared<f32>, stride: usize, order: &'a [u32], share: usize) -> Self {
        Self { base, stride, order: Some(order), share }
    }

    /// The first element of the row at `index`.
    #[inline(always)]
    fn at(&self, index: usize) -> *mut f32 {
        let row = self.order.map_or(index, |order| order[index] as usize / self.share);
        // SAFETY: whoever made the product promised these rows.
        unsafe { self.base.at(row * self.stride) }
    }
}

/// One product.
#[derive(Clone, Copy)]
pub(crate) struct Product<'a> {
    /// Each of `w.k` elements.
    pub(crate) x: Rows<'a>,
    pub(crate) rows: usize,
    pub(crate) w: &'a Packed,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) epilogue: Epilogue,
    /// What the output goes through, task by task.
    pub(crate) activation: Option<Activation>,
    /// Each of `w.n` elements.
    pub(crate) out: Rows<'a>,
}

/// A finished tile of sums: `rows` rows of `stride` elements, the first at output element (`row`, `col`).
pub(super) struct Tile<'a> {
    pub(super) sums: &'a [f32],
    pub(super) stride: usize,
    pub(super) row: usize,
    pub(super) col: usize,
    pub(super) rows: usize,
    pub(super) cols: usize,
}

impl Product<'_> {
    /// Elements of a row of `x`.
    ///
    /// # Safety
    /// Nobody writes the row meanwhile.
    #[inline(always)]
    pub(super) unsafe fn row(&self, row: usize) -> &[f32] {
        debug_assert!(row < self.rows);
        // SAFETY: rows of `x` have `w.k` elements; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.x.at(row), self.w.k) }
    }

    /// Where an output element lies; to be fetched only.
    #[inline(always)]
    pub(super) fn out_line(&self, row: usize, col: usize) -> *const u8 {
        self.out.at(row).wrapping_add(col).cast_const().cast()
    }

    /// Writes a tile, clipped to the matrix.
    ///
    /// # Safety
    /// No other task writes these elements, and rows are inside the output.
    #[inline(always)]
    pub(super) unsafe fn write<S: Simd>(&self, tile: &Tile<'_>) {
        let cols = tile.cols.min(self.w.n - tile.col);
        let bias = self.bias.map(|bias| bias[tile.col..tile.col + cols].as_ptr());
        for row in 0..tile.rows {
            let sums = tile.sums[row * tile.stride..][..cols].as_ptr();
            for col in (0..cols).step_by(S::N) {
                let count = S::N.min(cols - col);
                // SAFETY: the columns are clipped to the row and the bias, and the rows are inside (the caller's
                // promise).
                unsafe {
                    let out = self.out.at(tile.row + row).add(tile.col + col);
                    let mut sum = S::load_up_to(sums.add(col), count);
                    if let Some(bias) = bias {
                        sum = sum.add(S::load_up_to(bias.add(col), count));
                    }
                    if self.epilogue == Epilogue::Accumulate {
                        sum = S::load_up_to(out.cast_const(), count).add(sum);
                    }
                    sum.store_up_to(out, count);
                }
            }
        }
    }

    /// Puts finished columns of rows through the activation, if there is one.
    ///
    /// # Safety
    /// As [`Self::write`]; the elements were written.
    pub(super) unsafe fn activate(&self, isa: Isa, rows: Range<usize>, panels: Range<usize>) {
        let Some(activation) = self.activation else { return };
        let first = panels.start * PANEL;
        let width = self.w.n.min(panels.end * PANEL) - first;
        for row in rows {
            // SAFETY: the columns are inside the row, which is inside the output (the caller's promise).
            let out = unsafe { self.out.at(row).add(first) };
            vectorize(isa, Gate { gate: out, up: None, out, width, activation });
        }
    }
}
