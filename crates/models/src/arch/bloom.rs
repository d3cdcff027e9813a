//! BLOOM: ALiBi, a layer norm after the embedding, queries, keys and values fused head by head, biases everywhere.

use model_spec::{
    Activation, Biases, ConfigError, EmbeddingSpec, LayerNorms, MlpKind, NormSpec, Position, Residual, alibi_slopes,
};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn bloom(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::with_intermediate(config, 4)?.or_context(2048);
    let norm = NormSpec::layer(config.number_or("layer_norm_epsilon", 1e-5)? as f32);
    let residual = match config.flag_or("apply_residual_connection_post_layernorm", false)? {
        true => Residual::Normed,
        false => Residual::Sequential,
    };
    let position = Position::Alibi(alibi_slopes(sizes.heads, 8.0));
    let attention = sizes.attention(position, Biases { qkv: true, output: true });
    let mlp = sizes.mlp(MlpKind::Plain, Activation::GeluTanh, true);
    let layer = layer(attention, mlp, LayerNorms::before(norm), residual);
    let mut spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::UnlessSaid)?;
    spec.embedding = EmbeddingSpec { norm: Some(norm), ..spec.embedding };
    Ok(Blueprint { spec, names: Naming { qkv: Some(sizes.grouped_qkv()), ..NAMING }.names() })
}

const NAMING: Naming = Naming { embedding_norm: "transformer.word_embeddings_layernorm", ..FALCON };

/// As in Falcon's files, which came later.
pub(super) const FALCON: Naming = Naming {
    embedding: "transformer.word_embeddings",
    final_norm: "transformer.ln_f",
    layers: "transformer.h",
    part: |part| match part {
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "self_attention.query_key_value",
        LayerParam::Output => "self_attention.dense",
        LayerParam::Up => "mlp.dense_h_to_4h",
        LayerParam::Down => "mlp.dense_4h_to_h",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};
