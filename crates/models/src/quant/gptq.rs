//! `gptq` (arXiv 2210.17323): weights of two, three, four or eight bits, with a scale and a zero point for each group
//! of inputs of an output.
//!
//! ```text
//! X.qweight  [in * bits / 32, out]      int32: codes of an output follow each other along the inputs
//! X.qzeros   [groups, out * bits / 32]  int32: zero points, less one unless checkpoint_format is gptq_v2
//! X.scales   [groups, out]              weight = (q - zero) * scale
//! X.g_idx    [in]                       int32: the group of each input, where desc_act shuffles them
//! ```
//! Modules that `dynamic` or `modules_in_block_to_quantize` leave out are stored as plain numbers, and found so;
//! modules to which `dynamic` gives other bits or groups are found by the shapes of their tensors.

use std::borrow::Cow;

use kernels::ops::{ALL_COLUMNS, DType, InputRounding, Levels, Zeros};
use model_spec::{ConfigError, ConfigFile};
use safetensors::Dtype;

use super::grouped::{CodeMatrix, Grouped, GroupedMethod, Meaning, dummy_codes};
use super::packed::{Numbers, check, code_bits, read_words, stem, whole_shape};
use super::stored_codes::{StoredCodes, words};
use super::{Quantized, group_size};
use crate::error::LoadError;
use crate::weights::{
    Code, Content, DummyFormat, Element, Made, RandomTensor, RandomWeight, Slice, Tensor, Tensors, integers,
};

/// Bits that a code may have.
const BITS: [usize; 4] = [2, 3, 4, 8];

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    let bits = config.size_or("bits", 4)?;
    if !BITS.contains(&bits) {
        return Err(config.unsupported("bits", "2, 3, 4 and 8 bits are supported"));
    }
    let less = match config.text_or("checkpoint_format", "gptq")?.as_str() {
        "gptq" => 1,
        "gptq_v2" => 0,
        _ => return Err(config.unsupported("checkpoint_format", "gptq and gptq_v2 are supported")),
    };
    let group = group_size(config, 128)?;
    Ok(Quantized { weights: Some(Box::new(Grouped(Gptq { bits, group, less }))), ..Quantized::default() })
}

/// The method.
struct Gptq {
    bits: usize,
    /// Inputs that share a scale, or [`ALL_COLUMNS`].
    group: usize,
    /// What zero points are stored less than they are.
    less: u8,
}

/// A weight's own bits and groups.
struct Scheme {
    bits: usize,
    group: usize,
    groups: usize,
}

