//! Phi 1, 1.5 and 2: attention and MLP in parallel after one layer norm, rotary embedding on a part of each head, biases everywhere.

use model_spec::{
    Biases, ConfigError, EmbeddingSpec, HeadSpec, LayerNorms, LayerSpec, MlpKind, MlpSpec, ModelKind, ModelSpec,
    NormSpec, Position, Residual, RopeDefaults, RopeStyle, context_len, read_rope,
};

use super::parts::{Sizes, activation, llama_part, names};
use super::{Blueprint, Folder};
use crate::weights::Part;

pub(super) fn phi(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    if config.flag_or("qk_layernorm", false)? {
        return Err(config.unsupported("qk_layernorm", "it is not supported"));
    }
    let norm = NormSpec::layer(config.number_or("layer_norm_eps", 1e-5)? as f32);
    let rotary_dim = (sizes.head_dim as f64 * config.number_or("partial_rotary_factor", 0.5)?) as usize;
    let rope = RopeDefaults { theta: 10000.0, rotary_dim, style: RopeStyle::Halves };
    let layer = LayerSpec {
        mixer: sizes.attention(Position::Rope(read_rope(config, rope)?), Biases { qkv: true, output: true }).into(),
        feed_forward: MlpSpec {
            kind: MlpKind::Plain,
            intermediate_size: sizes.intermediate,
            activation: activation(config, "hidden_act", "gelu_new")?,
            bias: true,
        }
        .into(),
        norms: LayerNorms { before_attention: Some(norm), ..Default::default() },
        residual: Residual::Parallel,
        residual_scale: 1.0,
    };
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
        head: HeadSpec { tied: config.flag_or("tie_word_embeddings", false)?, bias: true, scale: 1.0, soft_cap: None },
    };
    Ok(Blueprint { spec, names: names("model.final_layernorm", part) })
}

fn part(part: Part) -> &'static str {
    match part {
        Part::Output => "self_attn.dense",
        Part::Up => "mlp.fc1",
        Part::Down => "mlp.fc2",
        other => llama_part(other),
    }
}
