//! Weight matrices as files and buffers hold them, each in its stored format.
//!
//! What a matrix is *stored* as ([`WeightFormat`]), what products are *computed* in ([`DType`]) and what a cache
//! *keeps* are three questions: a device multiplies 8-bit weights with bf16 activations beside an f32 cache.

mod grouped;

pub use grouped::{CodeBits, ColumnOrder, E2M1, GroupedCodes, GroupedFormat, Levels, Zeros};

use half::{bf16, f16};
use model_files::GgmlType;

use super::DType;

/// A matrix `[rows, cols]`, row-major, as it is stored.
#[derive(Clone, Copy)]
pub struct HostMatrix<'a> {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Its elements.
    pub encoding: Encoding<'a>,
}

/// Rows of blocks of a GGUF file, each with its scales inside. Their layouts are in [`crate::decode`].
#[derive(Clone, Copy)]
pub struct GgmlBlocks<'a> {
    /// What a block is.
    pub kind: GgmlType,
    /// `[rows, cols / block elements]` blocks, row-major.
    pub bytes: &'a [u8],
}

/// The elements of a stored matrix.
#[derive(Clone, Copy)]
pub enum Encoding<'a> {
    /// Numbers.
    Plain(PlainElements<'a>),
    /// 8-bit floats, each times the scale of its group.
    Scaled(ScaledCodes<'a>),
    /// Codes of four or eight bits, whose groups of columns share a scale.
    Grouped(GroupedCodes<'a>),
    /// Blocks of a GGUF file.
    Blocks(GgmlBlocks<'a>),
}

/// Numbers one after the other, little-endian; they need not be aligned.
#[derive(Clone, Copy)]
pub struct PlainElements<'a> {
    /// Of one element.
    pub dtype: DType,
    /// `rows * cols * dtype.size()` bytes.
    pub bytes: &'a [u8],
}

impl PlainElements<'_> {
    /// All elements as f32, which holds each of the types exactly.
    pub fn widened(&self) -> Vec<f32> {
        let bytes = self.bytes;
        match self.dtype {
            DType::F32 => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            DType::Bf16 => bytes.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
            DType::F16 => bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
        }
    }
}

/// Codes of [`crate::e4m3`], none of them NaN, and the scales they are multiplied by.
///
/// Row `r` belongs to the scale row `scale_rows[r]`; its columns `c` share the scale `c / scale_cols` of that. So one
/// scale a tensor is one scale row and all columns, one an output channel as many scale rows as rows, and blocks of 128
/// x 128 are 128 columns.
#[derive(Clone, Copy)]
pub struct ScaledCodes<'a> {
    /// `rows * cols` codes.
    pub codes: &'a [u8],
    /// `[any, ceil(cols / scale_cols)]`.
    pub scales: &'a [f32],
    /// The scale row of each row.
    pub scale_rows: &'a [u32],
    /// Columns that share a scale, at least one; or [`ALL_COLUMNS`].
    pub scale_cols: usize,
    /// How rows that the matrix multiplies are rounded first.
    pub input: InputRounding,
}

/// All columns of a row share a scale, however many there are.
pub const ALL_COLUMNS: usize = usize::MAX;

/// How the inputs of a product are rounded to codes times a scale, where a checkpoint asks for that. A device that
/// [gains by it](super::Load::gains_by_rounding) only with many rows leaves 16-bit inputs of few rows as they are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum InputRounding {
    /// Not at all.
    None,
    /// To [`crate::e4m3`] codes, with this scale.
    Static(f32),
    /// To [`crate::e4m3`] codes: each group of a row's columns has a scale of its own, with which its largest element
    /// becomes 448.
    Dynamic {
        /// Columns that share a scale, or [`ALL_COLUMNS`].
        cols: usize,
    },
    /// To integers from -128 to 127, with this scale.
    StaticInt8(f32),
    /// To integers from -127 to 127: each row has a scale of its own, with which the largest of its elements becomes
    /// 127.
    DynamicInt8 {
        /// Elements of at least this size stay as they are, and do not count for the scale (LLM.int8's outliers);
        /// infinite where there are none.
        outliers: f32,
    },
}

/// What a matrix is stored as.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum WeightFormat {
    /// Numbers.
    Plain(DType),
    /// See [`ScaledCodes`].
    ScaledE4m3 {
        /// Columns that share a scale, or [`ALL_COLUMNS`].
        scale_cols: usize,
        /// How inputs are rounded.
        input: InputRounding,
    },
    /// See [`GroupedCodes`].
    Grouped(GroupedFormat),
    /// See [`GgmlBlocks`].
    Blocks(GgmlType),
}

impl WeightFormat {
    /// Bytes of a row of `cols` elements, scales that lie beside it aside.
    pub const fn row_bytes(self, cols: usize) -> usize {
        match self {
            Self::Plain(dtype) => cols * dtype.size(),
            Self::ScaledE4m3 { .. } => cols,
            Self::Grouped(format) => format.bits.row_bytes(cols),
            Self::Blocks(kind) => cols.div_ceil(kind.block().elements) * kind.block().bytes,
        }
    }

