//! Rows times the sigmoid of one number each.

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::pool::Pool;

/// `x[row] *= sigmoid(gate[row])`.
pub(crate) fn gate_rows(pool: &mut Pool, x: View, gate: View) {
    assert_eq!((gate.rows, gate.width), (x.rows, 1), "gates of {} rows", x.rows);
    x.for_each_row(pool, 1, &|row| {
        // SAFETY: a row is one task's, and the buffers differ (checked by the caller).
        let (x, gate) = unsafe { (x.row_mut(row), gate.row(row)[0]) };
        let factor = 1.0 / (1.0 + (-gate).exp());
        x.iter_mut().for_each(|x| *x *= factor);
    });
}
