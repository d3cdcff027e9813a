//! ChatGLM 2 and 3, GLM-4: interleaved rotary embedding on half of each head, fused gate and up, biases on queries,
//! keys and values.

use model_spec::{
    Activation, AttentionSpec, Biases, ConfigError, LayerNorms, LayerSpec, MlpKind, NormSpec, Position, QkNorm,
    Residual, RopeDefaults, RopeStyle, read_rope,
};

use super::deepseek::{self, Version, feed_forwards};
use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

/// ChatGLM 2 and 3, and GLM-4 in the same format.
pub(super) fn chatglm(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    if config.flag_or("apply_residual_connection_post_layernorm", false)? {
        return Err(config.unsupported("apply_residual_connection_post_layernorm", "only false is supported"));
    }
    let sizes = Sizes::read(config)?;
    let kv_heads = match config.flag_or("multi_query_attention", false)? {
        true => config.size_or("multi_query_group_num", 1)?,
        false => sizes.heads,
    };
    let sizes = sizes.with_kv_heads(config, "multi_query_group_num", kv_heads)?;
    let eps = config.number_or("layernorm_epsilon", 1e-5)? as f32;
    let norm = if config.flag_or("rmsnorm", true)? { NormSpec::rms(eps) } else { NormSpec::layer(eps) };
    let theta = 10000.0 * config.number_or("rope_ratio", 1.0)?;
    let rope = RopeDefaults { theta, rotary_dim: sizes.head_dim / 2, style: RopeStyle::Interleaved };
    let bias = config.flag_or("add_bias_linear", false)?;
    let biases = Biases { qkv: bias || config.flag_or("add_qkv_bias", false)?, output: bias };
    let attention = sizes.attention(Position::Rope(read_rope(config, rope)?), biases);
    let mlp = sizes.mlp(MlpKind::Gated, Activation::Silu, bias);
    let layer = layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential);
    let mut spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    if !config.flag_or("post_layer_norm", true)? {
        spec.final_norm = None;
    }
    let fused = Naming { qkv: Some(sizes.stacked_qkv()), gate_up: Some(sizes.gate_up()), ..CHATGLM };
    Ok(Blueprint { spec, names: fused.names() })
}

/// GLM-4 in the library's format.
pub(super) fn glm(folder: &Folder) -> Result<Blueprint, ConfigError> {
    build(folder, LayerNorms::before)
}

/// GLM-4 of 2025: norms on the outputs of both parts, too.
pub(super) fn glm4(folder: &Folder) -> Result<Blueprint, ConfigError> {
    build(folder, LayerNorms::around)
}

fn build(folder: &Folder, norms: fn(NormSpec) -> LayerNorms) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::rms(config.number_or("rms_norm_eps", 1e-5)? as f32);
    let rope = sizes.partial_rope(config, 0.5, RopeStyle::Interleaved)?;
    let biases = Biases { qkv: config.flag_or("attention_bias", false)?, output: false };
    let mlp = sizes.mlp(MlpKind::Gated, activation(config, "hidden_act", "silu")?, false);
    let layer = layer(sizes.attention(rope, biases), mlp, norms(norm), Residual::Sequential);
    let spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: Naming { part, gate_up: Some(sizes.gate_up()), ..LLAMA }.names() })
}

/// GLM-4.5 and 4.6: heads may have norms, and turn in halves; DeepSeek V3's experts.
pub(super) fn glm4_moe(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::rms(config.number_or("rms_norm_eps", 1e-5)? as f32);
    let rope = sizes.partial_rope(config, 0.5, RopeStyle::Halves)?;
    let biases = Biases { qkv: config.flag_or("attention_bias", false)?, output: false };
    let qk_norm = config.flag_or("use_qk_norm", false)?.then_some(QkNorm::PerHead(norm));
    let attention = AttentionSpec { qk_norm, ..sizes.attention(rope, biases) };
    let version = Version { first_dense: 1, ..Version::V3 };
    let layers = feed_forwards(config, &sizes, &version)?.into_iter().map(|feed_forward| LayerSpec {
        mixer: attention.clone().into(),
        feed_forward,
        norms: LayerNorms::before(norm),
        residual: Residual::Sequential,
        residual_scale: 1.0,
    });
    let spec = sizes.model(folder, layers.collect(), norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: deepseek::NAMING.names() })
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Gate | LayerParam::Up => "mlp.gate_up_proj",
        other => (LLAMA.part)(other),
    }
}

const CHATGLM: Naming = Naming {
    embedding: "transformer.embedding.word_embeddings",
    final_norm: "transformer.encoder.final_layernorm",
    head: "transformer.output_layer",
    layers: "transformer.encoder.layers",
    part: |part| match part {
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "self_attention.query_key_value",
        LayerParam::Output => "self_attention.dense",
        LayerParam::Gate | LayerParam::Up => "mlp.dense_h_to_4h",
        LayerParam::Down => "mlp.dense_4h_to_h",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};
