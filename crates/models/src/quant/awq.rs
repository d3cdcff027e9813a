//! `awq` (arXiv 2306.00978): weights of four bits, with a scale and a zero point for each group of inputs of an output.
//!
//! ```text
//! X.qweight  [in, out / 8]      int32: eight outputs a word, of which [`ORDER`] says which
//! X.qzeros   [in / group, out / 8]
//! X.scales   [in / group, out]  weight = (q - zero) * scale
//! ```
//! They become f32 while they are loaded. Layers that `modules_to_not_convert` names are stored as plain numbers, and
//! found so.

use std::borrow::Cow;

use kernels::ops::DType;
use model_spec::{ConfigError, ConfigFile};

use super::{Quantization, Quantized};
use crate::error::LoadError;
use crate::weights::{Chunk, Code, Element, Fetched, Slice, Stored, Tensor, Tensors, spread};

/// Outputs in a word.
const WORD: usize = 8;
/// Which output of its word the four bits at `4 * i` are of.
const ORDER: [usize; WORD] = [0, 2, 4, 6, 1, 3, 5, 7];

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    if config.size_or("bits", 4)? != 4 {
        return Err(config.unsupported("bits", "only 4 bits are supported"));
    }
    if config.text_or("version", "gemm")?.to_lowercase() != "gemm" {
        return Err(config.unsupported("version", "only the layout of gemm is supported"));
    }
    Ok(Quantized { weights: Some(Box::new(Awq { group: config.size_or("group_size", 128)? })), ..Quantized::default() })
}

/// The method.
struct Awq {
    /// Inputs that share a scale.
    group: usize,
}

/// The tensors that stand for a weight.
struct Packed<'a> {
    weights: Tensor<'a>,
    zeros: Tensor<'a>,
    scales: Tensor<'a>,
}

impl Quantization for Awq {
    fn check(&self, slice: &Slice, tensors: Tensors<'_>) -> Result<Option<Stored>, LoadError> {
        Ok(self.find(slice, tensors)?.map(|_| Stored::plain(DType::F32, slice.elements())))
    }

    fn fetch<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Fetched<'a>>, LoadError> {
        let Some(packed) = self.find(slice, tensors)? else { return Ok(None) };
        let bytes = Cow::Owned(self.decode(slice, &packed, tensors)?);
        Ok(Some(Fetched::Plain(Chunk { dtype: DType::F32, bytes })))
    }

    fn is_decoded(&self) -> bool {
        true
    }
}

impl Awq {
    /// What stands for a slice, where its own tensor is not there; checks that it fits.
    fn find<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Packed<'a>>, LoadError> {
        let name = &slice.location.tensor;
        let Some(stem) = name.strip_suffix("weight").filter(|_| tensors.get(name).is_none()) else { return Ok(None) };
        let Some(weights) = tensors.get(&format!("{stem}qweight")) else { return Ok(None) };
        let [zeros, scales] = ["qzeros", "scales"].map(|end| tensors.find(&format!("{stem}{end}")));
        let packed = Packed { weights, zeros: zeros?, scales: scales? };
        let stored = slice.upright().stored_shape();
        let [outputs, inputs] = stored[..] else { return Err(packed.weights.misshapen(stored)) };
        let groups = inputs.div_ceil(self.group);
        for (tensor, lines) in [(&packed.weights, inputs), (&packed.zeros, groups)] {
            if tensor.shape != [lines, outputs / WORD] || !outputs.is_multiple_of(WORD) {
                return Err(tensor.misshapen(vec![lines, outputs / WORD]));
            }
            if tensor.element != Element::Code(Code::I32) {
                return Err(tensor.mistyped());
            }
        }
        if packed.scales.shape != [groups, outputs] {
            return Err(packed.scales.misshapen(vec![groups, outputs]));
        }
        Ok(Some(packed))
    }

    fn decode(&self, slice: &Slice, packed: &Packed<'_>, tensors: Tensors<'_>) -> Result<Vec<u8>, LoadError> {
        let (weights, zeros) = (tensors.files.bytes(&packed.weights.name)?, tensors.files.bytes(&packed.zeros.name)?);
        let scales = tensors.numbers(&packed.scales)?;
        let (upright, outputs) = (slice.upright(), packed.scales.shape[1]);
        let (rows, cols) = (upright.rows.clone(), upright.cols.clone());
        let mut bytes = vec![0; rows.len() * cols.len() * 4];
        spread(&mut bytes, cols.len().max(1) * 4, tensors.threads, |first, part| {
            for (row, part) in part.chunks_exact_mut(cols.len().max(1) * 4).enumerate() {
                let output = upright.location.rows.stored(rows.start + first + row);
                let at = ORDER.iter().position(|of| *of == output % WORD).unwrap_or(0);
                let bits = |codes: &[u8], line: usize| {
                    codes[(line * (outputs / WORD) + output / WORD) * 4 + at / 2] >> (at % 2 * 4) & 15
                };
                for (input, to) in cols.clone().zip(part.as_chunks_mut::<4>().0) {
                    let group = input / self.group;
                    let (q, zero) = (bits(&weights, input), bits(&zeros, group));
                    let value = (f32::from(q) - f32::from(zero)) * scales[group * outputs + output];
                    *to = value.to_le_bytes();
                }
            }
        });
        Ok(if slice.location.transposed { upright.turned(&bytes) } else { bytes })
    }
}
