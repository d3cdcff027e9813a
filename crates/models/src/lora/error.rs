//! Why an adapter cannot be used.

use std::path::PathBuf;

use super::{LoraForm, Vocabulary};
use crate::error::LoadError;
use crate::weights::Tensor;

/// An adapter that does not load. Nothing that runs is touched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// The network was loaded without room for adapters.
    #[error("adapters are not enabled: start with --enable-lora")]
    Disabled,
    /// There is no adapter.
    #[error("no adapter found for {}: {} is not there", dir.display(), dir.join("adapter_config.json").display())]
    NotFound {
        /// Where it was looked for.
        dir: PathBuf,
    },
    /// The file was overwritten while it was read.
    #[error("{} changed while it was read: load the adapter again once it is written", file.display())]
    Changed {
        /// The file.
        file: PathBuf,
    },
    /// A file that cannot be read.
    #[error("{}: {source}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// `adapter_config.json` is no description of an adapter.
    #[error("{}: {reason}", file.display())]
    Config {
        /// The file.
        file: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Something that the adapter asks for is not supported.
    #[error("{}: {field} is not supported: {instead}", file.display())]
    Unsupported {
        /// `adapter_config.json`.
        file: PathBuf,
        /// What, as the file calls it.
        field: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// No weights.
    #[error("{} has neither adapter_model.safetensors nor adapter_model.bin", dir.display())]
    NoWeights {
        /// The folder.
        dir: PathBuf,
    },
    /// The weight files.
    #[error(transparent)]
    Weights(#[from] Box<LoadError>),
    /// A tensor that cannot be applied to this model.
    #[error("tensor {tensor:?}: {reason}")]
    Tensor {
        /// Its name in the adapter's file.
        tensor: String,
        /// Why not.
        reason: String,
    },
    /// A file without adapters.
    #[error("{} has no tensor of an adapter", dir.display())]
    Empty {
        /// The folder.
        dir: PathBuf,
    },
}

/// A tensor of another shape than the model needs, which has one of its vocabulary's size where it is of an embedding
/// or a head.
pub(super) fn misshapen(form: LoraForm, tensor: &Tensor<'_>, expected: &[usize], vocab: Vocabulary) -> AdapterError {
    let Vocabulary { own, extra } = vocab;
    let instead = match form {
        LoraForm::Linear => String::new(),
        LoraForm::Head | LoraForm::Embedding if extra == 0 => {
            "; an adapter with tokens of its own needs --lora-extra-vocab-size, with room for those that it adds"
                .to_owned()
        }
        LoraForm::Head | LoraForm::Embedding => {
            format!(", or up to {} tokens with --lora-extra-vocab-size {extra}", own + extra)
        }
    };
    tensor_error(&tensor.name, format!("shape {:?}, but this model needs {expected:?}{instead}", tensor.shape))
}

pub(super) fn tensor_error(tensor: &str, reason: String) -> AdapterError {
    AdapterError::Tensor { tensor: tensor.to_owned(), reason }
}
