//! InternLM 2 and 2.5: Llama under other names, with queries, keys and values fused group by group.

use model_spec::{Biases, ConfigError, LayerNorms, MlpKind, NormSpec, Residual, RopeStyle};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn internlm2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::rms(config.number_or("rms_norm_eps", 1e-6)? as f32);
    let bias = config.flag_or("bias", true)?;
    let attention = sizes.attention(sizes.rope(config, RopeStyle::Halves)?, Biases { qkv: bias, output: bias });
    let mlp = sizes.mlp(MlpKind::Gated, activation(config, "hidden_act", "silu")?, false);
    let layer = layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential);
    let spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: Naming { qkv: Some(sizes.grouped_qkv()), ..NAMING }.names() })
}

const NAMING: Naming = Naming {
    embedding: "model.tok_embeddings",
    head: "output",
    part: |part| match part {
        LayerParam::BeforeAttention => "attention_norm",
        LayerParam::BeforeMlp => "ffn_norm",
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "attention.wqkv",
        LayerParam::Output => "attention.wo",
        LayerParam::Gate => "feed_forward.w1",
        LayerParam::Up => "feed_forward.w3",
        LayerParam::Down => "feed_forward.w2",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};
