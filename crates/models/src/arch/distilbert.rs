//! DistilBERT: BERT without types of tokens, under its own names.

use model_spec::{
    Activation, Biases, ClassesSpec, ConfigError, DenseSpec, HeadActivation, MlpKind, NormSpec, Position, ScoredTokens,
};

use super::bert::Encoder;
use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, activation};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn distilbert(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let (hidden, heads) = (config.size("dim")?, config.size("n_heads")?);
    if !hidden.is_multiple_of(heads) {
        return Err(config.unsupported("n_heads", "it must divide dim"));
    }
    let sizes = Sizes {
        vocab: config.size("vocab_size")?,
        hidden,
        layers: config.size("n_layers")?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        intermediate: config.size("hidden_dim")?,
        context_len: config.size_opt("max_position_embeddings")?,
    };
    let encoder = Encoder {
        attention: sizes.attention(Position::None, Biases { qkv: true, output: true }),
        mlp: sizes.mlp(MlpKind::Plain, activation(config, "activation", "gelu")?, true),
        norm: NormSpec::layer(1e-12),
        token_types: None,
        positions: Some(0),
        naming: NAMING,
    };
    encoder.blueprint(folder, &sizes)
}

/// Class scores of the first token: dense and ReLU, then the classifier.
pub(super) fn classes(count: usize) -> ClassesSpec {
    let dense = DenseSpec { activation: HeadActivation::Of(Activation::Relu), bias: true, norm: None };
    ClassesSpec { count, bias: true, dense: Some(dense), of: ScoredTokens::First, tokens: None }
}

const NAMING: Naming = Naming {
    embedding: "distilbert.embeddings.word_embeddings",
    embedding_norm: "distilbert.embeddings.LayerNorm",
    positions: "distilbert.embeddings.position_embeddings",
    head_dense: "pre_classifier",
    head: "classifier",
    layers: "distilbert.transformer.layer",
    part: |part| match part {
        LayerParam::AfterAttention => "sa_layer_norm",
        LayerParam::AfterMlp => "output_layer_norm",
        LayerParam::Query => "attention.q_lin",
        LayerParam::Key => "attention.k_lin",
        LayerParam::Value => "attention.v_lin",
        LayerParam::Output => "attention.out_lin",
        LayerParam::Up => "ffn.lin1",
        LayerParam::Down => "ffn.lin2",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};
