//! T5's encoder: RMS norms before, no biases, scores that are not scaled, and a learned bias by distance that all
//! layers share in the place of positions.

use model_spec::{
    Activation, AttentionSpec, Biases, ConfigError, HeadSpec, LayerNorms, Mask, MlpKind, NormSpec, Position, Residual,
};

use super::mpnet::relative;
use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn t5_encoder(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let heads = config.size("num_heads")?;
    let sizes = Sizes {
        vocab: config.size("vocab_size")?,
        hidden: config.size("d_model")?,
        layers: config.size("num_layers")?,
        heads,
        kv_heads: heads,
        head_dim: config.size_or("d_kv", 64)?,
        intermediate: config.size("d_ff")?,
        // Distances have no end; the files say what the model was trained with.
        context_len: Some(config.size_or("n_positions", 512)?),
    };
    let (kind, activation, part) = match config.text_or("feed_forward_proj", "relu")?.as_str() {
        "relu" => (MlpKind::Plain, Activation::Relu, plain as fn(LayerParam) -> &'static str),
        "gated-gelu" => (MlpKind::Gated, Activation::GeluTanh, gated as fn(LayerParam) -> &'static str),
        "gated-silu" => (MlpKind::Gated, Activation::Silu, gated as fn(LayerParam) -> &'static str),
        _ => return Err(config.unsupported("feed_forward_proj", "expected relu, gated-gelu or gated-silu")),
    };
    let farthest = config.size_or("relative_attention_max_distance", 128)?;
    let position = Position::Relative(relative(config, "relative_attention_num_buckets", farthest)?);
    let attention =
        AttentionSpec { scale: 1.0, mask: Mask::Bidirectional, ..sizes.attention(position, Biases::default()) };
    let norm = NormSpec::rms(config.number_or("layer_norm_epsilon", 1e-6)? as f32);
    let mlp = sizes.mlp(kind, activation, false);
    let layers = vec![layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential); sizes.layers];
    let mut spec = sizes.model(folder, layers, norm, Tied::UnlessSaid)?;
    spec.head = HeadSpec::Hidden;
    Ok(Blueprint { spec, names: Naming { part, ..NAMING }.names() })
}

const NAMING: Naming = Naming {
    embedding: "shared",
    relative_bias: "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",
    final_norm: "encoder.final_layer_norm",
    layers: "encoder.block",
    ..LLAMA
};

fn plain(part: LayerParam) -> &'static str {
    match part {
        LayerParam::BeforeAttention => "layer.0.layer_norm",
        LayerParam::Query => "layer.0.SelfAttention.q",
        LayerParam::Key => "layer.0.SelfAttention.k",
        LayerParam::Value => "layer.0.SelfAttention.v",
        LayerParam::Output => "layer.0.SelfAttention.o",
        LayerParam::BeforeMlp => "layer.1.layer_norm",
        LayerParam::Up => "layer.1.DenseReluDense.wi",
        LayerParam::Down => "layer.1.DenseReluDense.wo",
        other => (LLAMA.part)(other),
    }
}

fn gated(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Gate => "layer.1.DenseReluDense.wi_0",
        LayerParam::Up => "layer.1.DenseReluDense.wi_1",
        other => plain(other),
    }
}
