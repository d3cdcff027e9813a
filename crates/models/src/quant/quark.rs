//! `quark`: what AMD's Quark writes. One scheme is for all modules, others for those that `layer_quant_config` names.
//!
//! ```text
//! 8-bit floats   X.weight        [out, in]  F8_E4M3
//!                X.weight_scale  one number, or [out]: weight = code * scale; of blocks [out / rows, in / cols], which
//!                                may be bytes, exponents of two plus 127 (MXFP8)
//! integers       X.weight        [out, in]  I8, with X.weight_scale as above; X.weight_zero_point zeros
//! MXFP4, NVFP4   X.weight        [out, in / 2]  U8, with X.weight_scale and X.weight_scale_2: see `float4.rs`
//! 4-bit integers X.weight        [in, out / 8]  I32: signed codes, or codes with X.weight_zero_point
//!                                [in / group, out / 8]; X.weight_scale [in / group, out] (as AWQ's, see `awq.rs`)
//! activations    X.input_scale   one number, where they have static scales
//! KV cache       k_proj.output_scale, v_proj.output_scale  one number
//! ```
//! Modules that `exclude` names are stored as plain numbers, and found so. What a weight is, its tensors tell; the
//! config is read for how inputs are rounded, and for what is not supported.

use kernels::ops::{ALL_COLUMNS, CodeBits, Levels, WeightFormat, Zeros};
use model_spec::{ConfigError, ConfigFile};
use regex::Regex;

use super::float4::MX_BLOCK;
use super::grouped::{CodeMatrix, GroupedMethod, dummy_codes};
use super::input::InputScheme;
use super::packed::{not_conv1d, whole_shape};
use super::scaled::{MadeScales, ScaledE4m3};
use super::{BLOCK_SIZE, Quantization, Quantized, awq, block_size, compressed_tensors, float4};
use crate::error::LoadError;
use crate::weights::{Code, DummyFormat, Element, Fetched, Made, RandomWeight, Slice, Stored, Tensors};

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    let export = config.object("export")?;
    let order = match &export {
        Some(export) => match export.text_or("pack_method", "reorder")?.as_str() {
            "reorder" => awq::ORDER,
            "order" => [0, 1, 2, 3, 4, 5, 6, 7],
            _ => return Err(export.unsupported("pack_method", "expected reorder or order")),
        },
        None => awq::ORDER,
    };
    refuse_rotations(config)?;
    let cached = export.map_or(Ok(None), |export| export.texts_opt("kv_cache_group"))?.unwrap_or_default();
    let cached: Vec<Regex> = cached.iter().map(|pattern| glob(pattern)).collect();
    let Some(global) = config.object("global_quant_config")? else {
        return Err(config.missing("global_quant_config", "how modules are quantised"));
    };
    let mut fp8_cache = false;
    let mut named = Vec::new();
    if let Some(layers) = config.object("layer_quant_config")? {
        for pattern in layers.keys() {
            let Some(layer) = layers.object(pattern)? else { continue };
            // The queries are beside the keys, and are not kept.
            if cached.iter().any(|cached| cached.is_match(pattern)) {
                fp8_cache |= keeps_fp8(&layer)?;
            } else if !pattern.ends_with("q_proj") {
                refuse_outputs(&layer)?;
            }
            named.push((glob(pattern), Scheme::read(&layer)?));
        }
    }
    refuse_outputs(&global)?;
    let weights = Quark { named, others: Scheme::read(&global)?, order };
    Ok(Quantized { weights: Some(Box::new(weights)), fp8_cache, ..Quantized::default() })
}

/// A pattern of the shell, as Python's `fnmatch` reads it.
fn glob(pattern: &str) -> Regex {
    let part = |letter: char| match letter {
        '*' => ".*".to_owned(),
        '?' => ".".to_owned(),
        letter => regex::escape(letter.encode_utf8(&mut [0; 4])),
    };
    let text: String = pattern.chars().map(part).collect();
    Regex::new(&format!("^(?:{text})$")).unwrap_or_else(|_| unreachable!("an escaped text"))
}

/// Fails where inputs are to be rotated as they come, which takes a product of its own before each layer's.
fn refuse_rotations(config: &ConfigFile) -> Result<(), ConfigError> {
    let is_online = |algorithm: &serde_json::Value| {
        let layers = &algorithm["online_config"]["online_rotation_layers"];
        algorithm["name"] == "rotation" && layers.as_array().is_some_and(|layers| !layers.is_empty())
    };
    let algorithms = config.get("algo_config").and_then(serde_json::Value::as_array);
    match algorithms.is_some_and(|all| all.iter().any(is_online)) {
        true => {
            Err(config.unsupported("algo_config", "inputs that are rotated while the model runs are not supported"))
        }
        false => Ok(()),
    }
}

