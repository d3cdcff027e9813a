//! GPT-NeoX and Pythia: queries, keys and values fused head by head, rotary embedding on a part of each head, attention
//! and MLP in parallel, each after its own layer norm, or one after the other.

use model_spec::{Biases, ConfigError, LayerNorms, MlpKind, NormSpec, Residual, RopeStyle};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn gpt_neox(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::layer(config.number_or("layer_norm_eps", 1e-5)? as f32);
    let rope = sizes.partial_rope(config, config.number_or("rotary_pct", 0.25)?, RopeStyle::Halves)?;
    let bias = config.flag_or("attention_bias", true)?;
    let residual =
        if config.flag_or("use_parallel_residual", true)? { Residual::Parallel } else { Residual::Sequential };
    let attention = sizes.attention(rope, Biases { qkv: bias, output: bias });
    let mlp = sizes.mlp(MlpKind::Plain, activation(config, "hidden_act", "gelu")?, true);
    let layer = layer(attention, mlp, LayerNorms::before(norm), residual);
    let spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: Naming { qkv: Some(sizes.grouped_qkv()), ..NAMING }.names() })
}

const NAMING: Naming = Naming {
    embedding: "gpt_neox.embed_in",
    final_norm: "gpt_neox.final_layer_norm",
    head: "embed_out",
    layers: "gpt_neox.layers",
    part: |part| match part {
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "attention.query_key_value",
        LayerParam::Output => "attention.dense",
        LayerParam::Up => "mlp.dense_h_to_4h",
        LayerParam::Down => "mlp.dense_4h_to_h",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};
