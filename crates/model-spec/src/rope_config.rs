//! Reads rotary scaling from `config.json`, in its older and newer spellings.

use crate::config::ConfigFile;
use crate::error::ConfigError;
use crate::rope::{RopeScaling, RopeSpec, RopeStyle, YarnScaling};

/// What an architecture says about its rotary embedding.
#[derive(Clone, Copy, Debug)]
pub struct RopeDefaults {
    /// Base where the file names none.
    pub theta: f64,
    /// Elements of each head that rotate.
    pub rotary_dim: usize,
    /// Pairing.
    pub style: RopeStyle,
}

/// The rotary embedding that `config.json` describes: `rope_theta` and `rope_scaling` (kind in `rope_type` or the older
/// `type`), or the newer `rope_parameters` that holds both.
pub fn read_rope(config: &ConfigFile, defaults: RopeDefaults) -> Result<RopeSpec, ConfigError> {
    if of_layer_type(config, GLOBAL)?.is_some() {
        return Err(config.unsupported(BY_TYPE, "this class has one rotary embedding for all layers"));
    }
    read_with(config, scaling_object(config)?, defaults)
}

/// Elements of a head of `head_dim` that rotate: a share of `partial_rotary_factor`, which newer files hold beside base
/// and scaling, or of `default`.
pub fn rotary_dim(config: &ConfigFile, head_dim: usize, default: f64) -> Result<usize, ConfigError> {
    let key = "partial_rotary_factor";
    let holders = [scaling_object(config)?, config.object(BY_TYPE)?];
    let holder = holders.iter().flatten().find(|parameters| parameters.get(key).is_some()).unwrap_or(config);
    let share = holder.number_or(key, default)?;
    if share <= 0.0 || share > 1.0 {
        return Err(holder.unsupported(key, "expected a part of 1"));
    }
    Ok((head_dim as f64 * share) as usize)
}

/// Rotary embeddings of a model whose layers have two.
#[derive(Clone, Debug, PartialEq)]
pub struct Ropes {
    /// Of layers that see everything.
    pub global: RopeSpec,
    /// Of layers with a window.
    pub sliding: RopeSpec,
}

/// The rotary embeddings of a model whose layers have two: newer files hold `rope_parameters` by the type of layer. In
/// older ones all that [`read_rope`] reads is for the layers that see everything; the others turn by `sliding_theta`.
pub fn read_ropes(config: &ConfigFile, defaults: RopeDefaults, sliding_theta: f64) -> Result<Ropes, ConfigError> {
    let sliding = RopeDefaults { theta: sliding_theta, ..defaults };
    let Some(global) = of_layer_type(config, GLOBAL)? else {
        let RopeDefaults { theta, rotary_dim, style } = sliding;
        let sliding = RopeSpec { theta, rotary_dim, style, scaling: RopeScaling::None };
        return Ok(Ropes { global: read_rope(config, defaults)?, sliding });
    };
    let of_sliding = of_layer_type(config, SLIDING)?;
    let of_sliding = of_sliding.ok_or_else(|| config.missing(BY_TYPE, "parameters for sliding_attention too"))?;
    Ok(Ropes {
        global: read_with(config, Some(global), defaults)?,
        sliding: read_with(config, Some(of_sliding), sliding)?,
    })
}

/// Types of layers, as `layer_types` has them.
const GLOBAL: &str = "full_attention";
const SLIDING: &str = "sliding_attention";
/// Where newer files keep base and scaling.
const BY_TYPE: &str = "rope_parameters";

/// The parameters of one type of layers, where a file tells them apart.
fn of_layer_type(config: &ConfigFile, kind: &str) -> Result<Option<ConfigFile>, ConfigError> {
    config.object(BY_TYPE)?.map_or(Ok(None), |parameters| parameters.object(kind))
}

fn read_with(
    config: &ConfigFile,
    parameters: Option<ConfigFile>,
    defaults: RopeDefaults,
) -> Result<RopeSpec, ConfigError> {
    let key = config.spelled(&["rope_theta", "rotary_emb_base"]).unwrap_or("rope_theta");
    let mut theta = config.number_or(key, defaults.theta)?;
    // A scaling that was put beside `rope_parameters` says nothing of the base.
    for parameters in [&config.object(BY_TYPE)?, &parameters].into_iter().flatten() {
        theta = parameters.number_or("rope_theta", theta)?;
    }
    if theta <= 1.0 {
        return Err(config.unsupported(key, "the base must be greater than 1"));
    }
    if defaults.rotary_dim < 2 || !defaults.rotary_dim.is_multiple_of(2) {
        return Err(config.unsupported("head_dim", "the rotated part of a head must be even"));
    }
    let scaling = match &parameters {
        Some(parameters) => read_scaling(config, parameters, defaults.rotary_dim)?,
        None => RopeScaling::None,
    };
    Ok(RopeSpec { theta, rotary_dim: defaults.rotary_dim, style: defaults.style, scaling })
}