/// Whether keys or values that such a layer gives are kept as 8-bit floats.
fn keeps_fp8(layer: &ConfigFile) -> Result<bool, ConfigError> {
    let Some(outputs) = layer.object("output_tensors")? else { return Ok(false) };
    let (dtype, scheme) = (outputs.text_or("dtype", "")?, outputs.text_or("qscheme", "")?);
    if (dtype.as_str(), scheme.as_str()) != ("fp8_e4m3", "per_tensor") || outputs.flag_or("is_dynamic", false)? {
        let reason = "a KV cache is quantised to fp8_e4m3, per_tensor and static, or not at all";
        return Err(outputs.unsupported("dtype", reason));
    }
    Ok(true)
}

fn refuse_outputs(layer: &ConfigFile) -> Result<(), ConfigError> {
    let is_given = |key| layer.get(key).is_some_and(|value| !value.is_null());
    match ["output_tensors", "bias"].into_iter().find(|key| is_given(key)) {
        Some(key) => Err(layer.unsupported(key, "weights, inputs and the KV cache may be quantised")),
        None => Ok(()),
    }
}

/// How a module's weights are stored.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Weights {
    Plain,
    /// Of 8 bits, in blocks of rows and columns or not.
    Floats(Option<[usize; 2]>),
    Integers,
    Floats4,
    Integers4 {
        group: usize,
        symmetric: bool,
    },
}

/// How a module is quantised.
#[derive(Clone, Copy, Debug)]
struct Scheme {
    weights: Weights,
    input: InputScheme,
    /// A row has a scale of its own.
    by_row: bool,
}

impl Scheme {
    fn read(layer: &ConfigFile) -> Result<Self, ConfigError> {
        let stages = layer.get("weight").and_then(serde_json::Value::as_array);
        if let Some(stages) = stages {
            let is_nvfp4 = stages.len() == 2 && stages[0]["dtype"] == "fp4" && stages[1]["dtype"] == "fp8_e4m3";
            if !is_nvfp4 {
                let reason = "of weights in two stages, fp4 with scales of fp8_e4m3 (NVFP4) is supported";
                return Err(layer.unsupported("weight", reason));
            }
            return Ok(Self { weights: Weights::Floats4, input: InputScheme::None, by_row: false });
        }
        let Some(weight) = layer.object("weight")? else {
            return Ok(Self { weights: Weights::Plain, input: InputScheme::None, by_row: false });
        };
        let by_row = weight.text_or("qscheme", "per_tensor")? == "per_channel";
        Ok(Self { weights: Weights::read(&weight)?, input: read_input(layer)?, by_row })
    }

    /// Weights of 8-bit floats.
    fn floats(&self) -> ScaledE4m3 {
        let block = if let Weights::Floats(block) = self.weights { block } else { None };
        let made = match block {
            Some([1, _]) => MadeScales::Unknown,
            _ if self.by_row => MadeScales::Rows,
            _ => MadeScales::Usual,
        };
        ScaledE4m3 { block, input: self.input, made }
    }
}

impl Weights {
    fn read(weight: &ConfigFile) -> Result<Self, ConfigError> {
        let (dtype, scheme) = (weight.text_or("dtype", "")?, weight.text_or("qscheme", "per_tensor")?);
        let symmetric = weight.flag_or("symmetric", dtype != "uint4")?;
        match (dtype.as_str(), scheme.as_str()) {
            ("fp8_e4m3", "per_tensor" | "per_channel") => Ok(Self::Floats(None)),
            ("fp8_e4m3", "per_group") => Ok(Self::Floats(Some([1, weight.size("group_size")?]))),
            ("fp8_e4m3", "per_block") => {
                let block = block_size(weight, "block_size")?;
                Ok(Self::Floats(Some(block.ok_or_else(|| weight.unsupported("block_size", BLOCK_SIZE))?)))
            }
            ("int8", "per_tensor" | "per_channel") if symmetric => Ok(Self::Integers),
            ("int8", _) => Err(weight.unsupported("symmetric", "integers of 8 bits have no zero points here")),
            ("fp4", "per_group") if weight.size_or("group_size", MX_BLOCK)? == MX_BLOCK => Ok(Self::Floats4),
            ("int4" | "uint4", "per_group") => Ok(Self::Integers4 { group: weight.size("group_size")?, symmetric }),
            ("int4" | "uint4", "per_channel") => Ok(Self::Integers4 { group: ALL_COLUMNS, symmetric }),
            _ => {
                let reason = format!(
                    "{dtype} by {scheme}: weights are fp8_e4m3 (per_tensor, per_channel, per_group, per_block), int8 \
                     (per_tensor, per_channel), fp4 (per_group of 32), int4 or uint4 (per_group, per_channel), or plain"
                );
                Err(weight.unsupported("dtype", &reason))
            }
        }
    }
}

