//! What weights are stored as, and parts of them as they were fetched.

use std::borrow::Cow;

use kernels::decode::decode;
use kernels::ops::{
    DType, Encoding, GgmlBlocks, GgmlType, GroupedCodes, GroupedFormat, HostMatrix, InputRounding, ScaledCodes,
    WeightFormat,
};

use super::{cast, spread_rows};

/// How a slice of a weight is stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Stored {
    pub format: WeightFormat,
    /// Bytes of the slice, with its scales.
    pub bytes: u64,
}

impl Stored {
    /// So many numbers.
    pub(crate) fn plain(dtype: DType, elements: usize) -> Self {
        Self { format: WeightFormat::Plain(dtype), bytes: (elements * dtype.size()) as u64 }
    }
}

/// A slice of a weight, row-major, in its stored format.
pub(crate) enum Fetched<'a> {
    Plain(Chunk<'a>),
    Scaled(ScaledPart<'a>),
    Grouped(GroupedPart<'a>),
    Blocks(BlocksPart<'a>),
}

/// Numbers, little-endian, unaligned.
pub(crate) struct Chunk<'a> {
    pub dtype: DType,
    pub bytes: Cow<'a, [u8]>,
}

/// 8-bit floats and their scales: see [`ScaledCodes`].
pub(crate) struct ScaledPart<'a> {
    pub codes: Cow<'a, [u8]>,
    pub scales: Vec<f32>,
    pub scale_rows: Vec<u32>,
    pub scale_cols: usize,
    pub input: InputRounding,
}

/// Codes in groups of columns: see [`GroupedCodes`].
pub(crate) struct GroupedPart<'a> {
    pub format: GroupedFormat,
    pub codes: Cow<'a, [u8]>,
    pub scales: Vec<u8>,
    pub zeros: Vec<u8>,
    pub row_levels: Vec<f32>,
    pub columns: Vec<u32>,
}

/// Blocks of a GGUF file: see [`GgmlBlocks`].
pub(crate) struct BlocksPart<'a> {
    pub kind: GgmlType,
    pub bytes: Cow<'a, [u8]>,
}

/// How stored weights become numbers.
#[derive(Clone, Copy)]
pub(crate) struct Decoding {
    /// Columns of the slice.
    pub cols: usize,
    /// What numbers are rounded to.
    pub dtype: DType,
    /// How many decode.
    pub threads: usize,
}

impl<'a> Fetched<'a> {
    pub(crate) fn format(&self) -> WeightFormat {
        match self {
            Self::Plain(chunk) => WeightFormat::Plain(chunk.dtype),
            Self::Scaled(part) => WeightFormat::ScaledE4m3 { scale_cols: part.scale_cols, input: part.input },
            Self::Grouped(part) => WeightFormat::Grouped(part.format),
            Self::Blocks(part) => WeightFormat::Blocks(part.kind),
        }
    }

    /// How its inputs are rounded; absent where its format asks for nothing of the kind.
    pub(crate) fn input_mut(&mut self) -> Option<&mut InputRounding> {
        match self {
            Self::Plain(_) | Self::Blocks(_) => None,
            Self::Scaled(part) => Some(&mut part.input),
            Self::Grouped(part) => Some(&mut part.format.input),
        }
    }

    /// Which input column each of its columns multiplies; empty where they are in order.
    pub(crate) fn columns(&self) -> &[u32] {
        if let Self::Grouped(part) = self { &part.columns } else { &[] }
    }

    /// Bytes of what a device takes of it.
    #[cfg(test)]
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::Plain(chunk) => chunk.bytes.len(),
            Self::Scaled(part) => part.codes.len() + part.scales.len() * 4 + part.scale_rows.len() * 4,
            Self::Grouped(part) => {
                let beside = part.scales.len() + part.zeros.len() + part.row_levels.len() * 4 + part.columns.len() * 4;
                part.codes.len() + beside
            }
            Self::Blocks(part) => part.bytes.len(),
        };
        bytes as u64
    }

    /// As a device is given it.
    pub(crate) fn piece(&self, rows: usize, cols: usize) -> HostMatrix<'_> {
        let encoding = match self {
            Self::Plain(chunk) => return HostMatrix::plain(chunk.dtype, rows, cols, &chunk.bytes),
            Self::Scaled(part) => {
                let ScaledPart { codes, scales, scale_rows, scale_cols, input } = part;
                Encoding::Scaled(ScaledCodes { codes, scales, scale_rows, scale_cols: *scale_cols, input: *input })
            }
            Self::Grouped(part) => {
                let GroupedPart { format, codes, scales, zeros, row_levels, columns } = part;
                Encoding::Grouped(GroupedCodes { format: *format, codes, scales, zeros, row_levels, columns })
            }
            Self::Blocks(BlocksPart { kind, bytes }) => Encoding::Blocks(GgmlBlocks { kind: *kind, bytes }),
        };
        HostMatrix { rows, cols, encoding }
    }

    /// Plain numbers as they are; others decoded and rounded.
    pub(crate) fn decoded(self, how: Decoding) -> Chunk<'a> {
        match self {
            Self::Plain(chunk) => chunk,
            other => {
                let codes = match &other {
                    Self::Plain(Chunk { bytes, .. }) | Self::Blocks(BlocksPart { bytes, .. }) => bytes.len(),
                    Self::Scaled(ScaledPart { codes, .. }) | Self::Grouped(GroupedPart { codes, .. }) => codes.len(),
                };
                let rows = codes / other.format().row_bytes(how.cols).max(1);
                Chunk { dtype: how.dtype, bytes: Cow::Owned(decode_rows(&other.piece(rows, how.cols), how)) }
            }
        }
    }
}

/// All rows of a matrix as numbers.
fn decode_rows(matrix: &HostMatrix<'_>, how: Decoding) -> Vec<u8> {
    spread_rows([matrix.rows, how.cols * how.dtype.size()], how.threads, || {
        let mut values = vec![0.0; how.cols];
        move |row, out: &mut [u8]| {
            decode(matrix, row..row + 1, &mut values);
            cast::narrow_into(&values, how.dtype, out);
        }
    })
}

#[cfg(test)]
mod tests {
    use kernels::e4m3;
    use kernels::ops::ALL_COLUMNS;

    use super::*;

    #[test]
    fn codes_are_decoded_with_the_scales_of_their_groups() {
        let codes: Vec<u8> = [1.0, 2.0, 4.0, 8.0, -1.0, 0.5].map(e4m3::encode).to_vec();
        let part = |scales: &[f32], scale_cols| ScaledPart {
            codes: Cow::Borrowed(&codes),
            scales: scales.to_vec(),
            scale_rows: vec![1, 0],
            scale_cols,
            input: InputRounding::None,
        };
        let how = Decoding { cols: 3, dtype: DType::F32, threads: 2 };
        let decoded = |part: ScaledPart<'_>| cast::widen(DType::F32, &Fetched::Scaled(part).decoded(how).bytes);
        assert_eq!(decoded(part(&[10.0, 3.0], ALL_COLUMNS)), [3.0, 6.0, 12.0, 80.0, -10.0, 5.0]);
        // The last group of a row is short.
        assert_eq!(decoded(part(&[10.0, 100.0, 3.0, 5.0], 2)), [3.0, 6.0, 20.0, 80.0, -10.0, 50.0]);
    }
}