/// What families call the context of the training.
const CONTEXT_KEYS: [&str; 5] =
    ["max_position_embeddings", "n_positions", "max_seq_len", "model_max_length", "seq_length"];

/// The context that the model serves, in tokens: `max_position_embeddings` (or what the family calls it), stretched
/// where the scaling rule means it to be.
pub fn context_len(config: &ConfigFile) -> Result<usize, ConfigError> {
    context_len_opt(config)?.ok_or_else(|| config.missing(CONTEXT_KEYS[0], "a number of tokens"))
}

/// The same for families whose files need not say.
pub fn context_len_opt(config: &ConfigFile) -> Result<Option<usize>, ConfigError> {
    let Some(key) = config.spelled(&CONTEXT_KEYS) else { return Ok(None) };
    let base = config.size(key)?;
    let Some(parameters) = scaling_object(config)? else { return Ok(Some(base)) };
    let stretch = match kind(&parameters)?.as_str() {
        "linear" | "dynamic" => base as f64 * factor(&parameters)?,
        "yarn" => match parameters.number_opt("original_max_position_embeddings")? {
            Some(original) => (original * factor(&parameters)?).max(base as f64),
            None => base as f64 * factor(&parameters)?,
        },
        _ => base as f64,
    };
    Ok(Some(stretch as usize))
}

fn scaling_object(config: &ConfigFile) -> Result<Option<ConfigFile>, ConfigError> {
    match config.object("rope_scaling")? {
        Some(scaling) => Ok(Some(scaling)),
        None => match of_layer_type(config, GLOBAL)? {
            Some(parameters) => Ok(Some(parameters)),
            None => config.object(BY_TYPE),
        },
    }
}

fn kind(parameters: &ConfigFile) -> Result<String, ConfigError> {
    match parameters.text_opt("rope_type")? {
        Some(kind) => Ok(kind),
        None => parameters.text_or("type", "default"),
    }
}

fn factor(parameters: &ConfigFile) -> Result<f64, ConfigError> {
    positive(parameters, "factor", parameters.number("factor")?)
}

fn positive(parameters: &ConfigFile, key: &str, value: f64) -> Result<f64, ConfigError> {
    if value > 0.0 { Ok(value) } else { Err(parameters.unsupported(key, "it must be greater than 0")) }
}

fn read_scaling(config: &ConfigFile, parameters: &ConfigFile, rotary_dim: usize) -> Result<RopeScaling, ConfigError> {
    match kind(parameters)?.as_str() {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: factor(parameters)? }),
        "dynamic" => Ok(RopeScaling::Dynamic { factor: factor(parameters)? }),
        "llama3" => read_llama3(parameters),
        "yarn" => read_yarn(config, parameters),
        "longrope" | "su" => read_long(config, parameters, rotary_dim),
        _ => {
            let key = if parameters.get("rope_type").is_some() { "rope_type" } else { "type" };
            Err(parameters.unsupported(key, "expected default, linear, dynamic, llama3, yarn or longrope"))
        }
    }
}

fn read_llama3(parameters: &ConfigFile) -> Result<RopeScaling, ConfigError> {
    let (low, high) = (parameters.number("low_freq_factor")?, parameters.number("high_freq_factor")?);
    if high <= low {
        return Err(parameters.unsupported("high_freq_factor", "it must be greater than low_freq_factor"));
    }
    let original_len = parameters.number("original_max_position_embeddings")?;
    Ok(RopeScaling::Llama3 { factor: factor(parameters)?, low_freq_factor: low, high_freq_factor: high, original_len })
}

