//! What weights are stored as, and parts of them as they were fetched.

use std::borrow::Cow;

use kernels::e4m3;
use kernels::ops::{ALL_COLUMNS, DType, Encoding, HostMatrix, InputRounding, ScaledCodes, WeightFormat};

use super::cast;

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

impl<'a> Fetched<'a> {
    pub(crate) fn format(&self) -> WeightFormat {
        match self {
            Self::Plain(chunk) => WeightFormat::Plain(chunk.dtype),
            Self::Scaled(part) => WeightFormat::ScaledE4m3 { scale_cols: part.scale_cols, input: part.input },
        }
    }

    /// Bytes of what a device takes of it.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = match self {
            Self::Plain(chunk) => chunk.bytes.len(),
            Self::Scaled(part) => part.codes.len() + part.scales.len() * 4 + part.scale_rows.len() * 4,
        };
        bytes as u64
    }

    /// As a device is given it.
    pub(crate) fn piece(&self, rows: usize, cols: usize) -> HostMatrix<'_> {
        match self {
            Self::Plain(chunk) => HostMatrix::plain(chunk.dtype, rows, cols, &chunk.bytes),
            Self::Scaled(part) => {
                let ScaledPart { codes, scales, scale_rows, scale_cols, input } = part;
                let codes = ScaledCodes { codes, scales, scale_rows, scale_cols: *scale_cols, input: *input };
                HostMatrix { rows, cols, encoding: Encoding::Scaled(codes) }
            }
        }
    }

    /// Numbers: what has scales is multiplied by them and rounded to `dtype`, rows of `cols`.
    pub(crate) fn decoded(self, cols: usize, dtype: DType) -> Chunk<'a> {
        match self {
            Self::Plain(chunk) => chunk,
            Self::Scaled(part) => Chunk { dtype, bytes: Cow::Owned(part.decode(cols, dtype)) },
        }
    }
}

impl ScaledPart<'_> {
    /// Rows of `cols` numbers.
    pub(crate) fn decode(&self, cols: usize, dtype: DType) -> Vec<u8> {
        let numbers: [f32; 256] = std::array::from_fn(|code| e4m3::decode(code as u8));
        let group = if self.scale_cols == ALL_COLUMNS { cols.max(1) } else { self.scale_cols };
        let width = cols.div_ceil(group);
        let mut bytes = Vec::with_capacity(self.codes.len() * dtype.size());
        for (codes, &row) in self.codes.chunks_exact(cols.max(1)).zip(&self.scale_rows) {
            let scales = &self.scales[row as usize * width..][..width];
            for (codes, scale) in codes.chunks(group).zip(scales) {
                cast::narrow(codes.iter().map(|&code| numbers[usize::from(code)] * scale), dtype, &mut bytes);
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
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
        let decoded = |part: ScaledPart<'_>| cast::widen(DType::F32, &part.decode(3, DType::F32));
        assert_eq!(decoded(part(&[10.0, 3.0], ALL_COLUMNS)), [3.0, 6.0, 12.0, 80.0, -10.0, 5.0]);
        // The last group of a row is short.
        assert_eq!(decoded(part(&[10.0, 100.0, 3.0, 5.0], 2)), [3.0, 6.0, 20.0, 80.0, -10.0, 50.0]);
    }
}
