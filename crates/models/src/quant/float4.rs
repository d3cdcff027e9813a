//! Weights of four-bit floats: MXFP4 (OCP Microscaling Formats 1.0, blocks of 32 with a power of two as scale) and
//! NVFP4 (blocks of 16 with an 8-bit float as scale, and one number for the tensor).
//!
//! ```text
//!                MXFP4                             NVFP4
//! gpt-oss        X_blocks  [.., out, in / 32, 16]
//!                X_scales  [.., out, in / 32]
//! compressed-    X.weight_packed  [out, in / 2]    X.weight_packed        [out, in / 2]
//! tensors        X.weight_scale   [out, in / 32]   X.weight_scale         [out, in / 16]  F8_E4M3
//!                                                  X.weight_global_scale  one number that scales are divided by
//! modelopt                                         X.weight, X.weight_scale as above, X.weight_scale_2  one number
//!                                                  that scales are multiplied by
//! GGUF           X.weight  [out, in / 32] blocks of an exponent, then codes 0 to 15 in the low
//!                halves of 16 bytes and codes 16 to 31 in the high ones
//! ```
//! Two codes a byte, the low half first but in GGUF. Scales of MXFP4 are exponents plus 127.

use std::ops::Range;

use kernels::e4m3;
use kernels::ops::{CodeBits, DType, E2M1, InputRounding};

use super::grouped::{CodeMatrix, Meaning, OfGroup};
use super::packed::{check, whole_shape};
use super::stored_codes::StoredCodes;
use crate::error::LoadError;
use crate::weights::{Code, Element, Slice, Tensor, Tensors};

/// Values of an MXFP4 block.
pub(super) const MX_BLOCK: usize = 32;
/// Bytes of one in a GGUF file.
const GGML_BYTES: usize = 17;
/// Values of an NVFP4 block.
const NV_BLOCK: usize = 16;

/// The weight whose codes are in `blocks`, with scales read so.
pub(super) fn matrix<'a>(
    blocks: &Tensor<'a>,
    shape: [usize; 2],
    group: usize,
    scale: OfGroup<'a, f32>,
    tensors: Tensors<'a>,
) -> Result<CodeMatrix<'a>, LoadError> {
    Ok(of_codes(shape, group, StoredCodes::Rows(tensors.files.bytes(&blocks.name)?), scale))
}

fn of_codes<'a>(shape: [usize; 2], group: usize, codes: StoredCodes<'a>, scale: OfGroup<'a, f32>) -> CodeMatrix<'a> {
    CodeMatrix {
        shape,
        bits: CodeBits::Four,
        group,
        // A power of two is a bf16 exactly; the product of an 8-bit float and another number is not.
        scale_type: if group == MX_BLOCK { DType::Bf16 } else { DType::F32 },
        codes,
        scale,
        meaning: Meaning::Levels(E2M1),
        groups: None,
        input: InputRounding::None,
        upright: false,
    }
}

/// The weight of a slice, where a GGUF file has it as MXFP4.
pub(super) fn ggml<'a>(slice: &Slice, tensors: Tensors<'a>) -> Result<Option<CodeMatrix<'a>>, LoadError> {
    let tensor = tensors.get(&slice.location.tensor).filter(|tensor| tensor.element == Element::Mxfp4);
    let Some(tensor) = tensor else { return Ok(None) };
    let ([_, _], [rows, cols]) = (&slice.shape[..], tensor.shape) else { return Err(tensor.mistyped()) };
    if !slice.fits(tensor.shape) {
        return Err(tensor.misshapen(slice.stored_shape()));
    }
    let (shape, line) = ([*rows, *cols], cols / MX_BLOCK * GGML_BYTES);
    let bytes = tensors.files.bytes(&tensor.name)?;
    let exponents = bytes.clone();
    let codes = Box::new(move |row: usize, cols: Range<usize>, out: &mut [u8]| {
        let blocks = &bytes[row * line..][..line];
        cols.zip(out).for_each(|(col, code)| {
            let (byte, half) = (col % MX_BLOCK % 16, col % MX_BLOCK / 16);
            *code = blocks[col / MX_BLOCK * GGML_BYTES + 1 + byte] >> (4 * half) & 15;
        });
    });
    let scale = Box::new(move |row: usize, group: usize| power_of_two(exponents[row * line + group * GGML_BYTES]));
    Ok(Some(of_codes(shape, MX_BLOCK, StoredCodes::Each(codes), scale)))
}

