//! MPNet: BERT without types of tokens, whose layers share a learned bias by distance besides its learned positions.

use model_spec::{Biases, ConfigError, ConfigFile, MlpKind, NormSpec, Position, RelativeBias};

use super::bert::{self, Encoder};
use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, activation};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn mpnet(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let position = Position::Relative(relative(config, "relative_attention_num_buckets", 128)?);
    let padding = config.token_ids("pad_token_id")?.first().copied().unwrap_or(1);
    let encoder = Encoder {
        attention: sizes.attention(position, Biases { qkv: true, output: true }),
        mlp: sizes.mlp(MlpKind::Plain, activation(config, "hidden_act", "gelu")?, true),
        norm: NormSpec::layer(config.number_or("layer_norm_eps", 1e-12)? as f32),
        token_types: None,
        positions: Some(padding as usize + 1),
        naming: NAMING,
    };
    encoder.blueprint(folder, &sizes)
}

/// Biases by distance, with as many buckets as `key` says.
pub(super) fn relative(config: &ConfigFile, key: &str, max_distance: usize) -> Result<RelativeBias, ConfigError> {
    let buckets = config.size_or(key, 32)?;
    if !buckets.is_multiple_of(4) || buckets / 4 >= max_distance {
        return Err(config.unsupported(key, "expected a multiple of 4, of fewer than the largest distance a quarter"));
    }
    Ok(RelativeBias { buckets, max_distance })
}

const NAMING: Naming = Naming {
    embedding: "mpnet.embeddings.word_embeddings",
    embedding_norm: "mpnet.embeddings.LayerNorm",
    positions: "mpnet.embeddings.position_embeddings",
    relative_bias: "mpnet.encoder.relative_attention_bias",
    head_dense: "classifier.dense",
    head: "classifier.out_proj",
    layers: "mpnet.encoder.layer",
    part: |part| match part {
        LayerParam::AfterAttention => "attention.LayerNorm",
        LayerParam::Query => "attention.attn.q",
        LayerParam::Key => "attention.attn.k",
        LayerParam::Value => "attention.attn.v",
        LayerParam::Output => "attention.attn.o",
        other => bert::part(other),
    },
    ..LLAMA
};
