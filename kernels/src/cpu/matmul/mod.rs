//! `out = x w^T (+ bias)`, stored or accumulated.
//!
//! Every output element is one sum over k in ascending order, by whichever kernel the weights ask for; so rows never influence each other.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod few;
mod lanes;

use super::isa::Isa;
use super::memory::{Reserve, Shared};
use super::pack::Packed;
use super::pool::Pool;
use crate::ops::Epilogue;

/// One product.
pub(crate) struct Product<'a> {
    /// `[rows, w.k]`.
    pub(crate) x: *const f32,
    pub(crate) rows: usize,
    pub(crate) w: &'a Packed,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) epilogue: Epilogue,
    /// `[rows, w.n]`.
    pub(crate) out: *mut f32,
}

/// Memory kept from call to call.
#[derive(Default)]
pub(crate) struct Scratch {
    /// Packed activations.
    x: Reserve,
    /// Sums that rest between parts of k.
    sums: Reserve,
}

/// Computes a product.
///
/// # Safety
/// `x` and `out` point to `rows * w.k` and `rows * w.n` elements that do not overlap and that nobody else uses meanwhile.
pub(crate) unsafe fn matmul(isa: Isa, pool: &mut Pool, scratch: &mut Scratch, product: Product<'_>) {
    if product.rows == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if isa == Isa::Amx && product.w.rounds && product.w.dtype == crate::ops::DType::Bf16 {
        let few = product.rows <= few::MAX_ROWS;
        // SAFETY: the caller's promise; the tile unit was detected.
        return unsafe {
            if few { few::matmul(pool, scratch, &product) } else { amx::matmul(pool, scratch, &product) }
        };
    }
    // SAFETY: the caller's promise.
    unsafe { lanes::matmul(isa, pool, scratch, &product) }
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

/// The pointer to a product's output that tasks share.
struct Output<'a> {
    out: Shared<f32>,
    n: usize,
    bias: Option<&'a [f32]>,
    epilogue: Epilogue,
}

impl<'a> Output<'a> {
    fn new(product: &Product<'a>) -> Self {
        let Product { w, bias, epilogue, out, .. } = *product;
        Self { out: Shared::new(out), n: w.n, bias, epilogue }
    }

    /// Writes a tile, clipped to the matrix.
    ///
    /// # Safety
    /// No other task writes these elements, and rows are inside the output.
    #[inline(always)]
    unsafe fn write(&self, tile: &Tile<'_>) {
        let cols = tile.cols.min(self.n - tile.col);
        for row in 0..tile.rows {
            let sums = &tile.sums[row * tile.stride..][..cols];
            // SAFETY: the columns are clipped to the row, and the rows are inside (the caller's promise).
            let out =
                unsafe { std::slice::from_raw_parts_mut(self.out.at((tile.row + row) * self.n + tile.col), cols) };
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
