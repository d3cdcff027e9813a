//! A buffer times a number.

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::pool::Pool;

/// `x *= factor`.
pub(crate) fn scale(pool: &mut Pool, x: View, factor: f32) {
    x.for_each_row(pool, 1, &|row| {
        // SAFETY: a row is one task's.
        unsafe { x.row_mut(row) }.iter_mut().for_each(|x| *x *= factor);
    });
}