/// How inputs are rounded.
fn read_input(layer: &ConfigFile) -> Result<InputScheme, ConfigError> {
    let Some(input) = layer.object("input_tensors")? else { return Ok(InputScheme::None) };
    let (dtype, scheme) = (input.text_or("dtype", "")?, input.text_or("qscheme", "per_tensor")?);
    let is_dynamic = input.flag_or("is_dynamic", false)?;
    match (dtype.as_str(), scheme.as_str(), is_dynamic) {
        ("fp8_e4m3", "per_tensor", false) => Ok(InputScheme::Static),
        ("fp8_e4m3", "per_group", true) => Ok(InputScheme::PerGroup(input.size("group_size")?)),
        ("fp8_e4m3", _, true) => Ok(InputScheme::PerToken),
        // With zero points they stay as they are computed.
        ("int8", _, _) if !input.flag_or("symmetric", true)? => Ok(InputScheme::None),
        ("int8", "per_tensor", false) => Ok(InputScheme::StaticInt8),
        ("int8", "per_channel" | "per_token", true) => Ok(InputScheme::PerTokenInt8 { outliers: f32::INFINITY }),
        // Inputs of 4 and 6 bits stay as they are computed.
        ("fp4" | "fp6_e2m3" | "fp6_e3m2", _, _) => Ok(InputScheme::None),
        _ => {
            let reason = format!(
                "{dtype} by {scheme}: inputs are fp8_e4m3 (static per_tensor, or dynamic), int8 (static per_tensor, or \
                 dynamic per_channel), floats of 4 or 6 bits, or not quantised"
            );
            Err(input.unsupported("dtype", &reason))
        }
    }
}

/// The method.
struct Quark {
    /// Of modules whose names a pattern means: the first that does counts.
    named: Vec<(Regex, Scheme)>,
    others: Scheme,
    /// Which output of its word the four bits at `4 * i` are of.
    order: [usize; 8],
}

impl Quark {
    fn scheme(&self, tensor: &str) -> &Scheme {
        let module = tensor.strip_suffix(".weight").unwrap_or(tensor);
        self.named.iter().find(|(pattern, _)| pattern.is_match(module)).map_or(&self.others, |(_, scheme)| scheme)
    }
}

impl GroupedMethod for Quark {
    fn find<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<CodeMatrix<'a>>, LoadError> {
        let name = &slice.location.tensor;
        let Some(weights) = tensors.get(name).filter(|_| slice.shape.len() == 2) else { return Ok(None) };
        let scheme = self.scheme(name);
        let Element::Code(code) = weights.element else { return Ok(None) };
        if code == Code::E4m3 {
            return Ok(None);
        }
        not_conv1d(slice, &weights)?;
        match (code, scheme.weights) {
            (Code::I8, _) => {
                compressed_tensors::bytes(slice, weights, tensors, scheme.input.rounding(slice, tensors)?).map(Some)
            }
            (Code::U8, _) if tensors.get(&format!("{name}_scale_2")).is_some() => {
                float4::modelopt(slice, weights, tensors).map(Some)
            }
            (Code::U8, _) => {
                let stem = name.strip_suffix("weight").unwrap_or_default();
                float4::compressed(slice, stem, weights, tensors).map(Some)
            }
            (Code::I32, Weights::Integers4 { group, symmetric }) => {
                let zeros = if symmetric { None } else { Some(tensors.find(&format!("{name}_zero_point"))?) };
                let scales = tensors.find(&format!("{name}_scale"))?;
                let shape = whole_shape(slice).ok_or_else(|| weights.misshapen(slice.stored_shape()))?;
                let stored = awq::Packed { weights, zeros, scales };
                awq::Outputs { group, order: self.order }.matrix(stored, shape, tensors).map(Some)
            }
            _ => Err(weights.mistyped()),
        }
    }
}

impl Quantization for Quark {
    fn check(&self, slice: &Slice, tensors: Tensors<'_>) -> Result<Option<Stored>, LoadError> {
        match self.find(slice, tensors)? {
            None => self.scheme(&slice.location.tensor).floats().check(slice, tensors),
            Some(matrix) => Ok(Some(matrix.stored(slice))),
        }
    }

    fn fetch<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Fetched<'a>>, LoadError> {
        match self.find(slice, tensors)? {
            None => self.scheme(&slice.location.tensor).floats().fetch(slice, tensors),
            Some(matrix) => Ok(Some(matrix.fetch(slice, tensors.threads))),
        }
    }

    fn is_decoded(&self) -> bool {
        false
    }

    fn dummy(&self) -> Option<DummyFormat> {
        if !self.named.is_empty() {
            return None;
        }
        match self.others.weights {
            Weights::Floats(_) => self.others.floats().dummy(),
            Weights::Integers => {
                let codes = dummy_codes(CodeBits::Eight, ALL_COLUMNS, Levels::Integers(Zeros::Middle));
                let WeightFormat::Grouped(mut format) = codes else { return None };
                format.input = self.others.input.dummy();
                Some(DummyFormat::of(WeightFormat::Grouped(format)))
            }
            Weights::Integers4 { group, symmetric } => {
                let zeros = if symmetric { Zeros::Middle } else { Zeros::Stored };
                Some(DummyFormat::of(dummy_codes(CodeBits::Four, group, Levels::Integers(zeros))))
            }
            Weights::Plain | Weights::Floats4 => None,
        }
    }

    fn made(&self, weight: &RandomWeight<'_>) -> Made {
        let scheme = self.scheme(weight.name);
        match scheme.weights {
            Weights::Plain => Made::Plain,
            Weights::Floats(_) => scheme.floats().made(weight),
            _ => Made::Unknown,
        }
    }
}
