//! A buffer within bounds.

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::pool::Pool;

/// `x = min(max(x, -limit), limit)`.
pub(crate) fn clamp(pool: &mut Pool, x: View, limit: f32) {
    x.for_each_row(pool, 1, &|row| {
        // SAFETY: a row is one task's.
        unsafe { x.row_mut(row) }.iter_mut().for_each(|x| *x = x.clamp(-limit, limit));
    });
}
