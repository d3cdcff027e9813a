//! Words of four bytes that hold several codes, and tensors of them: what GPTQ, AWQ, compressed-tensors and SqueezeLLM
//! have in common.

use std::borrow::Cow;

use kernels::ops::{CodeBits, DType};

use super::grouped::{OfGroup, StoredCodes};
use crate::error::LoadError;
use crate::weights::{Code, Element, Slice, Tensor, Tensors};

/// Bits of a word.
const WORD: usize = 32;

/// A stored tensor's bytes, to be read here and there.
pub(super) struct Words<'a>(Cow<'a, [u8]>);

impl<'a> Words<'a> {
    /// A tensor of words of this shape.
    pub(super) fn read(tensor: &Tensor<'a>, shape: [usize; 2], tensors: Tensors<'a>) -> Result<Self, LoadError> {
        check(tensor, &shape, Element::Code(Code::I32))?;
        Ok(Self(tensors.files.bytes(&tensor.name)?))
    }

    /// Those that lie in some bytes.
    #[cfg(test)]
    pub(super) fn of(bytes: impl Into<Cow<'a, [u8]>>) -> Self {
        Self(bytes.into())
    }

    pub(super) fn at(&self, index: usize) -> u32 {
        let bytes = &self.0[index * 4..][..4];
        u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
    }

    /// `bits` bits from bit `first` of a line of words on, which are `stride` words from each other; they may lie in
    /// two words.
    pub(super) fn bits(&self, line: usize, stride: usize, first: usize, bits: usize) -> u8 {
        let (word, shift) = (first / WORD, first % WORD);
        let low = u64::from(self.at(line + word * stride));
        let high = if shift + bits > WORD { u64::from(self.at(line + (word + 1) * stride)) } else { 0 };
        ((low | high << WORD) >> shift & ((1 << bits) - 1)) as u8
    }
}

/// Words that a line of `codes` codes takes.
pub(super) fn words(codes: usize, bits: usize) -> usize {
    (codes * bits).div_ceil(WORD)
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

/// Codes that follow each other along the inputs, each row's words one after the other: `[out, in * bits / 32]`.
pub(super) fn rows_of_codes<'a>(words: Words<'a>, [cols, bits]: [usize; 2]) -> StoredCodes<'a> {
    if is_kept(cols, bits) {
        return StoredCodes::Rows(words.0);
    }
    let line = self::words(cols, bits);
    StoredCodes::Each(Box::new(move |row, cols, out| {
        cols.zip(out).for_each(|(col, code)| *code = words.bits(row * line, 1, col * bits, bits));
    }))
}

/// Codes that follow each other along the inputs, words of all outputs beside each other: `[in * bits / 32, out]`.
pub(super) fn columns_of_codes<'a>(words: Words<'a>, [outputs, inputs, bits]: [usize; 3]) -> StoredCodes<'a> {
    if is_kept(inputs, bits) {
        return StoredCodes::Columns(words);
    }
    StoredCodes::Each(Box::new(move |output, cols, out| {
        cols.zip(out).for_each(|(input, code)| *code = words.bits(output, outputs, input * bits, bits));
    }))
}

/// Whether words of such codes are pieces of rows as devices take them.
fn is_kept(codes: usize, bits: usize) -> bool {
    (bits == 4 || bits == 8) && (codes * bits).is_multiple_of(WORD)
}

/// `codes` with this number added to each.
pub(super) fn lifted(codes: StoredCodes<'_>, lift: u8) -> StoredCodes<'_> {
    match codes {
        StoredCodes::Each(read) if lift > 0 => StoredCodes::Each(Box::new(move |row, cols, out| {
            read(row, cols, out);
            out.iter_mut().for_each(|code| *code += lift);
        })),
        codes => codes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_may_lie_in_two_words() {
        // Twelve codes of three bits in each of two columns of two words.
        let codes = [[1_u64, 7, 0, 5, 2, 6, 3, 4, 7, 1, 6, 5], [5, 5, 1, 0, 0, 7, 2, 3, 6, 4, 4, 1]];
        let packed = codes.map(|codes| codes.iter().rev().fold(0, |all, code| all << 3 | code));
        let bytes: Vec<u8> = [packed[0] as u32, packed[1] as u32, (packed[0] >> 32) as u32, (packed[1] >> 32) as u32]
            .into_iter()
            .flat_map(u32::to_le_bytes)
            .collect();
        let words = Words(Cow::Owned(bytes));
        for (column, codes) in codes.iter().enumerate() {
            for (at, code) in codes.iter().enumerate() {
                assert_eq!(u64::from(words.bits(column, 2, at * 3, 3)), *code, "{column} {at}");
            }
        }
        assert_eq!((super::words(12, 3), super::words(32, 3), super::words(8, 4)), (2, 3, 1));
    }
}