fn read_yarn(config: &ConfigFile, parameters: &ConfigFile) -> Result<RopeScaling, ConfigError> {
    let factor = factor(parameters)?;
    let original_len = match parameters.number_opt("original_max_position_embeddings")? {
        Some(len) => positive(parameters, "original_max_position_embeddings", len)?,
        None => config.number("max_position_embeddings")?,
    };
    let temperature = |weight: f64| if factor <= 1.0 { 1.0 } else { 0.1 * weight * factor.ln() + 1.0 };
    let nonzero = |key| parameters.number_opt(key).map(|x| x.filter(|&x| x != 0.0));
    let mscale = match (parameters.number_opt("attention_factor")?, nonzero("mscale")?, nonzero("mscale_all_dim")?) {
        (Some(given), _, _) => given,
        (None, Some(part), Some(all)) => temperature(part) / temperature(all),
        _ => temperature(1.0),
    };
    Ok(RopeScaling::Yarn(YarnScaling {
        factor,
        original_len,
        beta_fast: nonzero("beta_fast")?.unwrap_or(32.0),
        beta_slow: nonzero("beta_slow")?.unwrap_or(1.0),
        mscale,
        truncate: parameters.flag_or("truncate", true)?,
    }))
}

fn read_long(config: &ConfigFile, parameters: &ConfigFile, rotary_dim: usize) -> Result<RopeScaling, ConfigError> {
    let max_len = config.number("max_position_embeddings")?;
    let original = match config.number_opt("original_max_position_embeddings")? {
        Some(len) => Some(len),
        None => parameters.number_opt("original_max_position_embeddings")?,
    };
    let (original_len, stretch) = match original {
        Some(len) => (len, max_len / len),
        None => (max_len, parameters.number_or("factor", 1.0)?),
    };
    let default = match parameters.number_opt("attention_factor")? {
        Some(given) => given,
        None if stretch <= 1.0 => 1.0,
        None => (1.0 + stretch.ln() / original_len.ln()).sqrt(),
    };
    Ok(RopeScaling::Long {
        short: factors(parameters, "short_factor", rotary_dim)?,
        long: factors(parameters, "long_factor", rotary_dim)?,
        original_len,
        short_mscale: parameters.number_or("short_mscale", default)?,
        long_mscale: parameters.number_or("long_mscale", default)?,
    })
}

