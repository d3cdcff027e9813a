//! Bounds values smoothly (Gemma's logits).

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::pool::Pool;

/// `x = cap * tanh(x / cap)`.
pub(crate) fn soft_cap(pool: &mut Pool, x: View, cap: f32) {
    x.for_each_row(pool, 16, &|row| {
        // SAFETY: a row is one task's.
        unsafe { x.row_mut(row) }.iter_mut().for_each(|x| *x = cap * (*x / cap).tanh());
    });
}
