//! Codes of four or eight bits in groups of columns: what GPTQ, AWQ, compressed-tensors, bitsandbytes, MXFP4 and others
//! store, in one form.

use super::{ALL_COLUMNS, InputRounding};
use crate::ops::DType;

/// Codes whose groups of columns share a scale.
///
/// With the scale and the zero point of its group, a weight is `(code - zero) * scale`, or `levels[code] * scale` where
/// the format has levels. Codes of two and three bits widen to four.
#[derive(Clone, Copy)]
pub struct GroupedCodes<'a> {
    /// What the slices below hold.
    pub format: GroupedFormat,
    /// `[rows, format.bits.row_bytes(cols)]`. Of four bits, the low half of a byte is the earlier column.
    pub codes: &'a [u8],
    /// `[rows, groups]` of `format.scales`, little-endian, unaligned.
    pub scales: &'a [u8],
    /// `[rows, groups]`; empty unless `format` has [`Zeros::Stored`].
    pub zeros: &'a [u8],
    /// `[rows, 16]`; empty unless `format` has [`Levels::Rows`].
    pub row_levels: &'a [f32],
    /// Column `c` multiplies column `columns[c]` of the inputs; a permutation. Empty unless `format` has
    /// [`ColumnOrder::Permuted`].
    pub columns: &'a [u32],
}

/// How codes and scales lie.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct GroupedFormat {
    /// Of a code.
    pub bits: CodeBits,
    /// Columns that share a scale, at least one, the last group of a row perhaps short; or [`ALL_COLUMNS`].
    pub group: usize,
    /// Of the scales.
    pub scales: DType,
    /// What codes mean.
    pub levels: Levels,
    /// Which inputs columns multiply.
    pub order: ColumnOrder,
    /// How rows that the matrix multiplies are rounded first.
    pub input: InputRounding,
}

/// Bits of a code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CodeBits {
    /// Two codes a byte.
    Four,
    /// One code a byte.
    Eight,
}

/// What a code means before it is multiplied by its scale.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Levels {
    /// `code - zero`.
    Integers(Zeros),
    /// One of these numbers, for the whole matrix (NF4, MXFP4). Codes have four bits.
    Shared([f32; 16]),
    /// One of sixteen numbers of its row (SqueezeLLM). Codes have four bits.
    Rows,
}

/// Floats of four bits: a sign, two bits of exponent and one of mantissa (OCP Microscaling Formats 1.0). MXFP4 and
/// NVFP4 have them.
pub const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// Zero points.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Zeros {
    /// 8 of four bits, 128 of eight.
    Middle,
    /// One for each scale.
    Stored,
}

/// Which inputs columns multiply.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ColumnOrder {
    /// Each its own.
    InOrder,
    /// See [`GroupedCodes::columns`] (GPTQ's `desc_act`).
    Permuted,
}

impl CodeBits {
    /// Bytes of a row of `cols` codes.
    pub const fn row_bytes(self, cols: usize) -> usize {
        match self {
            Self::Four => cols.div_ceil(2),
            Self::Eight => cols,
        }
    }

    /// The zero point of symmetric codes.
    pub const fn middle(self) -> u8 {
        match self {
            Self::Four => 8,
            Self::Eight => 128,
        }
    }
}

impl GroupedFormat {
    /// Groups of a row of `cols` columns.
    pub const fn groups(&self, cols: usize) -> usize {
        if self.group == ALL_COLUMNS { 1 } else { cols.div_ceil(self.group) }
    }
}

impl GroupedCodes<'_> {
    /// It has what its format says.
    pub(super) fn check(&self, rows: usize, cols: usize) {
        let Self { format, scales, zeros, row_levels, columns, .. } = *self;
        assert!(format.group > 0, "groups of no columns");
        let scale_count = rows * format.groups(cols);
        assert_eq!(scales.len(), scale_count * format.scales.size(), "bytes of scales of {rows} x {cols} {format:?}");
        let zero_count = if format.levels == Levels::Integers(Zeros::Stored) { scale_count } else { 0 };
        assert_eq!(zeros.len(), zero_count, "zero points of {rows} x {cols} {format:?}");
        let level_count = if format.levels == Levels::Rows { rows * 16 } else { 0 };
        assert_eq!(row_levels.len(), level_count, "levels of {rows} x {cols} {format:?}");
        let integers = matches!(format.levels, Levels::Integers(_));
        assert!(integers || format.bits == CodeBits::Four, "levels of {:?} bits", format.bits);
        let column_count = if format.order == ColumnOrder::Permuted { cols } else { 0 };
        assert_eq!(columns.len(), column_count, "columns of {rows} x {cols} {format:?}");
        assert!(columns.iter().all(|&column| (column as usize) < cols), "a column of {cols}");
    }
}