fn factors(parameters: &ConfigFile, key: &str, rotary_dim: usize) -> Result<Vec<f64>, ConfigError> {
    let list =
        parameters.numbers_opt(key)?.ok_or_else(|| parameters.missing(key, "a list of one number per frequency"))?;
    if list.len() != rotary_dim / 2 || list.iter().any(|&x| x <= 0.0) {
        return Err(parameters.unsupported(key, &format!("expected {} positive numbers", rotary_dim / 2)));
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(text: &str) -> Result<(RopeSpec, usize), ConfigError> {
        let config = ConfigFile::parse(Path::new("config.json"), text.as_bytes())?;
        let defaults = RopeDefaults { theta: 10000.0, rotary_dim: 4, style: RopeStyle::Halves };
        Ok((read_rope(&config, defaults)?, context_len(&config)?))
    }

    fn check(text: &str, theta: f64, scaling: RopeScaling, context: usize) {
        let (spec, len) = read(text).unwrap();
        assert_eq!((spec.theta, spec.scaling, len), (theta, scaling, context), "{text}");
    }

    #[test]
    fn spellings() {
        check(r#"{"max_position_embeddings": 64}"#, 10000.0, RopeScaling::None, 64);
        check(
            r#"{"max_position_embeddings": 64, "rope_theta": 5e5, "rope_scaling": null}"#,
            5e5,
            RopeScaling::None,
            64,
        );
        let linear = RopeScaling::Linear { factor: 2.5 };
        check(
            r#"{"max_position_embeddings": 64, "rope_scaling": {"type": "linear", "factor": 2.5}}"#,
            10000.0,
            linear.clone(),
            160,
        );
        check(
            r#"{"max_position_embeddings": 64,
                "rope_parameters": {"rope_type": "linear", "factor": 2.5, "rope_theta": 7}}"#,
            7.0,
            linear.clone(),
            160,
        );
        // As --hf-overrides puts it into a newer file.
        check(
            r#"{"max_position_embeddings": 64, "rope_scaling": {"type": "linear", "factor": 2.5},
                "rope_parameters": {"rope_type": "default", "rope_theta": 7}}"#,
            7.0,
            linear,
            160,
        );
    }

    #[test]
    fn a_part_of_the_head_may_turn() {
        let dim = |text: &str| {
            let config = ConfigFile::parse(Path::new("config.json"), text.as_bytes()).unwrap();
            rotary_dim(&config, 32, 0.25).map_err(|error| error.to_string())
        };
        assert_eq!(dim("{}"), Ok(8));
        assert_eq!(dim(r#"{"partial_rotary_factor": 0.5}"#), Ok(16));
        assert_eq!(dim(r#"{"rope_parameters": {"rope_theta": 7}, "partial_rotary_factor": 0.5}"#), Ok(16));
        let newer = r#"{"rope_parameters": {"rope_theta": 7, "partial_rotary_factor": 0.75}}"#;
        assert_eq!(dim(newer), Ok(24));
        let overridden = r#"{"rope_scaling": {"type": "linear"}, "rope_parameters": {"partial_rotary_factor": 0.75}}"#;
        assert_eq!(dim(overridden), Ok(24));
        let refusal = dim(r#"{"rope_parameters": {"partial_rotary_factor": 1.5}}"#).unwrap_err();
        assert!(refusal.contains("rope_parameters.partial_rotary_factor"), "{refusal}");
    }

    #[test]
    fn types_of_layers() {
        let text = r#"{"max_position_embeddings": 64, "rope_theta": 3, "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 2.5, "rope_theta": 7},
            "sliding_attention": {"rope_type": "default", "rope_theta": 5}}}"#;
        let config = ConfigFile::parse(Path::new("config.json"), text.as_bytes()).unwrap();
        let defaults = RopeDefaults { theta: 10000.0, rotary_dim: 4, style: RopeStyle::Halves };
        let ropes = read_ropes(&config, defaults, 11.0).unwrap();
        assert_eq!((ropes.global.theta, ropes.global.scaling), (7.0, RopeScaling::Linear { factor: 2.5 }));
        assert_eq!((ropes.sliding.theta, ropes.sliding.scaling), (5.0, RopeScaling::None));
        assert_eq!(context_len(&config).unwrap(), 160);
        // A class that has one for all must not take any of them.
        assert!(read(text).unwrap_err().to_string().contains("rope_parameters"));
        let older = r#"{"max_position_embeddings": 64, "rope_scaling": {"type": "linear", "factor": 2.5}}"#;
        let older = ConfigFile::parse(Path::new("config.json"), older.as_bytes()).unwrap();
        let ropes = read_ropes(&older, defaults, 11.0).unwrap();
        assert_eq!((ropes.global.theta, ropes.global.scaling), (10000.0, RopeScaling::Linear { factor: 2.5 }));
        assert_eq!((ropes.sliding.theta, ropes.sliding.scaling), (11.0, RopeScaling::None));
    }

    #[test]
    fn yarn_keys() {
        let temperature = 0.1 * 4f64.ln() + 1.0;
        let yarn = |mscale, beta_fast, truncate| {
            RopeScaling::Yarn(YarnScaling {
                factor: 4.0,
                original_len: 64.0,
                beta_fast,
                beta_slow: 1.0,
                mscale,
                truncate,
            })
        };
        let file = |more: &str| {
            format!(
                r#"{{"max_position_embeddings": 256, "rope_scaling":
                    {{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64{more}}}}}"#
            )
        };
        check(&file(""), 10000.0, yarn(temperature, 32.0, true), 256);
        check(
            &file(r#", "attention_factor": 1.25, "beta_fast": 16, "truncate": false"#),
            10000.0,
            yarn(1.25, 16.0, false),
            256,
        );
        check(&file(r#", "mscale": 1.0, "mscale_all_dim": 1.0"#), 10000.0, yarn(1.0, 32.0, true), 256);
    }

    #[test]
    fn longrope_scale() {
        let text = r#"{"max_position_embeddings": 256, "original_max_position_embeddings": 64,
            "rope_scaling": {"type": "longrope", "short_factor": [1, 2], "long_factor": [3, 4]}}"#;
        let mscale = (1.0 + 4f64.ln() / 64f64.ln()).sqrt();
        let expected = RopeScaling::Long {
            short: vec![1.0, 2.0],
            long: vec![3.0, 4.0],
            original_len: 64.0,
            short_mscale: mscale,
            long_mscale: mscale,
        };
        check(text, 10000.0, expected, 256);
    }

    #[test]
    fn refusals_name_the_key() {
        for (scaling, key) in [
            (r#"{"type": "magic"}"#, "rope_scaling.type"),
            (r#"{"type": "linear"}"#, "rope_scaling.factor"),
            (r#"{"type": "linear", "factor": -1}"#, "rope_scaling.factor"),
            (r#"{"rope_type": "llama3", "factor": 8}"#, "rope_scaling.low_freq_factor"),
            (r#"{"type": "longrope", "short_factor": [1], "long_factor": [1, 1]}"#, "rope_scaling.short_factor"),
        ] {
            let message = read(&format!(r#"{{"max_position_embeddings": 64, "rope_scaling": {scaling}}}"#))
                .unwrap_err()
                .to_string();
            assert!(message.contains(key), "{message}");
        }
    }
}
