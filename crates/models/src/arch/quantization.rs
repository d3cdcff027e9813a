//! What `quantization_config` may say: weights that are unpacked as they are loaded, or a quantised KV cache beside plain weights.

use std::path::Path;

use model_spec::{ConfigError, ConfigFile};

/// Quantised weights that are unpacked as they are loaded: class names and `quant_method`.
const UNPACKED: &[(&str, &str)] = &[("GptOssForCausalLM", "mxfp4")];

/// Fails where weights are quantised in a way that is not supported.
pub(super) fn check(config: &ConfigFile, architecture: &str) -> Result<(), ConfigError> {
    let Some(quantization) = config.object("quantization_config")? else { return Ok(()) };
    if UNPACKED.contains(&(architecture, &quantization.text_or("quant_method", "")?)) || cache_alone(&quantization)? {
        return Ok(());
    }
    Err(quantization
        .unsupported("quant_method", "quantised weights are not supported; use the bf16, f16 or f32 checkpoint"))
}

/// Whether a model's checkpoint was made for a KV cache of 8-bit floats.
pub(crate) fn keeps_fp8(dir: &Path) -> Result<bool, ConfigError> {
    let config = ConfigFile::of_model(dir)?;
    config.object("quantization_config")?.map_or(Ok(false), |quantization| cache_alone(&quantization))
}

/// Whether the cache is quantised, and nothing else: `compressed-tensors` without groups of weights. Its scales are tensors of the
/// checkpoint. (`kv_cache_scheme` of llm-compressor, as vLLM reads it.)
fn cache_alone(quantization: &ConfigFile) -> Result<bool, ConfigError> {
    let groups = quantization
        .get("config_groups")
        .and_then(|groups| groups.as_object())
        .is_some_and(|groups| !groups.is_empty());
    if quantization.text_or("quant_method", "")? != "compressed-tensors" || groups {
        return Ok(false);
    }
    let Some(scheme) = quantization.object("kv_cache_scheme")? else { return Ok(false) };
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
