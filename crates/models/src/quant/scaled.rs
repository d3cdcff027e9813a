//! Weights of 8-bit floats with scales beside them: what the FP8 checkpoints of several makers have in common.

use kernels::e4m3;
use kernels::ops::{ALL_COLUMNS, DType, InputRounding, WeightFormat};
use safetensors::Dtype;

use super::Quantization;
use super::float4::power_of_two;
use super::input::InputScheme;
use super::packed::{CONV1D, greatest_common_divisor, not_conv1d};
use crate::error::LoadError;
use crate::weights::{
    Chunk, Code, Decoding, DummyFormat, Element, Fetched, Made, RandomTensor, RandomWeight, Role, ScaledPart, Slice,
    Stored, Tensor, Tensors,
};

/// How a checkpoint's scales lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct ScaledE4m3 {
    /// Rows and columns that share a scale, where scales are of blocks.
    pub block: Option<[usize; 2]>,
    pub input: InputScheme,
    /// How scales of random weights lie.
    pub made: MadeScales,
}

/// Scales of random weights, beside [`ScaledE4m3::block`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum MadeScales {
    /// One number, or those of blocks, under the usual name.
    Usual,
    /// One number a row.
    Rows,
    /// Those of blocks, under DeepSeek's name.
    Inverse,
    /// They are no numbers.
    Unknown,
}

/// What the tensor of scales is called after a weight's own name.
const SCALES: [&str; 2] = ["_scale", "_scale_inv"];

/// Codes, the scales of all of them, and which of these a slice needs.
struct Found<'a> {
    codes: Tensor<'a>,
    scales: Tensor<'a>,
    /// Rows that share a scale.
    rows: usize,
    /// Columns that share one, or [`ALL_COLUMNS`].
    cols: usize,
}

impl Quantization for ScaledE4m3 {
    fn check(&self, slice: &Slice, tensors: Tensors<'_>) -> Result<Option<Stored>, LoadError> {
        let Some(found) = self.find(slice, tensors)? else { return Ok(None) };
        let upright = slice.upright();
        let kept = found.kept(&upright);
        self.input.rounding(slice, tensors)?;
        let bytes = upright.elements() + kept.scales() * 4;
        let format = match is_turned(slice) {
            // Turned around while it is loaded, which scales of rows cannot be.
            true => WeightFormat::Plain(DType::F32),
            false => WeightFormat::ScaledE4m3 { scale_cols: kept.cols, input: InputRounding::None },
        };
        Ok(Some(Stored { format, bytes: bytes as u64 }))
    }

    fn fetch<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Fetched<'a>>, LoadError> {
        let Some(found) = self.find(slice, tensors)? else { return Ok(None) };
        let upright = slice.upright();
        let kept = found.kept(&upright);
        let codes = tensors.cut(&found.codes, &upright, 1)?;
        if has_nan(&codes) {
            return Err(found.codes.invalid("one of its weights is not a number"));
        }
        let all = scales(&found.scales, tensors)?;
        let width = found.width();
        let line = |row: usize| kept.columns.iter().map(move |col| (row, *col));
        let scales = (kept.first_row..kept.end_row).flat_map(line).map(|(row, col)| all[row * width + col]);
        let scales: Vec<f32> = scales.collect();
        if !scales.iter().all(|scale| scale.is_finite()) {
            return Err(found.scales.invalid("a scale is a finite number"));
        }
        let input = self.input.rounding(slice, tensors)?;
        let part = ScaledPart { codes, scales, scale_rows: kept.rows, scale_cols: kept.cols, input };
        Ok(Some(match is_turned(slice) {
            true => {
                let how = Decoding { cols: upright.cols.len(), dtype: DType::F32, threads: tensors.threads };
                let bytes = upright.turned(&Fetched::Scaled(part).decoded(how).bytes);
                Fetched::Plain(Chunk { dtype: DType::F32, bytes: bytes.into() })
            }
            false => Fetched::Scaled(part),
        }))
    }

    fn is_decoded(&self) -> bool {
        false
    }

    fn dummy(&self) -> Option<DummyFormat> {
        let scale_cols = self.block.map_or(ALL_COLUMNS, |[_, cols]| cols);
        Some(DummyFormat::of(WeightFormat::ScaledE4m3 { scale_cols, input: self.input.dummy() }))
    }

    fn made(&self, weight: &RandomWeight<'_>) -> Made {
        self.made_with(weight, DType::F32)
    }
}

/// Codes that random weights are drawn from: numbers from 1 to 2, of either sign.
fn random_codes() -> [u8; 256] {
    std::array::from_fn(|byte| byte as u8 & 0x87 | 0x38)
}