/// What compressed-tensors stores.
pub(super) fn compressed<'a>(
    slice: &Slice,
    stem: &str,
    weights: Tensor<'a>,
    tensors: Tensors<'a>,
) -> Result<CodeMatrix<'a>, LoadError> {
    let shape = whole_shape(slice).ok_or_else(|| weights.misshapen(slice.stored_shape()))?;
    let scales = tensors.find(&format!("{stem}weight_scale"))?;
    if scales.element == Element::Code(Code::U8) {
        return microscaled(&weights, &scales, shape, tensors);
    }
    let divisor = tensors.scalar(&format!("{stem}weight_global_scale"))?;
    if divisor == 0.0 || !divisor.is_finite() {
        return Err(weights.invalid("its weight_global_scale is zero or no number"));
    }
    two_levels(&weights, &scales, shape, move |scale| scale / divisor, tensors)
}

/// What modelopt stores.
pub(super) fn modelopt<'a>(
    slice: &Slice,
    weights: Tensor<'a>,
    tensors: Tensors<'a>,
) -> Result<CodeMatrix<'a>, LoadError> {
    let shape = whole_shape(slice).ok_or_else(|| weights.misshapen(slice.stored_shape()))?;
    let name = slice.location.tensor.clone();
    let scales = tensors.find(&format!("{name}_scale"))?;
    let factor = tensors.scalar(&format!("{name}_scale_2"))?;
    two_levels(&weights, &scales, shape, move |scale| scale * factor, tensors)
}

/// MXFP4 with codes `[rows, cols / 2]`.
fn microscaled<'a>(
    weights: &Tensor<'a>,
    scales: &Tensor<'a>,
    shape: [usize; 2],
    tensors: Tensors<'a>,
) -> Result<CodeMatrix<'a>, LoadError> {
    let ([rows, cols], groups) = (shape, shape[1] / MX_BLOCK);
    if !cols.is_multiple_of(MX_BLOCK) {
        return Err(weights.misshapen(vec![rows, cols / 2]));
    }
    check(weights, &[rows, cols / 2], Element::Code(Code::U8))?;
    check(scales, &[rows, groups], Element::Code(Code::U8))?;
    let exponents = tensors.files.bytes(&scales.name)?;
    let scale = move |row: usize, group: usize| power_of_two(exponents[row * groups + group]);
    matrix(weights, shape, MX_BLOCK, Box::new(scale), tensors)
}

/// NVFP4.
fn two_levels<'a>(
    weights: &Tensor<'a>,
    scales: &Tensor<'a>,
    shape: [usize; 2],
    whole: impl Fn(f32) -> f32 + Sync + 'a,
    tensors: Tensors<'a>,
) -> Result<CodeMatrix<'a>, LoadError> {
    let ([rows, cols], groups) = (shape, shape[1] / NV_BLOCK);
    if !cols.is_multiple_of(NV_BLOCK) {
        return Err(weights.misshapen(vec![rows, cols / 2]));
    }
    check(weights, &[rows, cols / 2], Element::Code(Code::U8))?;
    check(scales, &[rows, groups], Element::Code(Code::E4m3))?;
    let codes = tensors.files.bytes(&scales.name)?;
    let scale = move |row: usize, group: usize| whole(e4m3::decode(codes[row * groups + group]));
    matrix(weights, shape, NV_BLOCK, Box::new(scale), tensors)
}

/// `2^(exponent - 127)`; 255 is no number.
pub(super) fn power_of_two(exponent: u8) -> f32 {
    match exponent {
        255 => f32::NAN,
        // 2^-127 is below the normal numbers: its one bit is a mantissa's.
        0 => f32::from_bits(1 << 22),
        normal => f32::from_bits(u32::from(normal) << 23),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_at_the_edges() {
        assert_eq!([0, 1, 127, 254].map(power_of_two), [-127, -126, 0, 127].map(|power| 2.0_f32.powi(power)));
        assert!(power_of_two(255).is_nan());
    }
}
