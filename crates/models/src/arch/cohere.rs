//! Cohere's Command R and R7B: attention and MLP in parallel after one layer norm, interleaved rotary embedding, scaled
//! logits.
//!
//! R+ has norms on each head. R7B (Cohere 2) slides on most layers, and the others have no positions.

use model_spec::{
    AttentionSpec, Biases, ConfigError, ConfigFile, LayerNorms, LayerSpec, MlpKind, NormSpec, Position, QkNorm,
    Residual, RopeStyle,
};

use super::naming::LLAMA;
use super::parts::{Sizes, Tied, activation, layer, sliding_layers};
use super::{Blueprint, Folder};
use crate::weights::{FusedShard, LayerParam, Names, ParamId, TensorLocation};

pub(super) fn cohere(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = norm(config)?;
    let attention = AttentionSpec {
        qk_norm: config.flag_or("use_qk_norm", false)?.then_some(QkNorm::EachHead(norm)),
        ..attention(config, &sizes)?
    };
    let names = names(&sizes);
    build(folder, &sizes, vec![attention; sizes.layers], names)
}

pub(super) fn cohere2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let (window, period) = (config.size_opt("sliding_window")?, config.size_or("sliding_window_pattern", 4)?);
    let sliding = AttentionSpec { window, ..attention(config, &sizes)? };
    let global = AttentionSpec { window: None, position: Position::None, ..sliding.clone() };
    let layers = sliding_layers(config, sizes.layers, |index| !(index + 1).is_multiple_of(period))?;
    let layers = layers.into_iter().map(|slides| if slides { sliding.clone() } else { global.clone() });
    build(folder, &sizes, layers.collect(), LLAMA.names())
}

fn build(folder: &Folder, sizes: &Sizes, layers: Vec<AttentionSpec>, names: Names) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let norm = norm(config)?;
    let mlp = sizes.mlp(MlpKind::Gated, activation(config, "hidden_act", "silu")?, false);
    let parallel = |attention| layer(attention, mlp, LayerNorms::shared(norm), Residual::Parallel);
    let layers: Vec<LayerSpec> = layers.into_iter().map(parallel).collect();
    let mut spec = sizes.model(folder, layers, norm, Tied::UnlessSaid)?;
    let scale = config.number_or("logit_scale", 0.0625)? as f32;
    spec.head.change_logits(|head| head.scale = scale);
    Ok(Blueprint { spec, names })
}

fn norm(config: &ConfigFile) -> Result<NormSpec, ConfigError> {
    Ok(NormSpec { bias: false, ..NormSpec::layer(config.number_or("layer_norm_eps", 1e-5)? as f32) })
}

fn attention(config: &ConfigFile, sizes: &Sizes) -> Result<AttentionSpec, ConfigError> {
    let bias = config.flag_or("attention_bias", false)?;
    Ok(sizes.attention(sizes.rope(config, RopeStyle::Interleaved)?, Biases { qkv: bias, output: bias }))
}

/// The norms of all heads are one tensor `[heads, head_dim]`.
fn names(sizes: &Sizes) -> Names {
    let (heads, kv_heads, dim) = (sizes.heads, sizes.kv_heads, sizes.head_dim);
    let names = LLAMA.names();
    let of_head = move |location: TensorLocation, head, heads| TensorLocation {
        rows: FusedShard { offset: head * dim, size: dim, period: heads * dim },
        ..location
    };
    Box::new(move |slot, kind| match slot {
        ParamId::Layer(_, LayerParam::QueryHeadNorm(head)) => of_head(names(slot, kind), head, heads),
        ParamId::Layer(_, LayerParam::KeyHeadNorm(head)) => of_head(names(slot, kind), head, kv_heads),
        _ => names(slot, kind),
    })
}
