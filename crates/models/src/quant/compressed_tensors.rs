//! `compressed-tensors`: what llm-compressor writes. Weights as 8-bit floats (one scale a tensor, an output channel or
//! a block), or plain weights beside a KV cache of 8-bit floats.
//!
//! ```text
//! X.weight        [out, in]  F8_E4M3
//! X.weight_scale  one number, [out, 1], or [out / rows, in / cols] of a block, rounded up
//! X.input_scale   one number, where activations have static scales
//! ```
//! Modules that `ignore` names are stored as plain numbers, and found so.

use model_spec::{ConfigError, ConfigFile};

use super::scaled::{InputScheme, ScaledE4m3};
use super::{Quantization, Quantized};

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    let fp8_cache = keeps_fp8(config)?;
    let Some(groups) = config.object("config_groups")? else { return cache_alone(config, fp8_cache) };
    let mut scheme: Option<ScaledE4m3> = None;
    for name in groups.keys() {
        let Some(group) = groups.object(name)? else { continue };
        let found = read_group(&group)?;
        if scheme.as_ref().is_some_and(|scheme| *scheme != found) {
            return Err(groups.unsupported(name, "all groups must be quantised alike"));
        }
        scheme = Some(found);
    }
    match scheme {
        None => cache_alone(config, fp8_cache),
        Some(scheme) => {
            let weights: Box<dyn Quantization> = Box::new(scheme);
            Ok(Quantized { weights: Some(weights), fp8_cache, method: None })
        }
    }
}

/// Weights are plain; the cache is not.
fn cache_alone(config: &ConfigFile, fp8_cache: bool) -> Result<Quantized, ConfigError> {
    if fp8_cache {
        return Ok(Quantized { fp8_cache, ..Quantized::default() });
    }
    Err(config.unsupported("config_groups", "it quantises neither weights nor the KV cache"))
}

fn read_group(group: &ConfigFile) -> Result<ScaledE4m3, ConfigError> {
    let Some(weights) = group.object("weights")? else {
        return Err(group.missing("weights", "a scheme of float weights of 8 bits"));
    };
    let (kind, bits) = (weights.text_or("type", "int")?, weights.size_or("num_bits", 8)?);
    if kind != "float" || bits != 8 {
        let reason = format!("{kind} of {bits} bits: weights must be float of 8 bits");
        return Err(weights.unsupported("num_bits", &reason));
    }
    let block = match weights.text_or("strategy", "tensor")?.as_str() {
        "tensor" | "channel" => None,
        "block" => match weights.numbers_opt("block_structure")?.as_deref() {
            Some([rows, cols]) if *rows >= 1.0 && *cols >= 1.0 => Some([*rows as usize, *cols as usize]),
            _ => return Err(weights.unsupported("block_structure", "expected rows and columns of a block")),
        },
        _ => return Err(weights.unsupported("strategy", "expected tensor, channel or block")),
    };
    Ok(ScaledE4m3 { block, input: read_input(group)? })
}

/// How activations are rounded.
fn read_input(group: &ConfigFile) -> Result<InputScheme, ConfigError> {
    let Some(input) = group.object("input_activations")? else { return Ok(InputScheme::None) };
    let (kind, bits) = (input.text_or("type", "int")?, input.size_or("num_bits", 8)?);
    if kind != "float" || bits != 8 {
        let reason = format!("{kind} of {bits} bits: beside float weights, activations must be float of 8 bits");
        return Err(input.unsupported("num_bits", &reason));
    }
    match (input.flag_or("dynamic", false)?, input.text_or("strategy", "tensor")?.as_str()) {
        (false, "tensor") => Ok(InputScheme::Static),
        (true, "token") => Ok(InputScheme::PerToken),
        (true, "group") => Ok(InputScheme::PerGroup(input.size("group_size")?)),
        _ => Err(input.unsupported("strategy", "expected static by tensor, or dynamic by token or group")),
    }
}

/// Whether the KV cache is quantised; its scales are tensors of the checkpoint. (`kv_cache_scheme`, as vLLM reads it.)
fn keeps_fp8(config: &ConfigFile) -> Result<bool, ConfigError> {
    let Some(scheme) = config.object("kv_cache_scheme")? else { return Ok(false) };
    let kind =
        (scheme.text_or("type", "float")?, scheme.size_or("num_bits", 8)?, scheme.text_or("strategy", "tensor")?);
    if kind != ("float".to_owned(), 8, "tensor".to_owned()) {
        let (kind, bits, strategy) = kind;
        let reason = format!(
            "{kind} of {bits} bits by {strategy}: a KV cache is quantised to float of 8 bits by tensor, or not at all"
        );
        return Err(scheme.unsupported("strategy", &reason));
    }
    if scheme.flag_or("dynamic", false)? {
        return Err(scheme.unsupported("dynamic", "scales that follow the values are not supported; use static ones"));
    }
    Ok(true)
}
