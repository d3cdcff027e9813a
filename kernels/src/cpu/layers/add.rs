//! Sum of two buffers, element by element.

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::pool::Pool;

/// `x += y`.
pub(crate) fn add(pool: &mut Pool, x: View, y: View) {
    assert_eq!((x.rows, x.width), (y.rows, y.width), "shapes of two addends");
    x.for_each_row(pool, 1, &|row| {
        // SAFETY: a row is one task's, and the buffers differ (checked by the caller).
        let (x, y) = unsafe { (x.row_mut(row), y.row(row)) };
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    });
}
