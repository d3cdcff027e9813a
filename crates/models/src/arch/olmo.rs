//! OLMo 1: layer norms without parameters, clipped queries, keys and values. OLMo 2: norms on the outputs of both parts, and on all
//! queries and all keys.

use model_spec::{
    AttentionSpec, Biases, ConfigError, LayerNorms, MlpKind, NormScale, NormSpec, QkNorm, Residual, RopeStyle,
};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::Part;

pub(super) fn olmo(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let norm = NormSpec { scale: NormScale::None, bias: false, ..NormSpec::layer(1e-5) };
    let clip = folder.config.number_opt("clip_qkv")?.map(|clip| clip as f32);
    build(folder, norm, LayerNorms::before(norm), |attention| AttentionSpec { clip, ..attention })
}

pub(super) fn olmo2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let norm = NormSpec::rms(folder.config.number_or("rms_norm_eps", 1e-5)? as f32);
    let qk_norm = Some(QkNorm::Whole(norm));
    build(folder, norm, LayerNorms::after(norm), |attention| AttentionSpec { qk_norm, ..attention })
}

fn build(
    folder: &Folder,
    norm: NormSpec,
    norms: LayerNorms,
    change: impl Fn(AttentionSpec) -> AttentionSpec,
) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let bias = config.flag_or("attention_bias", false)?;
    let attention = change(sizes.attention(sizes.rope(config, RopeStyle::Halves)?, Biases { qkv: bias, output: bias }));
    let mlp = sizes.mlp(MlpKind::Gated, activation(config, "hidden_act", "silu")?, false);
    let layers = vec![layer(attention, mlp, norms, Residual::Sequential); sizes.layers];
    let spec = sizes.model(folder, layers, norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: Naming { part: norms_after, ..LLAMA }.names() })
}

/// Names where norms stand on the outputs of both parts alone.
pub(super) fn norms_after(part: Part) -> &'static str {
    match part {
        Part::AfterAttention => "post_attention_layernorm",
        Part::AfterMlp => "post_feedforward_layernorm",
        other => (LLAMA.part)(other),
    }
}
