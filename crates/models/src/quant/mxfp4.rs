//! `mxfp4`: the experts of gpt-oss, see `float4.rs`.
//!
//! A matrix `[rows, cols]` is stored as `{name}_blocks` `[rows, cols / 32, 16]` and `{name}_scales` `[rows, cols /
//! 32]`, also where the plain weight would lie the other way round.

use kernels::ops::{CodeBits, E2M1, Levels};
use model_spec::{ConfigError, ConfigFile};
use safetensors::Dtype;

use super::Quantized;
use super::float4::{MX_BLOCK, matrix, power_of_two};
use super::grouped::{CodeMatrix, Grouped, GroupedMethod, dummy_codes};
use super::packed::check;
use crate::error::LoadError;
use crate::weights::{Code, Content, DummyFormat, Element, Made, RandomTensor, RandomWeight, Slice, Tensors};

/// Bytes of a block.
const BLOCK_BYTES: usize = 16;

pub(super) fn read(_: &ConfigFile) -> Result<Quantized, ConfigError> {
    Ok(Quantized { weights: Some(Box::new(Grouped(Mxfp4))), ..Quantized::default() })
}

/// The method.
struct Mxfp4;

impl GroupedMethod for Mxfp4 {
    fn find<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<CodeMatrix<'a>>, LoadError> {
        let name = &slice.location.tensor;
        let [blocks, scales] = ["blocks", "scales"].map(|end| tensors.get(&format!("{name}_{end}")));
        let (None, Some(blocks), Some(scales)) = (tensors.get(name), blocks, scales) else { return Ok(None) };
        let mut upright = slice.clone();
        upright.location.transposed = false;
        let shape = shape(blocks.shape, scales.shape).filter(|shape| upright.fits(shape));
        let Some([outer @ .., cols]) = shape.as_deref() else { return Err(blocks.misshapen(slice.stored_shape())) };
        check(&blocks, blocks.shape, Element::Code(Code::U8))?;
        check(&scales, scales.shape, Element::Code(Code::U8))?;
        let (exponents, groups) = (tensors.files.bytes(&scales.name)?, cols / MX_BLOCK);
        let scale = move |row: usize, group: usize| power_of_two(exponents[row * groups + group]);
        matrix(&blocks, [outer.iter().product(), *cols], MX_BLOCK, Box::new(scale), tensors)
            .map(|matrix| Some(CodeMatrix { upright: true, ..matrix }))
    }

    fn is_decoded(&self) -> bool {
        true
    }

    fn dummy(&self) -> Option<DummyFormat> {
        let format = dummy_codes(CodeBits::Four, MX_BLOCK, Levels::Shared(E2M1));
        Some(DummyFormat { format, experts_only: true })
    }

    fn made(&self, weight: &RandomWeight<'_>) -> Made {
        let Some(experts) = weight.experts else { return Made::Plain };
        let ([rows, cols], name) = (weight.shape, weight.name);
        if !cols.is_multiple_of(MX_BLOCK) {
            return Made::Unknown;
        }
        let exponent = (weight.scale(&E2M1).log2().round() + 127.0) as u8;
        let groups = cols / MX_BLOCK;
        let blocks = vec![experts, rows, groups, BLOCK_BYTES];
        Made::Tensors(vec![
            RandomTensor::drawn(format!("{name}_blocks"), Dtype::U8, blocks, std::array::from_fn(|byte| byte as u8)),
            RandomTensor {
                name: format!("{name}_scales"),
                dtype: Dtype::U8,
                shape: vec![experts, rows, groups],
                content: Content::Repeated(vec![exponent]),
            },
        ])
    }
}

/// The shape of what two tensors of these shapes stand for, if they fit together.
fn shape(blocks: &[usize], scales: &[usize]) -> Option<Vec<usize>> {
    let [outer @ .., BLOCK_BYTES] = blocks else { return None };
    let [rows @ .., groups] = outer else { return None };
    (outer == scales).then(|| rows.iter().copied().chain([groups * MX_BLOCK]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_fit_together_or_not() {
        assert_eq!(shape(&[4, 64, 2, 16], &[4, 64, 2]), Some(vec![4, 64, 64]));
        for (blocks, scales) in [(&[4, 64, 2, 15][..], &[4, 64, 2][..]), (&[4, 64, 2, 16], &[4, 64, 3]), (&[16], &[])] {
            assert_eq!(shape(blocks, scales), None);
        }
    }
}
