//! SPLADE: encoders under their masked-language head, whose logits become one sparse vector over the vocabulary
//! (Formal et al. 2021, "SPLADE: Sparse Lexical and Expansion Model for First Stage Ranking").

use model_spec::{Activation, ClassesSpec, ConfigError, DenseSpec, HeadActivation, HeadSpec, NormSpec, ScoredTokens};

use super::parts::activation;
use super::{Blueprint, Folder};
use crate::weights::{Names, ParamId};

/// Where the head's tensors are; its matrix is the embedding's.
struct Tensors {
    dense: &'static str,
    norm: &'static str,
    embedding: &'static str,
    bias: &'static str,
}

/// The head of BERT's kind.
pub(super) fn bert(folder: &Folder, blueprint: Blueprint) -> Result<Blueprint, ConfigError> {
    let tensors = Tensors {
        dense: "cls.predictions.transform.dense",
        norm: "cls.predictions.transform.LayerNorm",
        embedding: "bert.embeddings.word_embeddings.weight",
        bias: "cls.predictions.bias",
    };
    let activation = activation(&folder.config, "hidden_act", "gelu")?;
    let norm = NormSpec::layer(folder.config.number_or("layer_norm_eps", 1e-12)? as f32);
    Ok(masked_head(blueprint, tensors, activation, norm))
}

/// The head of DistilBERT's kind.
pub(super) fn distilbert(folder: &Folder, blueprint: Blueprint) -> Result<Blueprint, ConfigError> {
    let tensors = Tensors {
        dense: "vocab_transform",
        norm: "vocab_layer_norm",
        embedding: "distilbert.embeddings.word_embeddings.weight",
        bias: "vocab_projector.bias",
    };
    let activation = activation(&folder.config, "activation", "gelu")?;
    Ok(masked_head(blueprint, tensors, activation, NormSpec::layer(1e-12)))
}

fn masked_head(blueprint: Blueprint, tensors: Tensors, activation: Activation, norm: NormSpec) -> Blueprint {
    let Blueprint { mut spec, names } = blueprint;
    let dense = DenseSpec { activation: HeadActivation::Of(activation), bias: true, norm: Some(norm) };
    let (count, of) = (spec.vocab_size, ScoredTokens::AllSparse);
    spec.head = HeadSpec::Classes(ClassesSpec { count, bias: true, dense: Some(dense), of, tokens: None });
    Blueprint { spec, names: named(names, tensors) }
}

fn named(names: Names, tensors: Tensors) -> Names {
    let Tensors { dense, norm, embedding, bias } = tensors;
    Box::new(move |id, kind| match (id, kind.ending()) {
        (ParamId::HeadDense, ending) => format!("{dense}.{ending}").into(),
        (ParamId::HeadNorm, ending) => format!("{norm}.{ending}").into(),
        (ParamId::Head, "bias") => bias.to_owned().into(),
        (ParamId::Head, _) => embedding.to_owned().into(),
        (other, _) => names(other, kind),
    })
}
