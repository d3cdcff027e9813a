//! Normalisation of rows, alone or after a residual add, and of the heads inside a row.

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::{Kernel, Simd, vectorize};
use crate::ops::NormKind;

/// A norm with its parameters looked up.
#[derive(Clone, Copy)]
pub(crate) struct Params<'a> {
    pub(crate) kind: NormKind,
    pub(crate) weight: Option<&'a [f32]>,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) eps: f32,
}

impl<'a> Params<'a> {
    fn check(&self, width: usize) {
        for vector in [self.weight, self.bias].into_iter().flatten() {
            assert_eq!(vector.len(), width, "length of a norm's parameters, and width of what it norms");
        }
    }

    /// Heads share parameters or have their own.
    fn check_heads(&self, dim: usize, cols: usize) {
        for vector in [self.weight, self.bias].into_iter().flatten() {
            let len = vector.len();
            assert!(len == dim || len == cols, "{len} parameters of a norm for {cols} columns in heads of {dim}");
        }
    }

    fn of_head(&self, head: usize, dim: usize) -> Self {
        let part = |vector: &'a [f32]| if vector.len() == dim { vector } else { &vector[head * dim..][..dim] };
        Self { weight: self.weight.map(part), bias: self.bias.map(part), ..*self }
    }
}

/// `out = norm(x)`.
pub(crate) fn norm(isa: Isa, pool: &mut Pool, x: View, params: Params<'_>, out: View) {
    params.check(x.width);
    x.for_each_row(pool, 2, &|row| {
        // SAFETY: a row is one task's; x and out may be one buffer.
        let (from, to) = unsafe { (x.data.at(row * x.width).cast_const(), out.data.at(row * x.width)) };
        vectorize(isa, NormRow { residual: None, from, to, width: x.width, params });
    });
}

/// `residual += delta; out = norm(residual)`.
pub(crate) fn add_norm(isa: Isa, pool: &mut Pool, residual: View, delta: View, params: Params<'_>, out: View) {
    params.check(residual.width);
    assert_eq!((residual.rows, residual.width), (delta.rows, delta.width), "shapes of a residual and its addend");
    residual.for_each_row(pool, 3, &|row| {
        let at = row * residual.width;
        // SAFETY: a row is one task's; residual and out may be one buffer.
        let (sum, from, to) = unsafe { (residual.data.at(at), delta.data.at(at).cast_const(), out.data.at(at)) };
        vectorize(isa, NormRow { residual: Some(sum), from, to, width: residual.width, params });
    });
}

/// Norm of `heads` heads of `dim` columns from `first_col` on, in place.
pub(crate) fn head_norm(
    isa: Isa,
    pool: &mut Pool,
    x: View,
    cols: std::ops::Range<usize>,
    params: Params<'_>,
    dim: usize,
) {
    params.check_heads(dim, cols.len());
    assert!(cols.end <= x.width, "columns {cols:?} of {}", x.width);
    x.for_each_row(pool, 2, &|row| {
        for (head, col) in cols.clone().step_by(dim).enumerate() {
            // SAFETY: a row is one task's, and the head is inside it.
            let at = unsafe { x.data.at(row * x.width + col) };
            vectorize(isa, NormRow { residual: None, from: at, to: at, width: dim, params: params.of_head(head, dim) });
        }
    });
}

/// One row: `residual` (where given) takes up `from` first, and is what is normed.
struct NormRow<'a> {
    residual: Option<*mut f32>,
    from: *const f32,
    to: *mut f32,
    width: usize,
    params: Params<'a>,
}

impl Kernel for NormRow<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let source = match self.residual {
            None => self.from,
            Some(sum) => {
                self.add_to::<S>(sum);
                sum.cast_const()
            }
        };
        let mean = match self.params.kind {
            NormKind::Rms => 0.0,
            NormKind::Layer => self.moment::<S, false>(source, 0.0) / self.width as f32,
        };
        let square = self.moment::<S, true>(source, mean) / self.width as f32;
        let factor = 1.0 / (square + self.params.eps).sqrt();
        self.write::<S>(source, mean, factor);
    }
}

impl NormRow<'_> {
    #[inline(always)]
    fn add_to<S: Simd>(&self, sum: *mut f32) {
        let mut i = 0;
        // SAFETY: both rows have `width` elements.
        unsafe {
            while i + S::N <= self.width {
                S::load(sum.add(i)).add(S::load(self.from.add(i))).store(sum.add(i));
                i += S::N;
            }
            if i < self.width {
                let rest = self.width - i;
                S::load_some(sum.add(i), rest).add(S::load_some(self.from.add(i), rest)).store_some(sum.add(i), rest);
            }
        }
    }

    /// Sum of `x - mean` or of its square, in four interleaved partial sums.
    #[inline(always)]
    fn moment<S: Simd, const SQUARE: bool>(&self, x: *const f32, mean: f32) -> f32 {
        let mut sums = [S::splat(0.0); 4];
        let shift = S::splat(-mean);
        let mut i = 0;
        // SAFETY: the row has `width` elements.
        unsafe {
            while i + 4 * S::N <= self.width {
                for (part, sum) in sums.iter_mut().enumerate() {
                    let x = S::load(x.add(i + part * S::N)).add(shift);
                    *sum = if SQUARE { x.fma(x, *sum) } else { sum.add(x) };
                }
                i += 4 * S::N;
            }
            while i + S::N <= self.width {
                let x = S::load(x.add(i)).add(shift);
                sums[0] = if SQUARE { x.fma(x, sums[0]) } else { sums[0].add(x) };
                i += S::N;
            }
        }
        let mut sum = sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum();
        while i < self.width {
            // SAFETY: as above.
            let x = unsafe { *x.add(i) } - mean;
            sum += if SQUARE { x * x } else { x };
            i += 1;
        }
        sum
    }

    #[inline(always)]
    fn write<S: Simd>(&self, x: *const f32, mean: f32, factor: f32) {
        let mut i = 0;
        while i < self.width {
            let count = S::N.min(self.width - i);
            // SAFETY: `count` elements are left in the row and in the parameters (checked).
            unsafe {
                let mut y = S::load_up_to(x.add(i), count).sub(S::splat(mean)).mul(S::splat(factor));
                if let Some(weight) = self.params.weight {
                    y = y.mul(S::load_up_to(weight.as_ptr().add(i), count));
                }
                if let Some(bias) = self.params.bias {
                    y = y.add(S::load_up_to(bias.as_ptr().add(i), count));
                }
                y.store_up_to(self.to.add(i), count);
            }
            i += count;
        }
    }
}
