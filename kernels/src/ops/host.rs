//! Matrices as files and buffers hold them.

use super::DType;

/// A matrix as it lies in a file or buffer: row-major `[rows, cols]`, little-endian.
#[derive(Clone, Copy)]
pub struct HostMatrix<'a> {
    /// Element type of `bytes`.
    pub dtype: DType,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// `rows * cols * dtype.size()` bytes; need not be aligned.
    pub bytes: &'a [u8],
}

impl HostMatrix<'_> {
    /// Element type, rows and columns of the matrix that pieces lying below each other make.
    ///
    /// # Panics
    /// When there are none, they differ in width or type, or one holds another number of bytes than its shape says.
    pub fn stacked(pieces: &[HostMatrix<'_>]) -> (DType, usize, usize) {
        let &[HostMatrix { dtype, cols, .. }, ..] = pieces else { panic!("a matrix of no pieces") };
        for HostMatrix { dtype: found, rows, cols: width, bytes } in pieces {
            let wanted = rows.checked_mul(*width).and_then(|count| count.checked_mul(found.size()));
            assert_eq!(Some(bytes.len()), wanted, "bytes of {rows} x {width} {found:?}");
            assert_eq!((*found, *width), (dtype, cols), "{rows} x {width} {found:?} in a matrix of {cols} columns");
        }
        (dtype, pieces.iter().map(|piece| piece.rows).sum(), cols)
    }
}
