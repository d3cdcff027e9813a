//! The two products of a delta, `t = x a^T` and `out += t b^T`, of rows that share an adapter.
//!
//! A sum's order depends on its length alone: neither the rows beside it nor the slot of its adapter change a bit.

#![allow(clippy::needless_range_loop, reason = "indices of register arrays are unrolled; iterators hide the shape")]

use crate::cpu::runtime::activations::Columns;
use crate::cpu::simd::{Kernel, Simd};

/// Rows that share what is read of their adapter.
const ROWS: usize = 4;

/// `shrunk[i][j] = x[rows[i]] . a[j]`.
pub(super) struct Shrink<'a> {
    pub x: &'a [&'a [f32]],
    /// `[rank, inputs]`.
    pub a: &'a [f32],
    pub rank: usize,
    /// From one row of `shrunk` to the next.
    pub stride: usize,
    pub shrunk: &'a mut [f32],
}

impl Kernel for Shrink<'_> {
    #[inline(always)]
    fn run<S: Simd>(mut self) {
        let (fours, rest) = self.x.as_chunks::<ROWS>();
        for (index, rows) in fours.iter().enumerate() {
            self.row_dots::<S, ROWS, 2>(rows, index * ROWS);
        }
        for (index, row) in rest.iter().enumerate() {
            self.row_dots::<S, 1, 8>(&[row], fours.len() * ROWS + index);
        }
    }
}

impl Shrink<'_> {
    /// All dots of `R` rows, `C` at a time.
    #[inline(always)]
    fn row_dots<S: Simd, const R: usize, const C: usize>(&mut self, x: &[&[f32]; R], first: usize) {
        let (inputs, whole) = (x[0].len(), self.rank / C * C);
        let a = |j: usize| &self.a[j * inputs..][..inputs];
        for j in (0..whole).step_by(C) {
            for (row, sums) in dots::<S, R, C>(x, &std::array::from_fn(|c| a(j + c))).iter().enumerate() {
                self.shrunk[(first + row) * self.stride + j..][..C].copy_from_slice(sums);
            }
        }
        for j in whole..self.rank {
            for (row, [sum]) in dots::<S, R, 1>(x, &[a(j)]).into_iter().enumerate() {
                self.shrunk[(first + row) * self.stride + j] = sum;
            }
        }
    }
}

/// `x[r] . a[c]`; all slices have one length.
#[inline(always)]
fn dots<S: Simd, const R: usize, const C: usize>(x: &[&[f32]; R], a: &[&[f32]; C]) -> [[f32; C]; R] {
    let len = x[0].len();
    assert!(x.iter().chain(a).all(|slice| slice.len() == len), "lengths of dots");
    let mut sums = [[S::splat(0.0); C]; R];
    let whole = len / S::N * S::N;
    for at in (0..whole).step_by(S::N) {
        add_products(&mut sums, x, a, at, S::N);
    }
    if whole < len {
        add_products(&mut sums, x, a, whole, len - whole);
    }
    sums.map(|row| row.map(S::sum))
}

/// Adds `count` products, from `at` on, to each sum.
#[inline(always)]
fn add_products<S: Simd, const R: usize, const C: usize>(
    sums: &mut [[S; C]; R],
    x: &[&[f32]; R],
    a: &[&[f32]; C],
    at: usize,
    count: usize,
) {
    // SAFETY: `count` elements of every slice follow `at` (the caller's loop).
    let load = |from: &[f32]| unsafe { S::load_up_to(from.as_ptr().add(at), count) };
    let a: [S; C] = std::array::from_fn(|c| load(a[c]));
    for r in 0..R {
        let x = load(x[r]);
        for c in 0..C {
            sums[r][c] = x.fma(a[c], sums[r][c]);
        }
    }
}

/// `out[rows[i]] += shrunk[i] b`, in some columns.
pub(super) struct Expand<'a> {
    pub shrunk: &'a [f32],
    /// From one row of `shrunk` to the next.
    pub stride: usize,
    pub rank: usize,
    /// `[rank, outputs]`, from the first of these columns on.
    pub b: &'a [f32],
    pub outputs: usize,
    /// How many columns.
    pub count: usize,
    pub rows: &'a [u32],
    pub out: Columns,
}

impl Kernel for Expand<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let (fours, rest) = self.rows.as_chunks::<ROWS>();
        for (index, rows) in fours.iter().enumerate() {
            self.add::<S, ROWS, 2>(rows, index * ROWS);
        }
        for (index, row) in rest.iter().enumerate() {
            self.add::<S, 1, 8>(&[*row], fours.len() * ROWS + index);
        }
    }
}

impl Expand<'_> {
    /// Adds to all columns of `R` rows, `V` vectors at a time.
    #[inline(always)]
    fn add<S: Simd, const R: usize, const V: usize>(&self, rows: &[u32; R], first: usize) {
        let shrunk = std::array::from_fn(|r| &self.shrunk[(first + r) * self.stride..][..self.rank]);
        let mut at = 0;
        while at + V * S::N <= self.count {
            self.add_at::<S, R, V>(rows, &shrunk, at, S::N);
            at += V * S::N;
        }
        while at + S::N <= self.count {
            self.add_at::<S, R, 1>(rows, &shrunk, at, S::N);
            at += S::N;
        }
        if at < self.count {
            self.add_at::<S, R, 1>(rows, &shrunk, at, self.count - at);
        }
    }

    /// Adds to `V` vectors of `lanes` lanes from column `at` on.
    #[inline(always)]
    fn add_at<S: Simd, const R: usize, const V: usize>(
        &self,
        rows: &[u32; R],
        shrunk: &[&[f32]; R],
        at: usize,
        lanes: usize,
    ) {
        let mut sums = [[S::splat(0.0); V]; R];
        for j in 0..self.rank {
            let b = &self.b[j * self.outputs + at..][..(V - 1) * S::N + lanes];
            // SAFETY: the slice has these lanes.
            let b: [S; V] = std::array::from_fn(|v| unsafe { S::load_up_to(b.as_ptr().add(v * S::N), lanes) });
            for r in 0..R {
                let factor = S::splat(shrunk[r][j]);
                for v in 0..V {
                    sums[r][v] = b[v].fma(factor, sums[r][v]);
                }
            }
        }
        for r in 0..R {
            for v in 0..V {
                // SAFETY: the columns are inside the row (checked when the kernel was made), and this task's alone.
                unsafe {
                    let to = self.out.at(rows[r] as usize, at + v * S::N).cast_mut();
                    S::load_up_to(to, lanes).add(sums[r][v]).store_up_to(to, lanes);
                }
            }
        }
    }
}
