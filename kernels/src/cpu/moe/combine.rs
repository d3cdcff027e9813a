//! What a row's experts gave, weighted and summed.

use crate::cpu::moe::route::Choices;
use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::{Kernel, Simd, vectorize};
use crate::ops::Epilogue;

/// `out[row] = sum of weight[row][slot] * x[row * top_k + slot]`, or added to it.
pub(crate) fn combine(isa: Isa, pool: &mut Pool, x: View, choices: &Choices, epilogue: Epilogue, out: View) {
    let top_k = choices.top_k;
    assert_eq!((x.rows, x.width), (out.rows * top_k, out.width), "what experts gave, and its sums of {top_k}");
    out.for_each_row(pool, 2 * top_k, &|row| {
        // SAFETY: a row of out is one task's, and x is another buffer (checked by the caller).
        let (from, to) = unsafe { (x.data.at(row * top_k * x.width).cast_const(), out.data.at(row * out.width)) };
        let weights = &choices.weights[row * top_k..][..top_k];
        vectorize(isa, Sum { from, weights, to, width: x.width, epilogue });
    });
}

/// One row: as many rows as weights, one after the other.
struct Sum<'a> {
    from: *const f32,
    weights: &'a [f32],
    to: *mut f32,
    width: usize,
    epilogue: Epilogue,
}

impl Kernel for Sum<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        for start in (0..self.width).step_by(S::N) {
            let count = S::N.min(self.width - start);
            // SAFETY: `count` elements are left in each row.
            unsafe {
                let mut sum = S::splat(0.0);
                for (slot, &weight) in self.weights.iter().enumerate() {
                    let x = S::load_up_to(self.from.add(slot * self.width + start), count);
                    sum = S::splat(weight).fma(x, sum);
                }
                if self.epilogue == Epilogue::Accumulate {
                    sum = sum.add(S::load_up_to(self.to.add(start), count));
                }
                sum.store_up_to(self.to.add(start), count);
            }
        }
    }
}
