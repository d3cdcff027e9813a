//! Copies columns from buffer to buffer.

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::pool::Pool;
use crate::ops::HeadColumns;

/// Pieces of rows, in two buffers.
pub(crate) struct Pieces {
    pub(crate) from: HeadColumns,
    pub(crate) to: HeadColumns,
    pub(crate) heads: usize,
    pub(crate) width: usize,
}

/// See [`crate::ops::Ops::copy_columns`].
pub(crate) fn copy_columns(pool: &mut Pool, x: View, out: View, pieces: Pieces) {
    let Pieces { from, to, heads, width } = pieces;
    assert_eq!(x.rows, out.rows, "rows to copy from and to");
    from.check_inside(heads, width, x.width);
    to.check_inside(heads, width, out.width);
    x.for_each_row(pool, 1, &|row| {
        // SAFETY: a row is one task's, and the buffers differ (checked by the caller).
        let (x, out) = unsafe { (x.row(row), out.row_mut(row)) };
        for head in 0..heads {
            let (from, to) = (from.first + head * from.stride, to.first + head * to.stride);
            out[to..to + width].copy_from_slice(&x[from..from + width]);
        }
    });
}
