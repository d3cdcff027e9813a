//! MXFP4 (OCP Microscaling Formats 1.0): blocks of 32 values of four bits, each block with a power of two as its scale.
//!
//! A matrix `[rows, cols]` is stored as `{name}_blocks` `[rows, cols / 32, 16]`, two values a byte and the low half
//! first, and `{name}_scales` `[rows, cols / 32]`, exponents plus 127, also where the plain weight would lie the other
//! way round. Every value is a bf16 exactly, and becomes one while it is loaded.

use std::borrow::Cow;

use half::bf16;
use kernels::ops::DType;
use model_spec::{ConfigError, ConfigFile};

use super::{Quantization, Quantized};
use crate::error::LoadError;
use crate::weights::{Chunk, Code, Element, Fetched, Slice, Stored, Tensor, Tensors, spread};

/// What four bits mean: a sign, two bits of exponent, one of mantissa.
const VALUES: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
/// Bytes of a block.
const BLOCK_BYTES: usize = 16;
/// Values of a block.
const BLOCK: usize = 32;

pub(super) fn read(_: &ConfigFile) -> Result<Quantized, ConfigError> {
    Ok(Quantized { weights: Some(Box::new(Mxfp4)), ..Quantized::default() })
}

/// The method.
struct Mxfp4;

/// Two tensors that stand for one, and the slice as it is stored in them.
struct Packed<'a> {
    blocks: Tensor<'a>,
    scales: Tensor<'a>,
    slice: Slice,
}

impl Quantization for Mxfp4 {
    fn check(&self, slice: &Slice, tensors: Tensors<'_>) -> Result<Option<Stored>, LoadError> {
        let packed = Packed::find(slice, tensors)?;
        Ok(packed.map(|_| Stored::plain(DType::Bf16, slice.elements())))
    }

    fn fetch<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Fetched<'a>>, LoadError> {
        let Some(packed) = Packed::find(slice, tensors)? else { return Ok(None) };
        let bytes = Cow::Owned(packed.unpack(tensors)?);
        Ok(Some(Fetched::Plain(Chunk { dtype: DType::Bf16, bytes })))
    }

    fn is_decoded(&self) -> bool {
        true
    }
}

impl<'a> Packed<'a> {
    /// The tensors that stand for the slice's, where that is not there itself; checks that they fit it.
    fn find(slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Self>, LoadError> {
        let name = &slice.location.tensor;
        let (blocks, scales) = names(name);
        let (None, Some(blocks), Some(scales)) = (tensors.get(name), tensors.get(&blocks), tensors.get(&scales)) else {
            return Ok(None);
        };
        let mut slice = slice.clone();
        slice.location.transposed = false;
        if !shape(blocks.shape, scales.shape).is_some_and(|shape| slice.fits(&shape)) {
            return Err(blocks.misshapen(slice.stored_shape()));
        }
        for tensor in [&blocks, &scales] {
            if tensor.element != Element::Code(Code::U8) {
                return Err(tensor.mistyped());
            }
        }
        Ok(Some(Self { blocks, scales, slice }))
    }

    /// Decodes what the slice needs: its own blocks, or where it cuts through some, its matrix.
    fn unpack(&self, tensors: Tensors<'_>) -> Result<Vec<u8>, LoadError> {
        let (files, threads) = (tensors.files, tensors.threads);
        let (blocks, scales) = (files.bytes(&self.blocks.name)?, files.bytes(&self.scales.name)?);
        if let Some(whole) = self.slice.in_blocks(BLOCK) {
            let (blocks, scales) = (whole.cut(&blocks, BLOCK_BYTES, threads), whole.cut(&scales, 1, threads));
            return Ok(decode(&blocks, &scales, threads));
        }
        let (index, count) = self.slice.location.stack.map_or((0, 1), |stack| (stack.index, stack.count));
        let mine = |bytes: &Cow<'_, [u8]>| index * bytes.len() / count..(index + 1) * bytes.len() / count;
        let bytes = decode(&blocks[mine(&blocks)], &scales[mine(&scales)], threads);
        let mut alone = self.slice.clone();
        alone.location.stack = None;
        Ok(alone.cut(&bytes, DType::Bf16.size(), threads).into_owned())
    }
}

/// Names of the two tensors that stand for one.
fn names(tensor: &str) -> (String, String) {
    (format!("{tensor}_blocks"), format!("{tensor}_scales"))
}

/// The shape of what two tensors of these shapes stand for, if they fit together.
fn shape(blocks: &[usize], scales: &[usize]) -> Option<Vec<usize>> {
    let [outer @ .., BLOCK_BYTES] = blocks else { return None };
    let [rows @ .., groups] = outer else { return None };
    (outer == scales).then(|| rows.iter().copied().chain([groups * BLOCK]).collect())
}

/// Values as bf16, little-endian, decoded by so many threads.
fn decode(blocks: &[u8], scales: &[u8], threads: usize) -> Vec<u8> {
    let mut bytes = vec![0; blocks.len() * 4];
    spread(&mut bytes, BLOCK * DType::Bf16.size(), threads, |first, out| {
        let blocks = blocks[first * BLOCK_BYTES..].chunks_exact(BLOCK_BYTES).zip(&scales[first..]);
        for ((block, &scale), out) in blocks.zip(out.chunks_exact_mut(BLOCK * DType::Bf16.size())) {
            let factor = power_of_two(scale);
            let values = VALUES.map(|value| bf16::from_f32(value * factor).to_le_bytes());
            for (&pair, [low, high]) in block.iter().zip(out.as_chunks_mut::<2>().0.as_chunks_mut::<2>().0) {
                (*low, *high) = (values[usize::from(pair & 15)], values[usize::from(pair >> 4)]);
            }
        }
    });
    bytes
}

/// `2^(exponent - 127)`; 255 is no number.
fn power_of_two(exponent: u8) -> f32 {
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

    fn decoded(blocks: &[u8], scales: &[u8]) -> Vec<f32> {
        decode(blocks, scales, 1).chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
    }

    #[test]
    fn every_code_with_its_scale() {
        let pairs: Vec<u8> = (0..8).map(|i| (2 * i) | ((2 * i + 1) << 4)).collect();
        let blocks = [pairs.clone(), vec![0; 8], pairs, vec![0; 8]].concat();
        let values = decoded(&blocks, &[127, 124]);
        assert_eq!(values[..16], VALUES);
        assert_eq!(values[16..32], [0.0; 16]);
        assert_eq!(values[32..48], VALUES.map(|x| x / 8.0));
    }

    #[test]
    fn scales_at_the_edges() {
        let one = [2; BLOCK_BYTES];
        assert_eq!(decoded(&one, &[0])[0], 2.0_f32.powi(-127));
        assert_eq!(decoded(&one, &[1])[0], 2.0_f32.powi(-126));
        assert_eq!(decoded(&one, &[254])[0], 2.0_f32.powi(127));
        assert!(decoded(&one, &[255])[0].is_nan());
    }

    #[test]
    fn shapes_fit_together_or_not() {
        assert_eq!(shape(&[4, 64, 2, 16], &[4, 64, 2]), Some(vec![4, 64, 64]));
        for (blocks, scales) in [(&[4, 64, 2, 15][..], &[4, 64, 2][..]), (&[4, 64, 2, 16], &[4, 64, 3]), (&[16], &[])] {
            assert_eq!(shape(blocks, scales), None);
        }
    }
}
