//! Tensors of words and of numbers, and their checks: what GPTQ, AWQ, compressed-tensors and SqueezeLLM have in common.

use std::borrow::Cow;

use kernels::ops::{CodeBits, DType};

use super::grouped::OfGroup;
use super::stored_codes::Words;
use crate::error::LoadError;
use crate::weights::{Code, Element, Slice, Tensor, Tensors};

/// A tensor of words of this shape.
pub(super) fn read_words<'a>(
    tensor: &Tensor<'a>,
    shape: [usize; 2],
    tensors: Tensors<'a>,
) -> Result<Words<'a>, LoadError> {
    check(tensor, &shape, Element::Code(Code::I32))?;
    Ok(Words::of(tensors.files.bytes(&tensor.name)?))
}

/// Fails where a tensor has another shape or type.
pub(super) fn check(tensor: &Tensor<'_>, shape: &[usize], element: Element) -> Result<(), LoadError> {
    if tensor.shape != shape {
        return Err(tensor.misshapen(shape.to_vec()));
    }
    if tensor.element != element { Err(tensor.mistyped()) } else { Ok(()) }
}

/// Numbers of a tensor, read one by one.
pub(super) struct Numbers<'a> {
    pub dtype: DType,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Numbers<'a> {
    /// A tensor of as many numbers as `shape` says, whose shape may fold or leave out dimensions of one element.
    pub(super) fn read(tensor: &Tensor<'a>, shape: &[usize], tensors: Tensors<'a>) -> Result<Self, LoadError> {
        let long = |shape: &[usize]| shape.iter().copied().filter(|size| *size != 1).collect::<Vec<_>>();
        if long(tensor.shape) != long(shape) {
            return Err(tensor.misshapen(shape.to_vec()));
        }
        let numbers = Self { dtype: tensor.dtype()?, bytes: tensors.files.bytes(&tensor.name)? };
        let count: usize = shape.iter().product();
        if (0..count).all(|index| numbers.at(index).is_finite()) {
            return Ok(numbers);
        }
        Err(tensor.invalid("one of its numbers is not finite"))
    }

    pub(super) fn at(&self, index: usize) -> f32 {
        let at = index * self.dtype.size();
        let bytes = &self.bytes[at..at + self.dtype.size()];
        match (self.dtype, bytes) {
            (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (DType::Bf16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
            (DType::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
            _ => f32::NAN,
        }
    }

    /// Scales that lie `[groups, rows]`.
    pub(super) fn by_group(self, rows: usize) -> OfGroup<'a, f32> {
        Box::new(move |row, group| self.at(group * rows + row))
    }

    /// Scales that lie `[rows, groups]`.
    pub(super) fn by_row(self, groups: usize) -> OfGroup<'a, f32> {
        Box::new(move |row, group| self.at(row * groups + group))
    }
}

/// Outputs and inputs of the matrix that a slice is cut out of, over all experts that lie in it.
pub(super) fn whole_shape(slice: &Slice) -> Option<[usize; 2]> {
    match slice.upright().stored_shape()[..] {
        [rows, cols] => Some([rows, cols]),
        [count, rows, cols] => Some([count * rows, cols]),
        _ => None,
    }
}

/// The stem of a weight's name, where it is a matrix and its own tensor is not there.
pub(super) fn stem<'s>(slice: &'s Slice, tensors: Tensors<'_>) -> Option<&'s str> {
    let name = &slice.location.tensor;
    name.strip_suffix("weight").filter(|_| slice.shape.len() == 2 && tensors.get(name).is_none())
}

/// Why codes of a `Conv1D` are refused by some methods: tools differ in which way round they store them.
pub(super) const CONV1D: &str = "codes of a Conv1D are read by gptq, awq, auto-round, squeezellm and bitsandbytes; by \
                                 this method it may lie either way round, so leave Conv1D layers as plain numbers";

/// Fails where codes stand for a `Conv1D`.
pub(super) fn not_conv1d(slice: &Slice, tensor: &Tensor<'_>) -> Result<(), LoadError> {
    if slice.location.conv1d { Err(tensor.invalid(CONV1D)) } else { Ok(()) }
}

/// The longest groups that two lengths consist of.
pub(super) fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a.max(1) } else { greatest_common_divisor(b, a % b) }
}

/// How codes of `bits` bits are kept: of less than four as four.
pub(super) fn code_bits(bits: usize) -> CodeBits {
    if bits <= 4 { CodeBits::Four } else { CodeBits::Eight }
}
