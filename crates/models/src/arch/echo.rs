//! The echo model: it repeats the prompt and costs nothing, to measure everything around a model.
//!
//! Its folder needs only `{"architectures": ["EchoForCausalLM"], "vocab_size": ..., "max_position_embeddings": ...}`.

use model_spec::{ConfigError, EmbeddingSpec, HeadSpec, ModelKind, ModelSpec};

use super::{Blueprint, Folder};

pub(super) fn echo(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let spec = ModelSpec {
        architecture: folder.architecture.clone(),
        kind: ModelKind::Echo,
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

/// The token after `history` (prompt and output so far): the prompt again and again; 0 without a prompt.
pub(crate) fn next(history: &[u32], num_prompt_tokens: usize) -> u32 {
    let prompt = &history[..num_prompt_tokens.min(history.len())];
    if prompt.is_empty() { 0 } else { prompt[history.len() % prompt.len()] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeats_the_prompt() {
        let mut history = vec![7, 8, 9];
        for _ in 0..7 {
            history.push(next(&history, 3));
        }
        assert_eq!(history, [7, 8, 9, 7, 8, 9, 7, 8, 9, 7]);
        assert_eq!(next(&[], 0), 0);
    }
}
