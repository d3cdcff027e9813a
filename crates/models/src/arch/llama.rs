//! The Llama family: one spec with different switches. RMS norm before attention and MLP, rotary embedding, gated MLP.

use model_spec::{
    AttentionSpec, Biases, ConfigError, ConfigFile, EmbeddingSpec, HeadSpec, LayerNorms, LayerSpec, MlpKind, MlpSpec,
    ModelKind, ModelSpec, NormSpec, Position, QkNorm, Residual, RopeDefaults, RopeStyle, context_len, read_rope,
};

use super::parts::{Sizes, activation, llama_part, names};
use super::{Blueprint, Folder};

/// In what the family's members differ.
#[derive(Default)]
struct Switches {
    bias: Biases,
    mlp_bias: bool,
    qk_norm: bool,
    windows: Windows,
    rope_theta: Option<f64>,
}

/// Which layers attend through a sliding window.
#[derive(Default)]
enum Windows {
    #[default]
    None,
    /// `sliding_window` on all of them.
    All,
    /// As `use_sliding_window`, `max_window_layers` and `layer_types` say.
    Later,
}

/// Llama, and models that are Llama under another name: biases as `attention_bias` and `mlp_bias` say.
pub(super) fn llama(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let attention = folder.config.flag_or("attention_bias", false)?;
    let mlp_bias = folder.config.flag_or("mlp_bias", false)?;
    build(folder, Switches { bias: Biases { qkv: attention, output: attention }, mlp_bias, ..Default::default() })
}

/// Mistral: all layers may have a sliding window.
pub(super) fn mistral(folder: &Folder) -> Result<Blueprint, ConfigError> {
    build(folder, Switches { windows: Windows::All, ..Default::default() })
}

/// Qwen 2 and 2.5: biases on q, k and v; the upper layers may have a sliding window.
pub(super) fn qwen2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    build(folder, Switches { bias: Biases { qkv: true, output: false }, windows: Windows::Later, ..Default::default() })
}

/// Qwen 3: norms of query and key heads instead of biases.
pub(super) fn qwen3(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let attention = folder.config.flag_or("attention_bias", false)?;
    let bias = Biases { qkv: attention, output: attention };
    build(folder, Switches { bias, qk_norm: true, windows: Windows::Later, ..Default::default() })
}

/// InternLM 1: `bias` stands for q, k, v and o; the base of the rotary embedding is in `rotary`.
pub(super) fn internlm(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let bias = folder.config.flag_or("bias", true)?;
    let rotary = folder.config.object("rotary")?;
    if let Some(rotary) = &rotary
        && rotary.text_or("type", "origin")? != "origin"
    {
        return Err(rotary.unsupported("type", "only \"origin\" is supported"));
    }
    let rope_theta = rotary.map(|rotary| rotary.number_or("base", 10000.0)).transpose()?;
    build(folder, Switches { bias: Biases { qkv: bias, output: bias }, rope_theta, ..Default::default() })
}

/// Granite: Llama with scales at the embedding, the scores, the residual adds and the logits.
pub(super) fn granite(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let number = |key| folder.config.number_or(key, 1.0).map(|x| x as f32);
    let (scores, residual) = (number("attention_multiplier")?, number("residual_multiplier")?);
    let mut blueprint = llama(folder)?;
    blueprint.spec.embedding.scale = number("embedding_multiplier")?;
    blueprint.spec.head.scale = number("logits_scaling")?.recip();
    for layer in &mut blueprint.spec.layers {
        if let Some(attention) = layer.mixer.attention_mut() {
            attention.scale = scores;
        }
        layer.residual_scale = residual;
    }
    Ok(blueprint)
}