    /// How rows that such a matrix multiplies are rounded first.
    pub const fn input(self) -> InputRounding {
        match self {
            Self::Plain(_) | Self::Blocks(_) => InputRounding::None,
            Self::ScaledE4m3 { input, .. } => input,
            Self::Grouped(format) => format.input,
        }
    }
}

/// What a matrix is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MatrixUse {
    /// [`Ops::matmul`](super::Ops::matmul) alone.
    Linear,
    /// That, and [`Load::table_of`](super::Load::table_of).
    Table,
    /// [`Ops::expert_matmul`](super::Ops::expert_matmul).
    Experts,
    /// [`Ops::head_matmul`](super::Ops::head_matmul).
    Heads,
}

/// What pieces that lie below each other make.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct StackedShape {
    /// Of all pieces.
    pub format: WeightFormat,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
}

impl<'a> HostMatrix<'a> {
    /// A matrix of numbers.
    pub const fn plain(dtype: DType, rows: usize, cols: usize, bytes: &'a [u8]) -> Self {
        Self { rows, cols, encoding: Encoding::Plain(PlainElements { dtype, bytes }) }
    }

    /// How it is stored.
    pub const fn format(&self) -> WeightFormat {
        match self.encoding {
            Encoding::Plain(PlainElements { dtype, .. }) => WeightFormat::Plain(dtype),
            Encoding::Scaled(ScaledCodes { scale_cols, input, .. }) => WeightFormat::ScaledE4m3 { scale_cols, input },
            Encoding::Grouped(GroupedCodes { format, .. }) => WeightFormat::Grouped(format),
            Encoding::Blocks(GgmlBlocks { kind, .. }) => WeightFormat::Blocks(kind),
        }
    }

    /// Its elements, scales that lie beside them aside: `rows * format.row_bytes(cols)` bytes.
    pub const fn bytes(&self) -> &'a [u8] {
        match self.encoding {
            Encoding::Plain(PlainElements { bytes, .. }) => bytes,
            Encoding::Scaled(ScaledCodes { codes, .. }) | Encoding::Grouped(GroupedCodes { codes, .. }) => codes,
            Encoding::Blocks(GgmlBlocks { bytes, .. }) => bytes,
        }
    }

    /// What the matrix of pieces that lie below each other is.
    ///
    /// # Panics
    /// When there are none, they differ in width, format or order of columns, or one holds another number of bytes or
    /// scales than its shape says.
    pub fn stacked(pieces: &[HostMatrix<'_>]) -> StackedShape {
        let [first, ..] = pieces else { panic!("a matrix of no pieces") };
        let (format, cols) = (first.format(), first.cols);
        for piece in pieces {
            piece.check();
            let (rows, width, found) = (piece.rows, piece.cols, piece.format());
            assert_eq!((found, width), (format, cols), "{rows} x {width} {found:?} in a matrix of {cols} columns");
            assert_eq!(piece.columns(), first.columns(), "orders of columns");
        }
        StackedShape { format, rows: pieces.iter().map(|piece| piece.rows).sum(), cols }
    }

    /// Which input column each of its columns multiplies; empty where they are in order.
    pub const fn columns(&self) -> &'a [u32] {
        match self.encoding {
            Encoding::Grouped(GroupedCodes { columns, .. }) => columns,
            Encoding::Plain(_) | Encoding::Scaled(_) | Encoding::Blocks(_) => &[],
        }
    }

    /// It holds what its shape says.
    fn check(&self) {
        let (Self { rows, cols, .. }, format) = (*self, self.format());
        let wanted = rows.checked_mul(format.row_bytes(cols));
        assert_eq!(Some(self.bytes().len()), wanted, "bytes of {rows} x {cols} {format:?}");
        match self.encoding {
            Encoding::Plain(_) => {}
            Encoding::Scaled(codes) => codes.check(rows, cols),
            Encoding::Grouped(codes) => codes.check(rows, cols),
            Encoding::Blocks(GgmlBlocks { kind, .. }) => {
                assert!(cols.is_multiple_of(kind.block().elements), "{cols} columns of {kind:?}");
            }
        }
    }
}

impl ScaledCodes<'_> {
    /// Scales are there for every row and column.
    fn check(&self, rows: usize, cols: usize) {
        let Self { scales, scale_rows, scale_cols, .. } = *self;
        let width = cols.div_ceil(scale_cols);
        let lines = scales.len() / width.max(1);
        assert!(scale_cols > 0 && lines * width == scales.len(), "{} scales of {cols} columns", scales.len());
        assert_eq!(scale_rows.len(), rows, "scale rows, and rows");
        assert!(scale_rows.iter().all(|&row| (row as usize) < lines), "a scale row of {lines}");
    }
}
