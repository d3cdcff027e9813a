//! What most architectures' files have in common: names of sizes, rotary embeddings, and how a layer is put together.

use model_spec::{
    Activation, AttentionSpec, Biases, ConfigError, ConfigFile, EmbeddingSpec, FeedForwardSpec, HeadSpec, LayerNorms,
    LayerSpec, Mask, MlpBias, MlpKind, MlpSpec, ModelSpec, NormSpec, Position, Residual, RopeDefaults, RopeStyle,
    context_len_opt, read_rope, rotary_dim,
};

use super::Folder;
use crate::weights::FusedShard;

/// Sizes under the keys that most files use.
pub(super) struct Sizes {
    pub vocab: usize,
    pub hidden: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub intermediate: usize,
    /// Longest sequence, where the file says.
    pub context_len: Option<usize>,
}

const INTERMEDIATE_KEYS: [&str; 4] = ["intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"];

impl Sizes {
    pub(super) fn read(config: &ConfigFile) -> Result<Self, ConfigError> {
        let sizes = Self::with_intermediate(config, 0)?;
        if sizes.intermediate == 0 {
            return Err(config.missing(INTERMEDIATE_KEYS[0], "a whole number of at least 1"));
        }
        Ok(sizes)
    }

    /// Where the file does not say, the MLP is `times` as wide as the residual stream.
    pub(super) fn with_intermediate(config: &ConfigFile, times: usize) -> Result<Self, ConfigError> {
        let size = |keys: &[&str]| config.size(config.spelled(keys).unwrap_or(keys[0]));
        let hidden = size(&["hidden_size", "n_embd", "n_embed", "d_model"])?;
        let heads = size(&["num_attention_heads", "n_head", "n_heads"])?;
        let kv_heads = config.size_or("num_key_value_heads", heads)?;
        let head_dim = match config.spelled(&["head_dim", "kv_channels"]) {
            Some(key) => config.size(key)?,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let reason = format!("it must divide the hidden size of {hidden} where head_dim is absent");
                return Err(config.unsupported("num_attention_heads", &reason));
            }
        };
        let sizes = Self {
            vocab: size(&["vocab_size", "padded_vocab_size"])?,
            hidden,
            layers: size(&["num_hidden_layers", "n_layer", "n_layers", "num_layers"])?,
            heads,
            kv_heads,
            head_dim,
            intermediate: match config.spelled(&INTERMEDIATE_KEYS) {
                Some(key) => config.size(key)?,
                None => times * hidden,
            },
            context_len: context_len_opt(config)?,
        };
        sizes.with_kv_heads(config, "num_key_value_heads", kv_heads)
    }

    /// The same with the number of key/value heads that stands under `key`.
    pub(super) fn with_kv_heads(self, config: &ConfigFile, key: &str, kv_heads: usize) -> Result<Self, ConfigError> {
        if !self.heads.is_multiple_of(kv_heads) {
            return Err(config.unsupported(key, &format!("it must divide the {} query heads", self.heads)));
        }
        Ok(Self { kv_heads, ..self })
    }

    /// The same with this context where the file names none.
    pub(super) fn or_context(self, default: usize) -> Self {
        Self { context_len: self.context_len.or(Some(default)), ..self }
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
            mask: Mask::Causal,
            window: None,
            soft_cap: None,
            sinks: false,
            qk_norm: None,
            clip: None,
            bias,
            gated: false,
        }
    }

    pub(super) fn mlp(&self, kind: MlpKind, activation: Activation, bias: impl Into<MlpBias>) -> MlpSpec {
        MlpSpec { kind, intermediate_size: self.intermediate, activation, bias: bias.into() }
    }

    /// Rotary embedding of the whole head.
    pub(super) fn rope(&self, config: &ConfigFile, style: RopeStyle) -> Result<Position, ConfigError> {
        self.rope_of(config, self.head_dim, style)
    }

    /// Rotary embedding of a part of the head: `partial_rotary_factor`, or the default.
    pub(super) fn partial_rope(
        &self,
        config: &ConfigFile,
        default: f64,
        style: RopeStyle,
    ) -> Result<Position, ConfigError> {
        self.rope_of(config, rotary_dim(config, self.head_dim, default)?, style)
    }

    /// Rotary embedding of the first `rotary_dim` elements of a head.
    pub(super) fn rope_of(
        &self,
        config: &ConfigFile,
        rotary_dim: usize,
        style: RopeStyle,
    ) -> Result<Position, ConfigError> {
        read_rope(config, RopeDefaults { theta: 10000.0, rotary_dim, style }).map(Position::Rope)
    }

    /// A fused tensor of all queries, all keys, all values.
    pub(super) fn stacked_qkv(&self) -> [FusedShard; 3] {
        let (q, kv) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        FusedShard::split([q, kv, kv])
    }

    /// A fused tensor of groups: the query heads of a key/value head, its key, its value.
    pub(super) fn grouped_qkv(&self) -> [FusedShard; 3] {
        FusedShard::split([self.heads / self.kv_heads * self.head_dim, self.head_dim, self.head_dim])
    }

    /// A fused tensor of gate and up.
    pub(super) fn gate_up(&self) -> [FusedShard; 2] {
        FusedShard::split([self.intermediate; 2])
    }

    /// A model of these layers: plain embeddings before, a norm and the head after.
    pub(super) fn model(
        &self,
        folder: &Folder,
        layers: Vec<LayerSpec>,
        final_norm: NormSpec,
        tied: Tied,
    ) -> Result<ModelSpec, ConfigError> {
        let tied = folder.config.flag_or("tie_word_embeddings", matches!(tied, Tied::UnlessSaid))?;
        let no_length = || folder.config.missing("max_position_embeddings", "a number of tokens");
        let context_len = self.context_len.ok_or_else(no_length)?;
        Ok(ModelSpec {
            architecture: folder.architecture.clone(),
            vocab_size: self.vocab,
            hidden_size: self.hidden,
            context_len,
            dtype: folder.dtype,
            eos_token_ids: folder.eos_token_ids.clone(),
            embedding: EmbeddingSpec::plain(self.hidden),
            layers,
            final_norm: Some(final_norm),
            head: HeadSpec::plain(tied),
        })
    }
}

