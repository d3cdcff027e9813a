//! Cohere's Command R: attention and MLP in parallel after one layer norm, interleaved rotary embedding, scaled logits.

use model_spec::{
    Biases, ConfigError, EmbeddingSpec, HeadSpec, LayerNorms, LayerSpec, MlpKind, MlpSpec, ModelKind, ModelSpec,
    NormSpec, Position, Residual, RopeDefaults, RopeStyle, context_len, read_rope,
};

use super::parts::{Sizes, activation, llama_part, names};
use super::{Blueprint, Folder};

pub(super) fn cohere(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    if config.flag_or("use_qk_norm", false)? {
        return Err(config.unsupported("use_qk_norm", "norms with a weight for each head are not supported"));
    }
    let norm = NormSpec { bias: false, ..NormSpec::layer(config.number_or("layer_norm_eps", 1e-5)? as f32) };
    let rope = RopeDefaults { theta: 10000.0, rotary_dim: sizes.head_dim, style: RopeStyle::Interleaved };
    let bias = config.flag_or("attention_bias", false)?;
    let layer = LayerSpec {
        mixer: sizes.attention(Position::Rope(read_rope(config, rope)?), Biases { qkv: bias, output: bias }).into(),
        feed_forward: MlpSpec {
            kind: MlpKind::Gated,
            intermediate_size: sizes.intermediate,
            activation: activation(config, "hidden_act", "silu")?,
            bias: false,
        }
        .into(),
        norms: LayerNorms { before_attention: Some(norm), ..Default::default() },
        residual: Residual::Parallel,
        residual_scale: 1.0,
    };
    let scale = config.number_or("logit_scale", 0.0625)? as f32;
    let spec = ModelSpec {
        architecture: folder.architecture.clone(),
        kind: ModelKind::Decoder,
        vocab_size: sizes.vocab,
        hidden_size: sizes.hidden,
        context_len: context_len(config)?,
        dtype: folder.dtype,
        eos_token_ids: folder.eos_token_ids.clone(),
        embedding: EmbeddingSpec { scale: 1.0, norm: None },
        layers: vec![layer; sizes.layers],
        final_norm: Some(norm),
        head: HeadSpec { tied: config.flag_or("tie_word_embeddings", true)?, bias: false, scale, soft_cap: None },
    };
    Ok(Blueprint { spec, names: names("model.norm", llama_part) })
}
