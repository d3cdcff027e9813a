//! Qwen 1: Llama under other names, with fused queries, keys and values and a bias on them.

use model_spec::{Activation, Biases, ConfigError, LayerNorms, MlpKind, NormSpec, Residual, RopeStyle};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, layer};
use super::{Blueprint, Folder};
use crate::weights::Part;

pub(super) fn qwen(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let mut sizes = Sizes::read(config)?;
    // Counts gate and up together.
    sizes.intermediate /= 2;
    // Beyond the training's length heads would turn and scores scale otherwise (use_dynamic_ntk, use_logn_attn), by the length so far,
    // which keys in a cache cannot follow.
    sizes.context_len = config.size_opt("seq_length")?.or(sizes.context_len);
    let norm = NormSpec::rms(config.number_or("layer_norm_epsilon", 1e-6)? as f32);
    let rope = sizes.partial_rope(config, config.number_or("rotary_pct", 1.0)?, RopeStyle::Halves)?;
    let bias = !config.flag_or("no_bias", true)?;
    let attention = sizes.attention(rope, Biases { qkv: true, output: bias });
    let mlp = sizes.mlp(MlpKind::Gated, Activation::Silu, bias);
    let layer = layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential);
    let spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: Naming { qkv: Some(sizes.stacked_qkv()), ..NAMING }.names() })
}

const NAMING: Naming = Naming {
    embedding: "transformer.wte",
    final_norm: "transformer.ln_f",
    layers: "transformer.h",
    part: |part| match part {
        Part::BeforeAttention => "ln_1",
        Part::BeforeMlp => "ln_2",
        Part::Query | Part::Key | Part::Value => "attn.c_attn",
        Part::Output => "attn.c_proj",
        Part::Gate => "mlp.w2",
        Part::Up => "mlp.w1",
        Part::Down => "mlp.c_proj",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};