fn build(folder: &Folder, switches: Switches) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::rms(config.number_or("rms_norm_eps", 1e-6)? as f32);
    let attention = attention(config, &sizes, &switches, norm)?;
    let layer = layer(config, &sizes, &switches, norm, attention.clone())?;
    let windows = windows(config, &switches.windows, sizes.layers)?.into_iter();
    let windowed = |window| LayerSpec { mixer: AttentionSpec { window, ..attention.clone() }.into(), ..layer.clone() };
    let spec = ModelSpec {
        architecture: folder.architecture.clone(),
        kind: ModelKind::Decoder,
        vocab_size: sizes.vocab,
        hidden_size: sizes.hidden,
        context_len: context_len(config)?,
        dtype: folder.dtype,
        eos_token_ids: folder.eos_token_ids.clone(),
        embedding: EmbeddingSpec { scale: 1.0, norm: None },
        layers: windows.map(windowed).collect(),
        final_norm: Some(norm),
        head: HeadSpec { tied: config.flag_or("tie_word_embeddings", false)?, bias: false, scale: 1.0, soft_cap: None },
    };
    Ok(Blueprint { spec, names: names("model.norm", llama_part) })
}

fn attention(
    config: &ConfigFile,
    sizes: &Sizes,
    switches: &Switches,
    norm: NormSpec,
) -> Result<AttentionSpec, ConfigError> {
    let theta = switches.rope_theta.unwrap_or(10000.0);
    let rope = RopeDefaults { theta, rotary_dim: sizes.head_dim, style: RopeStyle::Halves };
    Ok(AttentionSpec {
        qk_norm: switches.qk_norm.then_some(QkNorm::PerHead(norm)),
        ..sizes.attention(Position::Rope(read_rope(config, rope)?), switches.bias)
    })
}

fn layer(
    config: &ConfigFile,
    sizes: &Sizes,
    switches: &Switches,
    norm: NormSpec,
    attention: AttentionSpec,
) -> Result<LayerSpec, ConfigError> {
    Ok(LayerSpec {
        mixer: attention.into(),
        feed_forward: MlpSpec {
            kind: MlpKind::Gated,
            intermediate_size: sizes.intermediate,
            activation: activation(config, "hidden_act", "silu")?,
            bias: switches.mlp_bias,
        }
        .into(),
        norms: LayerNorms { before_attention: Some(norm), before_mlp: Some(norm), ..Default::default() },
        residual: Residual::Sequential,
        residual_scale: 1.0,
    })
}

/// The window of every layer.
fn windows(config: &ConfigFile, rule: &Windows, layers: usize) -> Result<Vec<Option<usize>>, ConfigError> {
    let window = config.size_opt("sliding_window")?;
    match rule {
        Windows::None => Ok(vec![None; layers]),
        Windows::All => Ok(vec![window; layers]),
        Windows::Later if !config.flag_or("use_sliding_window", false)? => Ok(vec![None; layers]),
        Windows::Later => match config.texts_opt("layer_types")? {
            Some(types) if types.len() != layers => {
                Err(config.unsupported("layer_types", &format!("expected {layers} entries")))
            }
            Some(types) => Ok(types.iter().map(|kind| window.filter(|_| kind == "sliding_attention")).collect()),
            None => {
                let full = config.number_or("max_window_layers", layers as f64)? as usize;
                Ok((0..layers).map(|layer| window.filter(|_| layer >= full)).collect())
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn check(text: &str, rule: Windows, expected: &[Option<usize>]) {
        let config = ConfigFile::parse(Path::new("config.json"), text.as_bytes()).unwrap();
        assert_eq!(windows(&config, &rule, 3).unwrap(), expected, "{text}");
    }

    #[test]
    fn windows_of_layers() {
        check(r#"{"sliding_window": 16}"#, Windows::All, &[Some(16); 3]);
        check(r#"{"sliding_window": null}"#, Windows::All, &[None; 3]);
        check(r#"{"sliding_window": 16}"#, Windows::None, &[None; 3]);
        check(r#"{"sliding_window": 16, "max_window_layers": 0}"#, Windows::Later, &[None; 3]);
        let on = r#"{"use_sliding_window": true, "sliding_window": 16, "max_window_layers": 1}"#;
        check(on, Windows::Later, &[None, Some(16), Some(16)]);
        let types = r#"{"use_sliding_window": true, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}"#;
        check(types, Windows::Later, &[Some(8), None, Some(8)]);
    }
}
