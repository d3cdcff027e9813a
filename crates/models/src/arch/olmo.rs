//! OLMo 1: layer norms without parameters, clipped queries, keys and values. OLMo 2: norms on the outputs of both
//! parts, and on all queries and all keys. OLMo 3: that, with three layers of four sliding.

use model_spec::{
    AttentionSpec, Biases, ConfigError, LayerNorms, MlpKind, NormScale, NormSpec, Position, QkNorm, Residual,
    RopeDefaults, RopeStyle, read_ropes,
};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, bound, layer, sliding_layers};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn olmo(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let sizes = Sizes::read(&folder.config)?;
    let norm = NormSpec { scale: NormScale::None, bias: false, ..NormSpec::layer(1e-5) };
    let clip = bound(&folder.config, "clip_qkv")?;
    let position = sizes.rope(&folder.config, RopeStyle::Halves)?;
    let attention = AttentionSpec { clip, ..attention(folder, &sizes, position)? };
    build(folder, &sizes, vec![attention; sizes.layers], norm, LayerNorms::before(norm))
}

pub(super) fn olmo2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let sizes = Sizes::read(&folder.config)?;
    let norm = rms(folder)?;
    let position = sizes.rope(&folder.config, RopeStyle::Halves)?;
    let attention = AttentionSpec { qk_norm: Some(QkNorm::Whole(norm)), ..attention(folder, &sizes, position)? };
    build(folder, &sizes, vec![attention; sizes.layers], norm, LayerNorms::after(norm))
}

/// Scaling of the rotary embedding is for the layers that see everything.
pub(super) fn olmo3(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = rms(folder)?;
    let rope = RopeDefaults { theta: 500_000.0, rotary_dim: sizes.head_dim, style: RopeStyle::Halves };
    let ropes = read_ropes(config, rope, config.number_or("rope_theta", rope.theta)?)?;
    let qk_norm = Some(QkNorm::Whole(norm));
    let global = AttentionSpec { qk_norm, ..attention(folder, &sizes, Position::Rope(ropes.global))? };
    let window = Some(config.size_or("sliding_window", 4096)?);
    let sliding = AttentionSpec { window, position: Position::Rope(ropes.sliding), ..global.clone() };
    let layers = sliding_layers(config, sizes.layers, |index| !(index + 1).is_multiple_of(4))?;
    let layers = layers.into_iter().map(|slides| if slides { sliding.clone() } else { global.clone() });
    build(folder, &sizes, layers.collect(), norm, LayerNorms::after(norm))
}

fn rms(folder: &Folder) -> Result<NormSpec, ConfigError> {
    Ok(NormSpec::rms(folder.config.number_or("rms_norm_eps", 1e-5)? as f32))
}

fn attention(folder: &Folder, sizes: &Sizes, position: Position) -> Result<AttentionSpec, ConfigError> {
    let bias = folder.config.flag_or("attention_bias", false)?;
    Ok(sizes.attention(position, Biases { qkv: bias, output: bias }))
}

/// A model of these layers, its last norm, and where norms stand in a layer.
fn build(
    folder: &Folder,
    sizes: &Sizes,
    layers: Vec<AttentionSpec>,
    norm: NormSpec,
    norms: LayerNorms,
) -> Result<Blueprint, ConfigError> {
    let mlp = sizes.mlp(MlpKind::Gated, activation(&folder.config, "hidden_act", "silu")?, false);
    let layers = layers.into_iter().map(|attention| layer(attention, mlp, norms.clone(), Residual::Sequential));
    let spec = sizes.model(folder, layers.collect(), norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: Naming { part: norms_after, ..LLAMA }.names() })
}

/// Names where norms stand on the outputs of both parts alone.
pub(super) fn norms_after(part: LayerParam) -> &'static str {
    match part {
        LayerParam::AfterAttention => "post_attention_layernorm",
        LayerParam::AfterMlp => "post_feedforward_layernorm",
        other => (LLAMA.part)(other),
    }
}
