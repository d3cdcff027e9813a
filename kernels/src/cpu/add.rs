//! Element-wise sums and scalings of whole buffers, and picking rows.

use super::acts::View;
use super::pool::Pool;

/// `x += y`.
pub(crate) fn add(pool: &mut Pool, x: View, y: View) {
    assert_eq!((x.rows, x.width), (y.rows, y.width), "shapes of two addends");
    x.for_each_row(pool, 1, &|row| {
        // SAFETY: a row is one task's, and the buffers differ (checked by the caller).
        let (x, y) = unsafe { (x.row_mut(row), y.row(row)) };
        x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
    });
}

/// `x *= factor`.
pub(crate) fn scale(pool: &mut Pool, x: View, factor: f32) {
    x.for_each_row(pool, 1, &|row| {
        // SAFETY: a row is one task's.
        unsafe { x.row_mut(row) }.iter_mut().for_each(|x| *x *= factor);
    });
}

/// `out[i] = x[rows[i]]`.
pub(crate) fn gather(pool: &mut Pool, x: View, rows: &[u32], out: View) {
    out.for_each_row(pool, 1, &|row| {
        let from = rows[row] as usize;
        assert!(from < x.rows, "row {from} of {}", x.rows);
        // SAFETY: a row of out is one task's, and the buffers differ (checked by the caller).
        unsafe { out.row_mut(row).copy_from_slice(x.row(from)) };
    });
}
