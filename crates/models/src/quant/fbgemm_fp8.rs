//! `fbgemm_fp8`: weights as 8-bit floats, one scale an output channel.
//!
//! ```text
//! X.weight        [out, in]  F8_E4M3
//! X.weight_scale  [out, 1]   weight = code * scale
//! ```
//! Modules that `modules_to_not_convert` names are stored as plain numbers, and found so. Scales of activations follow
//! each token; their upper bound (`activation_scale_ub`) is refused where it is so low that it would cut real values.

use model_spec::{ConfigError, ConfigFile};

use super::Quantized;
use super::input::InputScheme;
use super::scaled::{MadeScales, ScaledE4m3};

/// Llama 3.1's bound is 1200, which activations stay below.
const LEAST_BOUND: f64 = 1000.0;

pub(super) fn read(config: &ConfigFile) -> Result<Quantized, ConfigError> {
    if config.number_opt("activation_scale_ub")?.is_some_and(|bound| bound < LEAST_BOUND) {
        return Err(config.unsupported("activation_scale_ub", "bounds below 1000 are not supported"));
    }
    let weights = ScaledE4m3 { block: None, input: InputScheme::PerToken, made: MadeScales::Rows };
    Ok(Quantized { weights: Some(Box::new(weights)), ..Quantized::default() })
}
