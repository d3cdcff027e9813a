//! `awq` (arXiv 2306.00978): weights of four bits, with a scale and a zero point for each group of inputs of an output.
//!
//! ```text
//!            version gemm          gemv
//! X.qweight  [in, out / 8]         [out, in / 8]       int32: of gemm, [`ORDER`] says which output lies where
//! X.qzeros   [in / group, out / 8] [out, width]        packed alike
//! X.scales   [in / group, out]     [out, width * 8]    weight = (q - zero) * scale
//! ```
//! A row of gemv's zero points takes `width` words, as many as its groups need, rounded up as the kernels it was made
//! for like it. Layers that `modules_to_not_convert` names are stored as plain numbers, and found so.

use kernels::ops::{ALL_COLUMNS, CodeBits, DType, InputRounding, Levels, Zeros};
use model_spec::{ConfigError, ConfigFile};
use safetensors::Dtype;

use super::grouped::{CodeMatrix, Grouped, GroupedMethod, Meaning, dummy_codes};
use super::packed::{Numbers, read_words, stem, whole_shape};
use super::stored_codes::{StoredCodes, Words};
use super::{Quantized, group_size};
use crate::error::LoadError;
use crate::weights::{DummyFormat, Made, RandomTensor, RandomWeight, Slice, Tensor, Tensors, integers};

/// Outputs in a word.
const WORD: usize = 8;
/// Which output of its word the four bits at `4 * i` are of.
pub(super) const ORDER: [usize; WORD] = [0, 2, 4, 6, 1, 3, 5, 7];

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    let bits = config.spelled(&["bits", "w_bit"]).unwrap_or("bits");
    if config.size_or(bits, 4)? != 4 {
        return Err(config.unsupported(bits, "only 4 bits are supported"));
    }
    if !config.flag_or("zero_point", true)? {
        return Err(config.unsupported("zero_point", "weights without zero points are not supported"));
    }
    let layout = match config.text_or("version", "gemm")?.to_lowercase().as_str() {
        "gemm" => Layout::Gemm,
        "gemv" => Layout::Gemv,
        _ => return Err(config.unsupported("version", "the layouts of gemm and gemv are supported")),
    };
    let group = group_size(config, 128)?;
    Ok(Quantized { weights: Some(Box::new(Grouped(Awq { group, layout }))), ..Quantized::default() })
}

/// How words lie.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    /// Eight outputs a word.
    Gemm,
    /// Eight inputs a word.
    Gemv,
}

/// The method.
struct Awq {
    /// Inputs that share a scale.
    group: usize,
    layout: Layout,
}

/// The tensors that stand for a weight.
pub(super) struct Packed<'a> {
    pub weights: Tensor<'a>,
    /// Absent: codes are signed.
    pub zeros: Option<Tensor<'a>>,
    pub scales: Tensor<'a>,
}

/// Words of eight outputs.
#[derive(Clone, Copy)]
pub(super) struct Outputs {
    /// Inputs that share a scale, or [`ALL_COLUMNS`].
    pub group: usize,
    /// Which output of its word the four bits at `4 * i` are of.
    pub order: [usize; WORD],
}

impl GroupedMethod for Awq {
    fn find<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<CodeMatrix<'a>>, LoadError> {
        let Some(stem) = stem(slice, tensors) else { return Ok(None) };
        let Some(weights) = tensors.get(&format!("{stem}qweight")) else { return Ok(None) };
        let [zeros, scales] = ["qzeros", "scales"].map(|end| tensors.find(&format!("{stem}{end}")));
        let (zeros, scales) = (zeros?, scales?);
        let shape = whole_shape(slice).ok_or_else(|| weights.misshapen(slice.stored_shape()))?;
        match self.layout {
            Layout::Gemm => {
                let outputs = Outputs { group: self.group, order: ORDER };
                outputs.matrix(Packed { weights, zeros: Some(zeros), scales }, shape, tensors).map(Some)
            }
            Layout::Gemv => self.gemv([weights, zeros, scales], shape, tensors).map(Some),
        }
    }

    fn is_decoded(&self) -> bool {
        true
    }

    fn dummy(&self) -> Option<DummyFormat> {
        Some(DummyFormat::of(dummy_codes(CodeBits::Four, self.group, Levels::Integers(Zeros::Stored))))
    }

    fn made(&self, weight: &RandomWeight<'_>) -> Made {
        let ([outputs, inputs], stem) = (weight.shape, weight.stem());
        if weight.experts.is_some() || self.layout != Layout::Gemm {
            return Made::Unknown;
        }
        let (groups, line) = (self.groups(inputs), outputs / WORD);
        let scale = weight.integer_scale(4);
        Made::Tensors(vec![
            RandomTensor::drawn(format!("{stem}qweight"), Dtype::I32, vec![inputs, line], integers(4)),
            RandomTensor::words(format!("{stem}qzeros"), vec![groups, line], 8, 4),
            RandomTensor::filled(format!("{stem}scales"), DType::F16, vec![groups, outputs], scale),
        ])
    }
}

