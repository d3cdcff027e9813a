//! `out = x w^T (+ bias)`, stored or accumulated; one product, or many side by side.
//!
//! Every output element is one sum over k in ascending order, by whichever kernel the weights ask for; so rows never influence each other.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod few;
mod job;
mod lanes;

use super::isa::Isa;
use super::memory::{Reserve, Shared};
use super::pack::Packed;
use super::pool::Pool;
use crate::ops::Epilogue;
use job::Job;

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
    /// Each of `w.n` elements.
    pub(crate) out: Rows<'a>,
}

impl Product<'_> {
    /// Elements of a row of `x`.
    ///
    /// # Safety
    /// Nobody writes the row meanwhile.
    #[inline(always)]
    unsafe fn row(&self, row: usize) -> &[f32] {
        debug_assert!(row < self.rows);
        // SAFETY: rows of `x` have `w.k` elements; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.x.at(row), self.w.k) }
    }
}

/// Memory kept from call to call.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Packed activations.
    x: Reserve,
    /// Sums that rest between parts of k.
    sums: Reserve,
}

/// Computes products, all of them in one go: tasks of the next begin while the last ones of the one before still run.
///
/// # Safety
/// Every product's rows exist, no row of an output overlaps another or any input, and nobody else uses them meanwhile.
pub(crate) unsafe fn matmul<'a>(
    isa: Isa,
    pool: &mut Pool,
    scratch: &mut Scratch,
    products: impl Iterator<Item = Product<'a>>,
) {
    let threads = pool.threads();
    let jobs: Vec<Job<'a>> =
        products.filter(|product| product.rows > 0).map(|product| Job::new(isa, threads, product)).collect();
    // SAFETY: the caller's promise.
    unsafe { job::run(pool, scratch, &jobs) }
}

/// A finished tile of sums: `rows` rows of `stride` elements, the first at output element (`row`, `col`).
struct Tile<'a> {
    sums: &'a [f32],
    stride: usize,
    row: usize,
    col: usize,
    rows: usize,
    cols: usize,
}

impl Product<'_> {
    /// Writes a tile, clipped to the matrix.
    ///
    /// # Safety
    /// No other task writes these elements, and rows are inside the output.
    #[inline(always)]
    unsafe fn write(&self, tile: &Tile<'_>) {
        let cols = tile.cols.min(self.w.n - tile.col);
        for row in 0..tile.rows {
            let sums = &tile.sums[row * tile.stride..][..cols];
            // SAFETY: the columns are clipped to the row, and the rows are inside (the caller's promise).
            let out = unsafe { std::slice::from_raw_parts_mut(self.out.at(tile.row + row).add(tile.col), cols) };
            let bias = self.bias.map(|bias| &bias[tile.col..tile.col + cols]);
            match (self.epilogue, bias) {
                (Epilogue::Store, None) => out.copy_from_slice(sums),
                (Epilogue::Store, Some(bias)) => {
                    for ((out, sum), bias) in out.iter_mut().zip(sums).zip(bias) {
                        *out = sum + bias;
                    }
                }
                (Epilogue::Accumulate, None) => out.iter_mut().zip(sums).for_each(|(out, sum)| *out += sum),
                (Epilogue::Accumulate, Some(bias)) => {
                    for ((out, sum), bias) in out.iter_mut().zip(sums).zip(bias) {
                        *out += sum + bias;
                    }
                }
            }
        }
    }
}
