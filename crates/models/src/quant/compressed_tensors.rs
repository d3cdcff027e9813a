//! `compressed-tensors`: what llm-compressor writes. Weights as integers or floats of four or eight bits, or plain
//! weights beside a KV cache of 8-bit floats; groups of modules may differ.
//!
//! ```text
//! packed integers  X.weight_packed      [out, in * bits / 32]  int32: codes follow each other along the inputs
//!                  X.weight_scale       [out, groups]          weight = (q - zero) * scale
//!                  X.weight_zero_point  [out * bits / 32, groups] int32, or [out, groups] int8; absent: the middle
//!                  X.weight_g_idx       [in]                   the group of each input, where actorder is "group"
//! integers         X.weight             [out, in]  I8, with scales and zero points as above
//! 8-bit floats     X.weight             [out, in]  F8_E4M3, with X.weight_scale: one number, [out, 1], or [out / rows,
//!                                       in / cols] of a block, rounded up; [out, in / 32] of a group, where bytes
//!                                       are exponents of two plus 127 (MXFP8)
//! 4-bit floats     see `float4.rs`
//! activations      X.input_scale        one number, where they have static scales
//! ```
//! Modules that `ignore` names are stored as plain numbers, and found so. Bits, groups and zero points are found by the
//! tensors; which group of modules one belongs to counts where they differ in blocks or in how inputs are rounded.

mod scheme;

use std::borrow::Cow;

use kernels::ops::{ALL_COLUMNS, CodeBits, InputRounding};
use model_spec::{ConfigError, ConfigFile};

use super::grouped::{CodeMatrix, GroupedMethod, Meaning};
use super::packed::{Numbers, check, code_bits, not_conv1d, read_words, stem, whole_shape};
use super::scaled::{MadeScales, ScaledE4m3};
use super::stored_codes::{StoredCodes, words};
use super::{Quantization, Quantized, float4, gptq};
use crate::error::LoadError;
use crate::weights::{Code, DummyFormat, Element, Fetched, Made, RandomWeight, Slice, Stored, Tensor, Tensors};
use scheme::Scheme;

/// Bits that packed integers may have.
const BITS: [usize; 3] = [2, 4, 8];

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    let fp8_cache = scheme::keeps_fp8(config)?;
    let schemes = scheme::read(config)?;
    if schemes.is_empty() {
        // Weights are plain; the cache is not.
        return match fp8_cache {
            true => Ok(Quantized { fp8_cache, ..Quantized::default() }),
            false => Err(config.unsupported("config_groups", "it quantises neither weights nor the KV cache")),
        };
    }
    let weights: Box<dyn Quantization> = Box::new(CompressedTensors { schemes });
    Ok(Quantized { weights: Some(weights), fp8_cache, ..Quantized::default() })
}

/// The method.
struct CompressedTensors {
    schemes: Vec<Scheme>,
}

impl Quantization for CompressedTensors {
    fn check(&self, slice: &Slice, tensors: Tensors<'_>) -> Result<Option<Stored>, LoadError> {
        let scheme = Scheme::of(&self.schemes, &slice.location.tensor);
        match (Codes { scheme }).find(slice, tensors)? {
            None => scheme.floats().check(slice, tensors),
            Some(matrix) => Ok(Some(matrix.stored(slice))),
        }
    }

    fn fetch<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Fetched<'a>>, LoadError> {
        let scheme = Scheme::of(&self.schemes, &slice.location.tensor);
        match (Codes { scheme }).find(slice, tensors)? {
            None => scheme.floats().fetch(slice, tensors),
            Some(matrix) => Ok(Some(matrix.fetch(slice, tensors.threads))),
        }
    }

    fn is_decoded(&self) -> bool {
        false
    }

    fn dummy(&self) -> Option<DummyFormat> {
        let [scheme] = self.schemes.as_slice() else { return None };
        Some(DummyFormat::of(scheme.dummy()?))
    }

    fn made(&self, weight: &RandomWeight<'_>) -> Made {
        Scheme::of(&self.schemes, weight.name).made(weight)
    }
}

impl Scheme {
    /// Weights of 8-bit floats.
    fn floats(&self) -> ScaledE4m3 {
        ScaledE4m3 { block: self.block, input: self.input, made: MadeScales::Unknown }
    }
}

/// A module's weights, where they are codes in groups.
struct Codes<'s> {
    scheme: &'s Scheme,
}

impl GroupedMethod for Codes<'_> {
    fn find<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<CodeMatrix<'a>>, LoadError> {
        let input = self.scheme.input.rounding(slice, tensors);
        if let Some(stem) = stem(slice, tensors) {
            let Some(weights) = tensors.get(&format!("{stem}weight_packed")) else { return Ok(None) };
            not_conv1d(slice, &weights)?;
            return match weights.element {
                Element::Code(Code::U8) => float4::compressed(slice, stem, weights, tensors).map(Some),
                _ => packed(slice, stem, weights, tensors, input?).map(Some),
            };
        }
        let name = &slice.location.tensor;
        match tensors.get(name).filter(|tensor| tensor.element == Element::Code(Code::I8) && slice.shape.len() == 2) {
            Some(weights) => {
                not_conv1d(slice, &weights)?;
                bytes(slice, weights, tensors, input?).map(Some)
            }
            None => Ok(None),
        }
    }
}

/// Scales and zero points of a matrix.
struct Grid<'a> {
    scales: Numbers<'a>,
    /// Columns that share a scale, or [`ALL_COLUMNS`].
    group: usize,
    groups: usize,
    /// Each row has scales of its own.
    by_row: bool,
}

