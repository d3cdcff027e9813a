//! `modelopt`: what NVIDIA's Model Optimizer writes. Weights as 8-bit floats, or NVFP4 (`float4.rs`).
//!
//! ```text
//! X.weight        [out, in]  F8_E4M3
//! X.weight_scale  one number, or [out] of FP8_PER_CHANNEL_PER_TOKEN: weight = code * scale; of MXFP8 [out, in / 32]
//!                 bytes, exponents of two plus 127
//! X.input_scale   one number, of FP8
//! ```
//! Modules that `ignore` or `exclude_modules` names are stored as plain numbers, and found so.

use model_spec::{ConfigError, ConfigFile};

use super::float4::MX_BLOCK;
use super::grouped::{CodeMatrix, Grouped, GroupedMethod};
use super::input::{InputScheme, input_scale};
use super::packed::not_conv1d;
use super::scaled::{MadeScales, ScaledE4m3};
use super::{Quantization, Quantized, float4};
use crate::error::LoadError;
use crate::weights::{Code, Element, Fetched, Slice, Stored, Tensors};

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    // Some files have it one level deeper, as `hf_quant_config.json` does.
    let inner = config.object("quantization")?;
    let config = inner.as_ref().unwrap_or(config);
    let weights: Box<dyn Quantization> = match config.text_or("quant_algo", "FP8")?.to_uppercase().as_str() {
        "MIXED_PRECISION" => {
            check_layers(config)?;
            Box::new(Mixed)
        }
        name => algorithm(name).ok_or_else(|| config.unsupported("quant_algo", SUPPORTED))?,
    };
    let fp8_cache = match config.text_opt("kv_cache_quant_algo")?.as_deref() {
        None => keeps_fp8(config)?,
        Some("FP8") => true,
        Some(_) => return Err(config.unsupported("kv_cache_quant_algo", "FP8 is supported, or none")),
    };
    Ok(Quantized { weights: Some(weights), fp8_cache, ..Quantized::default() })
}

/// What is supported, for messages.
const SUPPORTED: &str = "FP8, FP8_PER_CHANNEL_PER_TOKEN, MXFP8, NVFP4 and MIXED_PRECISION of these are supported";

/// How weights are stored whose algorithm has this name.
fn algorithm(name: &str) -> Option<Box<dyn Quantization>> {
    match name {
        "FP8" => Some(floats(None, InputScheme::Static, MadeScales::Usual)),
        "FP8_PER_CHANNEL_PER_TOKEN" => Some(floats(None, InputScheme::PerToken, MadeScales::Rows)),
        "MXFP8" => Some(floats(Some([1, MX_BLOCK]), InputScheme::PerGroup(MX_BLOCK), MadeScales::Unknown)),
        "NVFP4" => Some(Box::new(Grouped(Nvfp4))),
        _ => None,
    }
}

/// Eight-bit floats.
fn floats(block: Option<[usize; 2]>, input: InputScheme, made: MadeScales) -> Box<dyn Quantization> {
    Box::new(ScaledE4m3 { block, input, made })
}

/// Fails where a layer of a mixture has weights that are not supported.
fn check_layers(config: &ConfigFile) -> Result<(), ConfigError> {
    let Some(layers) = config.object("quantized_layers")? else { return Ok(()) };
    for name in layers.keys() {
        let Some(layer) = layers.object(name)? else { continue };
        if algorithm(&layer.text_or("quant_algo", "")?).is_none() {
            return Err(layer.unsupported("quant_algo", SUPPORTED));
        }
    }
    Ok(())
}

/// The newer spelling: `kv_cache_scheme` of float and 8 bits.
fn keeps_fp8(config: &ConfigFile) -> Result<bool, ConfigError> {
    let Some(scheme) = config.object("kv_cache_scheme")? else { return Ok(false) };
    match (scheme.text_or("type", "float")?.as_str(), scheme.size_or("num_bits", 8)?) {
        ("float", 8) => Ok(true),
        _ => Err(scheme.unsupported("num_bits", "a KV cache is quantised to float of 8 bits, or not at all")),
    }
}

/// Four-bit floats.
struct Nvfp4;

impl GroupedMethod for Nvfp4 {
    fn find<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<CodeMatrix<'a>>, LoadError> {
        let tensor = tensors.get(&slice.location.tensor).filter(|_| slice.shape.len() == 2);
        let Some(weights) = tensor.filter(|tensor| tensor.element == Element::Code(Code::U8)) else { return Ok(None) };
        not_conv1d(slice, &weights)?;
        float4::modelopt(slice, weights, tensors).map(Some)
    }
}

/// Layers that differ: tensors tell which is which.
struct Mixed;

impl Mixed {
    /// How a layer is stored.
    fn of(slice: &Slice, tensors: Tensors<'_>) -> Box<dyn Quantization> {
        let name = &slice.location.tensor;
        let is_bytes = |name: &str| tensors.get(name).is_some_and(|tensor| tensor.element == Element::Code(Code::U8));
        if is_bytes(name) {
            Box::new(Grouped(Nvfp4))
        } else if is_bytes(&format!("{name}_scale")) {
            floats(Some([1, MX_BLOCK]), InputScheme::PerGroup(MX_BLOCK), MadeScales::Unknown)
        } else {
            let has_input = tensors.get(&input_scale(slice)).is_some();
            let input = if has_input { InputScheme::Static } else { InputScheme::PerToken };
            floats(None, input, MadeScales::Unknown)
        }
    }
}

impl Quantization for Mixed {
    fn check(&self, slice: &Slice, tensors: Tensors<'_>) -> Result<Option<Stored>, LoadError> {
        Self::of(slice, tensors).check(slice, tensors)
    }

    fn fetch<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Fetched<'a>>, LoadError> {
        Self::of(slice, tensors).fetch(slice, tensors)
    }

    fn is_decoded(&self) -> bool {
        false
    }
}
