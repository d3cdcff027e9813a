//! Picks rows.

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::pool::Pool;

/// `out[i] = x[rows[i]]`.
pub(crate) fn gather(pool: &mut Pool, x: View, rows: &[u32], out: View) {
    out.for_each_row(pool, 1, &|row| {
        let from = rows[row] as usize;
        assert!(from < x.rows, "row {from} of {}", x.rows);
        // SAFETY: a row of out is one task's, and the buffers differ (checked by the caller).
        unsafe { out.row_mut(row).copy_from_slice(x.row(from)) };
    });
}
