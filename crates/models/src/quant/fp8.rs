//! `fp8`: weights as 8-bit floats, one scale a tensor, or one a block as DeepSeek's have them.
//!
//! ```text
//! X.weight            [out, in]  F8_E4M3
//! X.weight_scale      one number: weight = code * scale            (one scale a tensor)
//! X.weight_scale_inv  [out / 128, in / 128], rounded up            (weight_block_size [128, 128])
//! X.input_scale       one number, with activation_scheme "static"
//! ```
//! Layers that `ignored_layers` or `modules_to_not_convert` name are stored as plain numbers, and found so.

use model_spec::{ConfigError, ConfigFile};

use super::input::InputScheme;
use super::scaled::{MadeScales, ScaledE4m3};
use super::{Quantized, block_size};

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    if config.text_or("fmt", "e4m3")? != "e4m3" {
        return Err(config.unsupported("fmt", "only e4m3 is supported"));
    }
    let block = block_size(config, "weight_block_size")?;
    let input = match (config.text_or("activation_scheme", "dynamic")?.as_str(), block) {
        ("static", None) => InputScheme::Static,
        ("dynamic", None) => InputScheme::PerToken,
        ("dynamic", Some([_, cols])) => InputScheme::PerGroup(cols),
        ("static", Some(_)) => {
            return Err(config.unsupported("activation_scheme", "with weight_block_size it must be dynamic"));
        }
        _ => return Err(config.unsupported("activation_scheme", "expected static or dynamic")),
    };
    let made = if block.is_some() { MadeScales::Inverse } else { MadeScales::Usual };
    Ok(Quantized { weights: Some(Box::new(ScaledE4m3 { block, input, made })), ..Quantized::default() })
}