/// Scales as numbers; bytes are exponents of two, plus 127.
fn scales(tensor: &Tensor<'_>, tensors: Tensors<'_>) -> Result<Vec<f32>, LoadError> {
    match tensor.element {
        Element::Code(Code::U8) => {
            Ok(tensors.files.bytes(&tensor.name)?.iter().map(|exponent| power_of_two(*exponent)).collect())
        }
        _ => tensors.numbers(tensor),
    }
}

/// Whether a code is no number. Looked for in stretches without a way out, which is as fast as memory.
fn has_nan(codes: &[u8]) -> bool {
    let found = |stretch: &[u8]| stretch.iter().fold(false, |found, code| found | (code & 0x7f == e4m3::NAN));
    codes.chunks(1 << 12).any(found)
}

/// Whether the slice is another way round than what is stored: rows of the one are columns of the other.
fn is_turned(slice: &Slice) -> bool {
    slice.location.transposed
}

impl ScaledE4m3 {
    /// See [`Quantization::made`]; scales are of this type.
    pub(super) fn made_with(&self, weight: &RandomWeight<'_>, scale_type: DType) -> Made {
        if weight.conv1d {
            return Made::Refused(CONV1D);
        }
        let ([rows, cols], name) = (weight.shape, weight.name);
        let blocks = self.block.map(|[high, wide]| vec![rows.div_ceil(high), cols.div_ceil(wide)]);
        let (ending, shape) = match self.made {
            MadeScales::Unknown => return Made::Unknown,
            _ if weight.experts.is_some() => return Made::Unknown,
            MadeScales::Usual => (SCALES[0], blocks.unwrap_or(vec![1])),
            MadeScales::Inverse => (SCALES[1], blocks.unwrap_or(vec![1])),
            MadeScales::Rows => (SCALES[0], blocks.unwrap_or(vec![rows, 1])),
        };
        let scale = weight.scale(&random_codes().map(e4m3::decode));
        let mut made = vec![
            RandomTensor::drawn(name.to_owned(), Dtype::F8_E4M3, vec![rows, cols], random_codes()),
            RandomTensor::filled(format!("{name}{ending}"), scale_type, shape, scale),
        ];
        if let InputRounding::Static(scale) = self.input.dummy() {
            made.push(RandomTensor::filled(format!("{}input_scale", weight.stem()), scale_type, vec![1], scale));
        }
        Made::Tensors(made)
    }

    /// What stands for a slice; absent where that is plain.
    fn find<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Found<'a>>, LoadError> {
        let name = &slice.location.tensor;
        let Some(codes) = tensors.get(name).filter(|_| slice.shape.len() == 2) else { return Ok(None) };
        if codes.element != Element::Code(Code::E4m3) {
            return Ok(None);
        }
        not_conv1d(slice, &codes)?;
        let upright = slice.upright();
        if !upright.fits(codes.shape) {
            return Err(codes.misshapen(upright.stored_shape()));
        }
        if slice.location.stack.is_some() || (is_turned(slice) && !slice.location.is_alone()) {
            return Err(codes.invalid("8-bit weights of several matrices in one tensor like this are not supported"));
        }
        debug_assert!(matches!(slice.role, Role::Matrix | Role::Projection | Role::UnitRows));
        let names = SCALES.map(|end| format!("{name}{end}"));
        let scales = match names.iter().find_map(|name| tensors.get(name)) {
            Some(scales) => scales,
            None => tensors.find(&names[0])?,
        };
        let (rows, cols) = self.grid(&codes, &scales)?;
        Ok(Some(Found { codes, scales, rows, cols }))
    }

    /// Rows and columns of a matrix that share a scale.
    fn grid(&self, codes: &Tensor<'_>, scales: &Tensor<'_>) -> Result<(usize, usize), LoadError> {
        let (height, width) = (codes.shape[0], codes.shape[1]);
        let blocks = self.block.map(|[rows, cols]| [height.div_ceil(rows), width.div_ceil(cols)]);
        match (scales.shape, self.block) {
            (found, Some([rows, cols])) if Some(found) == blocks.as_ref().map(|blocks| &blocks[..]) => Ok((rows, cols)),
            ([] | [1] | [1, 1], None) => Ok((height.max(1), ALL_COLUMNS)),
            ([rows] | [rows, 1], None) if *rows == height => Ok((1, ALL_COLUMNS)),
            _ => Err(scales.misshapen(blocks.map_or(vec![height, 1], |blocks| blocks.to_vec()))),
        }
    }
}

/// The scales that a slice needs: of some rows and columns of the stored ones.
struct Kept {
    first_row: usize,
    end_row: usize,
    /// For each group of the slice's columns, the stored column of its scale.
    columns: Vec<usize>,
    /// Of the slice, columns that share one.
    cols: usize,
    /// For each row of the slice, its row among these.
    rows: Vec<u32>,
}

