//! Gemma 1 and 2: norms that multiply by one plus the weight, scaled embeddings; Gemma 2 also norms what each part puts out, caps scores
//! and logits, and slides its window on every other layer.

use model_spec::{
    AttentionSpec, Biases, ConfigError, ConfigFile, EmbeddingSpec, HeadSpec, LayerNorms, LayerSpec, MlpKind, MlpSpec,
    ModelKind, ModelSpec, NormScale, NormSpec, Position, Residual, RopeDefaults, RopeStyle, context_len, read_rope,
};

use super::parts::{Sizes, activation, llama_part, names};
use super::{Blueprint, Folder};
use crate::weights::Part;

pub(super) fn gemma(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let norm = norm(&folder.config)?;
    let norms = LayerNorms { before_attention: Some(norm), before_mlp: Some(norm), ..Default::default() };
    let layer = layer(&folder.config, norms, attention(&folder.config)?)?;
    build(folder, |_| layer.clone(), llama_part)
}

pub(super) fn gemma2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let norm = Some(norm(config)?);
    let norms = LayerNorms { before_attention: norm, after_attention: norm, before_mlp: norm, after_mlp: norm };
    let scale = (config.number("query_pre_attn_scalar")? as f32).sqrt().recip();
    let soft_cap = config.number_opt("attn_logit_softcapping")?.map(|cap| cap as f32);
    let attention = AttentionSpec { scale, soft_cap, ..attention(config)? };
    let layer = layer(config, norms, attention.clone())?;
    let window = config.size_opt("sliding_window")?;
    let mut blueprint = build(
        folder,
        |index| {
            let window = window.filter(|_| index.is_multiple_of(2));
            LayerSpec { mixer: AttentionSpec { window, ..attention.clone() }.into(), ..layer.clone() }
        },
        |part| match part {
            Part::AfterAttention => "post_attention_layernorm",
            Part::BeforeMlp => "pre_feedforward_layernorm",
            Part::AfterMlp => "post_feedforward_layernorm",
            other => llama_part(other),
        },
    )?;
    blueprint.spec.head.soft_cap = config.number_opt("final_logit_softcapping")?.map(|cap| cap as f32);
    Ok(blueprint)
}

fn norm(config: &ConfigFile) -> Result<NormSpec, ConfigError> {
    let eps = config.number_or("rms_norm_eps", 1e-6)? as f32;
    Ok(NormSpec { scale: NormScale::OnePlusWeight, ..NormSpec::rms(eps) })
}

fn attention(config: &ConfigFile) -> Result<AttentionSpec, ConfigError> {
    let sizes = Sizes::read(config)?;
    let rope = RopeDefaults { theta: 10000.0, rotary_dim: sizes.head_dim, style: RopeStyle::Halves };
    let bias = config.flag_or("attention_bias", false)?;
    Ok(sizes.attention(Position::Rope(read_rope(config, rope)?), Biases { qkv: bias, output: bias }))
}

fn layer(config: &ConfigFile, norms: LayerNorms, attention: AttentionSpec) -> Result<LayerSpec, ConfigError> {
    Ok(LayerSpec {
        mixer: attention.into(),
        feed_forward: MlpSpec {
            kind: MlpKind::Gated,
            intermediate_size: config.size("intermediate_size")?,
            // The first files say "gelu" in hidden_act and mean the approximation.
            activation: activation(config, "hidden_activation", "gelu_pytorch_tanh")?,
            bias: false,
        }
        .into(),
        norms,
        residual: Residual::Sequential,
        residual_scale: 1.0,
    })
}

fn build(
    folder: &Folder,
    layer: impl Fn(usize) -> LayerSpec,
    part: fn(Part) -> &'static str,
) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let spec = ModelSpec {
        architecture: folder.architecture.clone(),
        kind: ModelKind::Decoder,
        vocab_size: sizes.vocab,
        hidden_size: sizes.hidden,
        context_len: context_len(config)?,
        dtype: folder.dtype,
        eos_token_ids: folder.eos_token_ids.clone(),
        embedding: EmbeddingSpec { scale: (sizes.hidden as f32).sqrt(), norm: None },
        layers: (0..sizes.layers).map(layer).collect(),
        final_norm: Some(norm(config)?),
        head: HeadSpec { tied: config.flag_or("tie_word_embeddings", true)?, bias: false, scale: 1.0, soft_cap: None },
    };
    Ok(Blueprint { spec, names: names("model.norm", part) })
}
