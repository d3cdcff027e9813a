//! bge-m3: an XLM-RoBERTa that gives each token a vector and a weight beside the prompt's vector (Chen et al. 2024,
//! "M3-Embedding").

use model_spec::{ConfigError, HeadSpec, ProjectionSpec};

use super::{Blueprint, Folder};
use crate::weights::{ParamId, ParamKind};

/// Files of the two layers, each with a `weight` and a `bias`: of tokens' vectors, and of their weights.
const LAYERS: [&str; 2] = ["colbert_linear.pt", "sparse_linear.pt"];

/// The two layers beside the hidden states. A weight's ReLU is left to who asks for it.
pub(super) fn head(_: &Folder, Blueprint { mut spec, names }: Blueprint) -> Result<Blueprint, ConfigError> {
    let inputs = spec.hidden_size;
    let layer = |(file, outputs): (&str, usize)| ProjectionSpec {
        file: Some(file.to_owned()),
        inputs,
        outputs,
        bias: true,
        activation: None,
    };
    spec.head = HeadSpec::HiddenWith(LAYERS.into_iter().zip([inputs, 1]).map(layer).collect());
    let named = move |id, kind: ParamKind| match id {
        ParamId::Projection(number) => format!("{}/{}", LAYERS[number], kind.ending()).into(),
        other => names(other, kind),
    };
    Ok(Blueprint { spec, names: Box::new(named) })
}