impl Kept {
    fn scales(&self) -> usize {
        (self.end_row - self.first_row) * self.columns.len()
    }
}

impl Found<'_> {
    /// Stored scales of a row.
    fn width(&self) -> usize {
        if self.cols == ALL_COLUMNS { 1 } else { self.codes.shape[1].div_ceil(self.cols) }
    }

    fn kept(&self, slice: &Slice) -> Kept {
        let rows: Vec<usize> = slice.rows.clone().map(|row| slice.location.rows.stored(row) / self.rows).collect();
        let first_row = rows.iter().copied().min().unwrap_or(0);
        let end_row = rows.iter().max().map_or(first_row, |row| row + 1);
        let (columns, cols) = self.kept_columns(slice);
        let rows = rows.into_iter().map(|row| (row - first_row) as u32).collect();
        Kept { first_row, end_row, columns, cols, rows }
    }

    /// The stored columns of a row's scales, and of how many columns each is. Where a rank's columns begin inside a
    /// group, its groups are shorter, and some share a scale.
    fn kept_columns(&self, slice: &Slice) -> (Vec<usize>, usize) {
        let (start, end) = (slice.cols.start, slice.cols.end);
        if self.cols == ALL_COLUMNS || start == end {
            return (vec![0], ALL_COLUMNS);
        }
        let (first, last) = (start / self.cols, (end - 1) / self.cols);
        if first == last {
            return (vec![first], ALL_COLUMNS);
        }
        let cols = greatest_common_divisor(start, self.cols);
        ((start..end).step_by(cols).map(|col| col / self.cols).collect(), cols)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::weights::{FusedShard, TensorLocation};

    /// The scales that columns `cols` of a `[256, 512]` matrix with scales of 128 x 128 need.
    fn columns(cols: std::ops::Range<usize>) -> (Vec<usize>, usize) {
        let file = Path::new("f");
        let codes = Tensor { file, name: "w".to_owned(), shape: &[256, 512], element: Element::Code(Code::E4m3) };
        let scales = Tensor { name: "w_scale".to_owned(), shape: &[2, 4], ..codes.clone() };
        let found = Found { codes, scales, rows: 128, cols: 128 };
        let location = TensorLocation::from("w".to_owned());
        let slice = Slice { location, shape: vec![256, 512], rows: 0..256, cols, role: Role::Matrix };
        let kept = found.kept(&slice);
        (kept.columns, kept.cols)
    }

    #[test]
    fn codes_that_are_no_numbers_are_found() {
        let mut codes = vec![0x7e; 10_000];
        assert!(!has_nan(&codes) && !has_nan(&[]));
        for (at, code) in [(0, 0x7f), (4_096, 0xff), (9_999, 0x7f)] {
            codes[at] = code;
            assert!(has_nan(&codes), "{at}");
            codes[at] = 0xfe;
        }
    }

    /// Gate and up of a fused tensor, row by row, with a scale a row: each takes its own rows' scales.
    #[test]
    fn fused_weights_take_the_scales_of_their_rows() {
        let file = Path::new("f");
        let codes = Tensor { file, name: "w".to_owned(), shape: &[8, 4], element: Element::Code(Code::E4m3) };
        let scales = Tensor { name: "w_scale".to_owned(), shape: &[8, 1], ..codes.clone() };
        let found = Found { codes, scales, rows: 1, cols: ALL_COLUMNS };
        let [_, up] = FusedShard::split([1, 1]);
        let location = TensorLocation { rows: up, ..TensorLocation::from("w".to_owned()) };
        let slice = Slice { location, shape: vec![4, 4], rows: 1..3, cols: 0..4, role: Role::Matrix };
        let kept = found.kept(&slice);
        assert_eq!((kept.first_row, kept.end_row, kept.rows), (3, 6, vec![0, 2]));
    }

    #[test]
    fn ranks_take_the_scales_of_their_columns() {
        assert_eq!(columns(0..512), (vec![0, 1, 2, 3], 128));
        assert_eq!(columns(256..512), (vec![2, 3], 128));
        assert_eq!(columns(64..128), (vec![0], ALL_COLUMNS));
        assert_eq!(columns(448..512), (vec![3], ALL_COLUMNS));
        // The last one of a rank may be short.
        assert_eq!(columns(128..320), (vec![1, 2], 128));
        // A rank that begins inside a group has shorter ones.
        assert_eq!(columns(64..192), (vec![0, 1], 64));
        assert_eq!(columns(192..384), (vec![1, 2, 2], 64));
    }
}