impl<'a> Grid<'a> {
    fn read(stem: &str, [rows, cols]: [usize; 2], tensors: Tensors<'a>) -> Result<Self, LoadError> {
        let tensor = tensors.find(&format!("{stem}weight_scale"))?;
        let (height, groups) = match *tensor.shape {
            [] | [1] | [1, 1] => (1, 1),
            [height] => (height, 1),
            [height, groups] => (height, groups.max(1)),
            _ => return Err(tensor.misshapen(vec![rows, 1])),
        };
        let scales = Numbers::read(&tensor, &[height, groups], tensors)?;
        if height != rows && height * groups != 1 {
            return Err(tensor.misshapen(vec![rows, groups]));
        }
        let group = if groups == 1 { ALL_COLUMNS } else { cols.div_ceil(groups) };
        Ok(Self { scales, group, groups, by_row: height == rows })
    }

    /// Zero points, where there are any; `middle` is that of the codes.
    fn zeros(&self, stem: &str, [rows, bits]: [usize; 2], tensors: Tensors<'a>) -> Result<Meaning<'a>, LoadError> {
        let Some(tensor) = tensors.get(&format!("{stem}weight_zero_point")) else { return Ok(Meaning::Symmetric) };
        let (groups, by_row) = (self.groups, self.by_row);
        let line = move |row: usize| if by_row { row } else { 0 };
        if tensor.element == Element::Code(Code::I32) {
            let zeros = read_words(&tensor, [words(rows, bits), groups], tensors)?;
            let zero = move |row: usize, group: usize| zeros.bits(group, groups, line(row) * bits, bits);
            return Ok(Meaning::Zeros(Box::new(zero)));
        }
        let height = if by_row { rows } else { 1 };
        let shape = if tensor.shape.len() == 2 { vec![height, groups] } else { vec![height * groups] };
        check(&tensor, &shape, Element::Code(Code::I8))?;
        let (zeros, middle): (Cow<'a, [u8]>, u8) = (tensors.files.bytes(&tensor.name)?, 1 << (bits - 1));
        if zeros.iter().all(|zero| *zero == 0) {
            return Ok(Meaning::Symmetric);
        }
        Ok(Meaning::Zeros(Box::new(move |row, group| zeros[line(row) * groups + group].wrapping_add(middle))))
    }

    fn scale(self) -> super::grouped::OfGroup<'a, f32> {
        let (groups, by_row, scales) = (self.groups, self.by_row, self.scales);
        Box::new(move |row, group| scales.at(if by_row { row * groups + group } else { group }))
    }
}

/// Integers in words.
fn packed<'a>(
    slice: &Slice,
    stem: &str,
    weights: Tensor<'a>,
    tensors: Tensors<'a>,
    input: InputRounding,
) -> Result<CodeMatrix<'a>, LoadError> {
    let shape = whole_shape(slice).ok_or_else(|| weights.misshapen(slice.stored_shape()))?;
    let [rows, cols] = shape;
    let line = weights.shape.last().copied().unwrap_or(0);
    let bits = BITS.into_iter().find(|bits| words(cols, *bits) == line);
    let bits = bits.ok_or_else(|| weights.misshapen(vec![rows, words(cols, 4)]))?;
    let codes = read_words(&weights, [rows, line], tensors)?;
    let grid = Grid::read(stem, shape, tensors)?;
    let order = tensors.get(&format!("{stem}weight_g_idx"));
    let order =
        order.map(|tensor| gptq::order(&tensor, [cols, grid.group, grid.groups], tensors)).transpose()?.flatten();
    let meaning = grid.zeros(stem, [rows, bits], tensors)?;
    // Two bits' middle is not that of the four in which they are kept.
    let lift = match meaning {
        Meaning::Symmetric => code_bits(bits).middle() - (1 << (bits - 1)),
        _ => 0,
    };
    Ok(CodeMatrix {
        shape,
        bits: code_bits(bits),
        group: grid.group,
        scale_type: grid.scales.dtype,
        codes: StoredCodes::along_rows(codes, [cols, bits]).lifted(lift),
        scale: grid.scale(),
        meaning,
        groups: order,
        input,
        upright: false,
    })
}

/// Signed integers, one a byte.
pub(super) fn bytes<'a>(
    slice: &Slice,
    weights: Tensor<'a>,
    tensors: Tensors<'a>,
    input: InputRounding,
) -> Result<CodeMatrix<'a>, LoadError> {
    let shape = whole_shape(slice).ok_or_else(|| weights.misshapen(slice.stored_shape()))?;
    if !slice.upright().fits(weights.shape) {
        return Err(weights.misshapen(slice.upright().stored_shape()));
    }
    let stem = slice.location.tensor.strip_suffix("weight").unwrap_or_default();
    let (codes, width) = (tensors.files.bytes(&weights.name)?, shape[1]);
    let grid = Grid::read(stem, shape, tensors)?;
    let meaning = grid.zeros(stem, [shape[0], 8], tensors)?;
    Ok(CodeMatrix {
        shape,
        bits: CodeBits::Eight,
        group: grid.group,
        scale_type: grid.scales.dtype,
        codes: StoredCodes::Each(Box::new(move |row, cols, out| {
            let codes = &codes[row * width..][cols];
            out.iter_mut().zip(codes).for_each(|(out, code)| *out = code.wrapping_add(128));
        })),
        scale: grid.scale(),
        meaning,
        groups: None,
        input,
        upright: false,
    })
}