impl GroupedMethod for Gptq {
    fn find<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<CodeMatrix<'a>>, LoadError> {
        let Some(stem) = stem(slice, tensors) else { return Ok(None) };
        let Some(weights) = tensors.get(&format!("{stem}qweight")) else { return Ok(None) };
        let [zeros, scales] = ["qzeros", "scales"].map(|end| tensors.find(&format!("{stem}{end}")));
        let (zeros, scales) = (zeros?, scales?);
        let shape = whole_shape(slice).ok_or_else(|| weights.misshapen(slice.stored_shape()))?;
        let [outputs, inputs] = shape;
        let Scheme { bits, group, groups } = self.scheme(&weights, &scales, inputs)?;
        let line = words(outputs, bits);
        let (codes, zero_words) = (
            read_words(&weights, [words(inputs, bits), outputs], tensors)?,
            read_words(&zeros, [groups, line], tensors)?,
        );
        let scales = Numbers::read(&scales, &[groups, outputs], tensors)?;
        let g_idx = tensors.get(&format!("{stem}g_idx"));
        let order = g_idx.map(|tensor| order(&tensor, [inputs, group, groups], tensors)).transpose()?.flatten();
        let (less, mask) = (self.less, ((1_u32 << bits) - 1) as u8);
        let zero = move |output: usize, group: usize| {
            zero_words.bits(group * line, 1, output * bits, bits).wrapping_add(less) & mask
        };
        // Codes of two and three bits move up to the middle of four.
        let middle = 1 << (bits - 1);
        let symmetric = (0..groups).all(|group| (0..outputs).all(|output| zero(output, group) == middle));
        let lift = if symmetric { code_bits(bits).middle() - middle } else { 0 };
        Ok(Some(CodeMatrix {
            shape,
            bits: code_bits(bits),
            group,
            scale_type: scales.dtype,
            codes: StoredCodes::along_columns(codes, [outputs, inputs, bits]).lifted(lift),
            scale: scales.by_group(outputs),
            meaning: if symmetric { Meaning::Symmetric } else { Meaning::Zeros(Box::new(zero)) },
            groups: order,
            input: InputRounding::None,
            upright: false,
        }))
    }

    fn dummy(&self) -> Option<DummyFormat> {
        let levels = Levels::Integers(Zeros::Middle);
        Some(DummyFormat::of(dummy_codes(code_bits(self.bits), self.group, levels)))
    }

    fn made(&self, weight: &RandomWeight<'_>) -> Made {
        let ([outputs, inputs], bits, stem) = (weight.shape, self.bits, weight.stem());
        if weight.experts.is_some() {
            return Made::Unknown;
        }
        let groups = weight.groups(self.group);
        let middle = (1_u32 << (bits - 1)) - u32::from(self.less);
        let group_of = |input: usize| if self.group == ALL_COLUMNS { 0 } else { (input / self.group) as i32 };
        let order = Content::Given((0..inputs).flat_map(|input| group_of(input).to_le_bytes()).collect());
        Made::Tensors(vec![
            RandomTensor::drawn(
                format!("{stem}qweight"),
                Dtype::I32,
                vec![words(inputs, bits), outputs],
                integers(bits),
            ),
            RandomTensor::words(format!("{stem}qzeros"), vec![groups, words(outputs, bits)], middle, bits),
            RandomTensor::filled(
                format!("{stem}scales"),
                DType::F16,
                vec![groups, outputs],
                weight.integer_scale(bits),
            ),
            RandomTensor { name: format!("{stem}g_idx"), dtype: Dtype::I32, shape: vec![inputs], content: order },
        ])
    }
}

impl Gptq {
    /// Of a weight: as the config says, unless the shapes of its tensors tell of an override.
    fn scheme(&self, weights: &Tensor<'_>, scales: &Tensor<'_>, inputs: usize) -> Result<Scheme, LoadError> {
        let found = weights.shape.first().copied().unwrap_or(0);
        let fits = |bits: &usize| words(inputs, *bits) == found;
        let bits = std::iter::once(self.bits).chain(BITS).find(fits);
        let bits = bits.ok_or_else(|| weights.misshapen(vec![words(inputs, self.bits), inputs]))?;
        let groups = scales.shape.first().copied().unwrap_or(0).max(1);
        let asked = if self.group == ALL_COLUMNS { inputs } else { self.group };
        let group = match groups {
            1 => ALL_COLUMNS,
            _ if inputs.div_ceil(asked) == groups => asked,
            _ => inputs.div_ceil(groups),
        };
        Ok(Scheme { bits, group, groups })
    }
}

/// The group of each input; absent where they are in order.
pub(super) fn order(
    tensor: &Tensor<'_>,
    [inputs, group, groups]: [usize; 3],
    tensors: Tensors<'_>,
) -> Result<Option<Vec<u32>>, LoadError> {
    check(tensor, &[inputs], Element::Code(Code::I32))?;
    let bytes: Cow<'_, [u8]> = tensors.files.bytes(&tensor.name)?;
    let order: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
    if order.iter().any(|found| *found as usize >= groups) {
        return Err(tensor.invalid("it names a group that has no scale"));
    }
    let in_order = order.iter().enumerate().all(|(input, found)| input / group == *found as usize);
    Ok((!in_order).then_some(order))
}