/// Whether the head is the embedding's matrix where `tie_word_embeddings` is absent.
pub(super) enum Tied {
    /// It is.
    UnlessSaid,
    /// It has its own.
    IfSaid,
}

/// A layer of attention and an MLP.
pub(super) fn layer(attention: AttentionSpec, mlp: MlpSpec, norms: LayerNorms, residual: Residual) -> LayerSpec {
    LayerSpec {
        mixer: attention.into(),
        feed_forward: FeedForwardSpec::Dense(mlp),
        norms,
        residual,
        residual_scale: 1.0,
    }
}

/// The non-linearity under `key`.
pub(super) fn activation(config: &ConfigFile, key: &str, default: &str) -> Result<Activation, ConfigError> {
    Activation::from_name(&config.text_or(key, default)?)
        .ok_or_else(|| config.unsupported(key, "expected silu, gelu, gelu_new, gelu_pytorch_tanh, relu or relu2"))
}

/// How far from 0 numbers may be, under `key`; absent: any number will do.
pub(super) fn bound(config: &ConfigFile, key: &str) -> Result<Option<f32>, ConfigError> {
    match config.number_opt(key)? {
        Some(bound) if bound < 0.0 => Err(config.unsupported(key, "expected 0 or more")),
        bound => Ok(bound.map(|bound| bound as f32)),
    }
}

/// Whether each layer's attention slides: as `layer_types` says, else as `default` does.
pub(super) fn sliding_layers(
    config: &ConfigFile,
    layers: usize,
    default: impl Fn(usize) -> bool,
) -> Result<Vec<bool>, ConfigError> {
    match config.texts_opt("layer_types")? {
        Some(types) if types.len() != layers => {
            Err(config.unsupported("layer_types", &format!("expected {layers} entries")))
        }
        Some(types) => Ok(types.iter().map(|kind| kind == "sliding_attention").collect()),
        None => Ok((0..layers).map(default).collect()),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn bounds_are_not_negative() {
        let read =
            |text: &str| bound(&ConfigFile::parse(Path::new("config.json"), text.as_bytes()).unwrap(), "clip_qkv");
        assert_eq!(read("{}").unwrap(), None);
        assert_eq!(read(r#"{"clip_qkv": 8}"#).unwrap(), Some(8.0));
        let refusal = read(r#"{"clip_qkv": -8}"#).unwrap_err().to_string();
        assert!(refusal.contains("clip_qkv") && refusal.contains("0 or more"), "{refusal}");
    }
}