impl Outputs {
    /// The weight of these outputs and inputs.
    pub(super) fn matrix<'a>(
        self,
        from: Packed<'a>,
        [outputs, inputs]: [usize; 2],
        all: Tensors<'a>,
    ) -> Result<CodeMatrix<'a>, LoadError> {
        let groups = if self.group == ALL_COLUMNS { 1 } else { inputs.div_ceil(self.group) };
        if !outputs.is_multiple_of(WORD) {
            return Err(from.weights.misshapen(vec![inputs, outputs / WORD]));
        }
        let line = outputs / WORD;
        let weights = read_words(&from.weights, [inputs, line], all)?;
        let zeros = from.zeros.map(|zeros| read_words(&zeros, [groups, line], all)).transpose()?;
        let scales = Numbers::read(&from.scales, &[groups, outputs], all)?;
        // Where the bits of outputs lie in their word.
        let shift = |output: usize| self.order.iter().position(|of| *of == output).unwrap_or(0) * 4;
        let shifts: [usize; WORD] = std::array::from_fn(shift);
        let bits = move |words: &Words<'_>, row: usize, output: usize| {
            (words.at(row * line + output / WORD) >> shifts[output % WORD] & 15) as u8
        };
        // Signed codes count from the middle when their highest bit is turned.
        let turn = if zeros.is_some() { 0 } else { CodeBits::Four.middle() };
        let meaning = zeros.map_or(Meaning::Symmetric, |zeros| {
            Meaning::Zeros(Box::new(move |output, group| bits(&zeros, group, output)))
        });
        Ok(CodeMatrix {
            shape: [outputs, inputs],
            bits: CodeBits::Four,
            group: self.group,
            scale_type: scales.dtype,
            codes: StoredCodes::Eights(Box::new(move |output, cols, out| {
                let (word, width) = (output / WORD, cols.len());
                for (at, input) in cols.enumerate() {
                    let codes = weights.at(input * line + word);
                    shifts.iter().enumerate().for_each(|(row, shift)| {
                        out[row * width + at] = (codes >> shift & 15) as u8 ^ turn;
                    });
                }
            })),
            scale: scales.by_group(outputs),
            meaning,
            groups: None,
            input: InputRounding::None,
            upright: false,
        })
    }
}

impl Awq {
    fn groups(&self, inputs: usize) -> usize {
        inputs.div_ceil(self.group)
    }

    fn gemv<'a>(
        &self,
        [weights, zeros, scales]: [Tensor<'a>; 3],
        shape: [usize; 2],
        all: Tensors<'a>,
    ) -> Result<CodeMatrix<'a>, LoadError> {
        let ([outputs, inputs], groups) = (shape, self.groups(shape[1]));
        let width = zeros.shape.last().copied().unwrap_or(0);
        if !inputs.is_multiple_of(WORD) || width * WORD < groups {
            return Err(weights.misshapen(vec![outputs, inputs / WORD]));
        }
        let weights = read_words(&weights, [outputs, inputs / WORD], all)?;
        let zeros = read_words(&zeros, [outputs, width], all)?;
        let scales = Numbers::read(&scales, &[outputs, width * WORD], all)?;
        Ok(CodeMatrix {
            shape,
            bits: CodeBits::Four,
            group: self.group,
            scale_type: scales.dtype,
            codes: StoredCodes::along_rows(weights, [inputs, 4]),
            scale: scales.by_row(width * WORD),
            meaning: Meaning::Zeros(Box::new(move |output, group| zeros.bits(output * width, 1, group * 4, 4))),
            groups: None,
            input: InputRounding::None,
            upright: false,
        })
    }
}
