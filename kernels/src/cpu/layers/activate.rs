//! Gate functions, in place; `gated` uses them too.

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::{Kernel, Simd, math, vectorize};
use crate::ops::Activation;

/// `x = activation(x)`.
pub(crate) fn activate(isa: Isa, pool: &mut Pool, x: View, activation: Activation) {
    x.for_each_row(pool, 8, &|row| {
        // SAFETY: a row is one task's.
        let row = unsafe { x.data.at(row * x.width) };
        vectorize(isa, Gate { gate: row, up: None, out: row, width: x.width, activation });
    });
}

/// One row; `up` is what the result is multiplied with.
pub(crate) struct Gate {
    pub(crate) gate: *const f32,
    pub(crate) up: Option<*const f32>,
    pub(crate) out: *mut f32,
    pub(crate) width: usize,
    pub(crate) activation: Activation,
}

impl Kernel for Gate {
    #[inline(always)]
    fn run<S: Simd>(self) {
        match self.activation {
            Activation::Silu => self.each::<S, Silu>(),
            Activation::Gelu => self.each::<S, Gelu>(),
            Activation::GeluTanh => self.each::<S, GeluTanh>(),
            Activation::Relu => self.each::<S, Relu>(),
            Activation::ReluSquared => self.each::<S, ReluSquared>(),
            Activation::ClampedSwiGlu { limit } => self.clamped::<S>(limit),
            Activation::Sigmoid => self.each::<S, Sigmoid>(),
        }
    }
}

impl Gate {
    #[inline(always)]
    fn each<S: Simd, F: Function>(&self) {
        let mut i = 0;
        while i < self.width {
            let count = S::N.min(self.width - i);
            // SAFETY: `count` elements are left in each row.
            unsafe {
                let mut y = F::apply(S::load_up_to(self.gate.add(i), count));
                if let Some(up) = self.up {
                    y = y.mul(S::load_up_to(up.add(i), count));
                }
                y.store_up_to(self.out.add(i), count);
            }
            i += count;
        }
    }
}

impl Gate {
    /// gpt-oss: both halves are bounded, and the other half counts as one more.
    #[inline(always)]
    fn clamped<S: Simd>(&self, limit: f32) {
        let (lower, upper) = (S::splat(-limit), S::splat(limit));
        for i in (0..self.width).step_by(S::N) {
            let count = S::N.min(self.width - i);
            // SAFETY: `count` elements are left in each row.
            unsafe {
                let x = S::load_up_to(self.gate.add(i), count);
                let x = x.replace_where_less(upper, x, upper);
                let mut y = x.mul(math::sigmoid(x.mul(S::splat(1.702))));
                if let Some(up) = self.up {
                    let up = S::load_up_to(up.add(i), count);
                    let up = up.replace_where_less(upper, up, upper).replace_where_less(up, lower, lower);
                    y = y.mul(up.add(S::splat(1.0)));
                }
                y.store_up_to(self.out.add(i), count);
            }
        }
    }
}

/// A gate function on a vector.
trait Function {
    fn apply<S: Simd>(x: S) -> S;
}

struct Silu;
struct Gelu;
struct GeluTanh;
struct Relu;
struct ReluSquared;
struct Sigmoid;

impl Function for Silu {
    #[inline(always)]
    fn apply<S: Simd>(x: S) -> S {
        x.mul(math::sigmoid(x))
    }
}

impl Function for Gelu {
    #[inline(always)]
    fn apply<S: Simd>(x: S) -> S {
        math::gelu(x)
    }
}

impl Function for GeluTanh {
    #[inline(always)]
    fn apply<S: Simd>(x: S) -> S {
        // 0.5 (1 + tanh(u)) is sigmoid(2u).
        const TWICE_SQRT_2_OVER_PI: f32 = 1.595_769;
        let cubic = x.mul(x).fma(S::splat(0.044_715), S::splat(1.0)).mul(x);
        x.mul(math::sigmoid(cubic.mul(S::splat(TWICE_SQRT_2_OVER_PI))))
    }
}

impl Function for Relu {
    #[inline(always)]
    fn apply<S: Simd>(x: S) -> S {
        S::splat(0.0).max(x)
    }
}

impl Function for ReluSquared {
    #[inline(always)]
    fn apply<S: Simd>(x: S) -> S {
        let positive = S::splat(0.0).max(x);
        positive.mul(positive)
    }
}

impl Function for Sigmoid {
    #[inline(always)]
    fn apply<S: Simd>(x: S) -> S {
        math::sigmoid(x)
    }
}
