//! Blocks of GGUF files: each tensor names its own type.

use std::borrow::Cow;

use kernels::ops::{DType, Encoding, GgmlBlocks, GgmlType, HostMatrix, WeightFormat};

use super::{Quantization, decode_slice, float4};
use crate::error::LoadError;
use crate::weights::{BlocksPart, Chunk, Element, Fetched, Slice, Stored, Tensor, Tensors};

/// The method.
pub(crate) struct Gguf;

/// The tensor of a slice, where it consists of blocks; checks that they fit.
fn find<'a>(slice: &Slice, tensors: Tensors<'a>) -> Result<Option<(Tensor<'a>, GgmlType)>, LoadError> {
    let Some(tensor) = tensors.get(&slice.location.tensor) else { return Ok(None) };
    let Element::Blocks(kind) = tensor.element else { return Ok(None) };
    if slice.shape.len() != 2 {
        return Err(tensor.mistyped());
    }
    if !slice.fits(tensor.shape) {
        return Err(tensor.misshapen(slice.stored_shape()));
    }
    Ok(Some((tensor, kind)))
}

/// The slice as whole blocks; absent where it cuts through one.
fn whole(slice: &Slice, kind: GgmlType) -> Option<Slice> {
    slice.in_blocks(kind.block().elements)
}

impl Quantization for Gguf {
    fn check(&self, slice: &Slice, tensors: Tensors<'_>) -> Result<Option<Stored>, LoadError> {
        if let Some(matrix) = float4::ggml(slice, tensors)? {
            return Ok(Some(matrix.stored(slice)));
        }
        let Some((_, kind)) = find(slice, tensors)? else { return Ok(None) };
        Ok(Some(match whole(slice, kind) {
            Some(blocks) => {
                let bytes = (blocks.elements() * kind.block().bytes) as u64;
                Stored { format: WeightFormat::Blocks(kind), bytes }
            }
            None => Stored::plain(DType::F32, slice.elements()),
        }))
    }

    fn fetch<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Fetched<'a>>, LoadError> {
        if let Some(matrix) = float4::ggml(slice, tensors)? {
            return Ok(Some(matrix.fetch(slice, tensors.threads)));
        }
        let Some((tensor, kind)) = find(slice, tensors)? else { return Ok(None) };
        if let Some(blocks) = whole(slice, kind) {
            let bytes = tensors.cut(&tensor, &blocks, kind.block().bytes)?;
            return Ok(Some(Fetched::Blocks(BlocksPart { kind, bytes })));
        }
        let bytes = tensors.files.bytes(&tensor.name)?;
        let cols = tensor.shape.last().copied().unwrap_or(1);
        let rows = tensor.shape.iter().product::<usize>() / cols.max(1);
        let matrix = HostMatrix { rows, cols, encoding: Encoding::Blocks(GgmlBlocks { kind, bytes: &bytes }) };
        let bytes = Cow::Owned(decode_slice(&matrix, slice, tensors.threads));
        Ok(Some(Fetched::Plain(Chunk { dtype: DType::F32, bytes })))
    }

    fn is_decoded(&self) -> bool {
        false
    }
}
