//! What most architectures' files have in common: names of sizes, and names of weights.

use model_spec::{Activation, AttentionSpec, Biases, ConfigError, ConfigFile, Position};

use crate::weights::{Kind, Names, Part, Slot};

/// Sizes under the keys that most files use.
pub(super) struct Sizes {
    pub vocab: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub intermediate: usize,
}

impl Sizes {
    pub(super) fn read(config: &ConfigFile) -> Result<Self, ConfigError> {
        let hidden = config.size("hidden_size")?;
        let heads = config.size("num_attention_heads")?;
        let kv_heads = config.size_or("num_key_value_heads", heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(
                config.unsupported("num_key_value_heads", &format!("it must divide num_attention_heads = {heads}"))
            );
        }
        Ok(Self {
            vocab: config.size("vocab_size")?,
            hidden,
            layers: config.size("num_hidden_layers")?,
            heads,
            kv_heads,
            head_dim: config.size_or("head_dim", hidden / heads)?,
            intermediate: config.size("intermediate_size")?,
        })
    }

    /// Attention with nothing special: scaled by the head's width, over all tokens before.
    pub(super) fn attention(&self, position: Position, bias: Biases) -> AttentionSpec {
        AttentionSpec {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            v_head_dim: self.head_dim,
            scale: (self.head_dim as f32).sqrt().recip(),
            position,
            window: None,
            soft_cap: None,
            sinks: false,
            qk_norm: None,
            bias,
        }
    }
}

/// The non-linearity under `key`.
pub(super) fn activation(config: &ConfigFile, key: &str, default: &str) -> Result<Activation, ConfigError> {
    Activation::from_name(&config.text_or(key, default)?)
        .ok_or_else(|| config.unsupported(key, "expected silu, gelu, gelu_new, gelu_pytorch_tanh, relu or relu2"))
}

/// Names of the usual form: `model.layers.3.` and what `part` says, `.weight` or `.bias`.
pub(super) fn names(final_norm: &'static str, part: fn(Part) -> &'static str) -> Names {
    Box::new(move |slot, kind| {
        let ending = match kind {
            Kind::Weight => "weight",
            Kind::Bias => "bias",
        };
        match slot {
            Slot::Embedding | Slot::EmbeddingNorm => format!("model.embed_tokens.{ending}"),
            Slot::FinalNorm => format!("{final_norm}.{ending}"),
            Slot::Head => format!("lm_head.{ending}"),
            Slot::Layer(layer, piece) => format!("model.layers.{layer}.{}.{ending}", part(piece)),
        }
    })
}

/// Names of the parts of a layer as in Llama's files, which many follow.
pub(super) fn llama_part(part: Part) -> &'static str {
    match part {
        Part::BeforeAttention => "input_layernorm",
        Part::BeforeMlp => "post_attention_layernorm",
        Part::AfterAttention => "post_self_attn_layernorm",
        Part::AfterMlp => "post_mlp_layernorm",
        Part::Query => "self_attn.q_proj",
        Part::Key => "self_attn.k_proj",
        Part::Value => "self_attn.v_proj",
        Part::Output => "self_attn.o_proj",
        Part::QueryNorm => "self_attn.q_norm",
        Part::KeyNorm => "self_attn.k_norm",
        Part::Sinks => "self_attn.sinks",
        Part::Gate => "mlp.gate_proj",
        Part::Up => "mlp.up_proj",
        Part::Down => "mlp.down_proj",
    }
}
