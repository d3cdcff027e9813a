//! Scales of packed codes: what a group of a matrix's elements is multiplied by.

use crate::cpu::gemm::pack::PANEL;
use crate::ops::{Encoding, HostMatrix, ScaledCodes};

/// What [`Simd::load_e4m3_pairs`](crate::cpu::simd::Simd::load_e4m3_pairs) divides numbers by.
const UNIT: f32 = 256.0;

/// The scale of code `(n, k)` is `values[rows[n]][k / cols]`.
pub(crate) struct Scales {
    /// Times [`UNIT`].
    values: Vec<f32>,
    /// One for each column of every panel.
    rows: Vec<u32>,
    /// k that share a scale.
    cols: usize,
    /// Scales of a row.
    width: usize,
}

impl Scales {
    /// Bytes that they take.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.values) + size_of_val(&*self.rows)
    }

    /// Those of a matrix in pieces; absent where it has none.
    pub(super) fn of(pieces: &[HostMatrix<'_>]) -> Option<Self> {
        let (mut values, mut rows, mut shape) = (Vec::new(), Vec::new(), None);
        for piece in pieces {
            let Encoding::Scaled(ScaledCodes { scales, scale_rows, scale_cols, .. }) = piece.encoding else { continue };
            let width = piece.cols.div_ceil(scale_cols);
            let first = (values.len() / width.max(1)) as u32;
            rows.extend(scale_rows.iter().map(|row| first + row));
            values.extend(scales.iter().map(|scale| scale * UNIT));
            shape = Some((scale_cols, width));
        }
        let (cols, width) = shape?;
        assert!(width <= 1 || cols.is_multiple_of(2), "{cols} columns that share a scale, which come in pairs");
        // Columns past the last row multiply zeros; any scale will do.
        rows.resize(rows.len().next_multiple_of(PANEL), 0);
        Some(Self { values, rows, cols, width })
    }

    /// The first k behind `k` with other scales.
    pub(super) fn end(&self, k: usize) -> usize {
        if self.width <= 1 { usize::MAX } else { (k / self.cols + 1) * self.cols }
    }

    /// Those of a panel's columns at `k`.
    #[inline(always)]
    pub(super) fn panel(&self, panel: usize, k: usize) -> [f32; PANEL] {
        let group = if self.width <= 1 { 0 } else { k / self.cols };
        let rows = &self.rows[panel * PANEL..][..PANEL];
        std::array::from_fn(|column| self.values[rows[column] as usize * self.width + group])
    }
}
