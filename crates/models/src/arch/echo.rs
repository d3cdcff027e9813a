//! The echo model: it repeats the prompt and costs nothing, to measure everything around a model (see
//! `runner/echo.rs`).
//!
//! Its folder needs only `{"architectures": ["EchoForCausalLM"], "vocab_size": ..., "max_position_embeddings": ...}`.

use model_spec::{ConfigError, EmbeddingSpec, HeadSpec, ModelSpec};

use super::{Blueprint, Folder};

pub(super) fn echo(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let spec = ModelSpec {
        architecture: folder.architecture.clone(),
        vocab_size: folder.config.size("vocab_size")?,
        hidden_size: 1,
        context_len: folder.config.size("max_position_embeddings")?,
        dtype: folder.dtype,
        eos_token_ids: folder.eos_token_ids.clone(),
        embedding: EmbeddingSpec::plain(1),
        layers: Vec::new(),
        final_norm: None,
        head: HeadSpec::plain(true),
    };
    Ok(Blueprint { spec, names: Box::new(|_, _| String::new().into()) })
}
