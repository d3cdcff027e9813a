//! Falcon: rotary embedding or ALiBi, one, some or all key/value heads, attention and MLP in parallel or one after the
//! other.
//!
//! ```text
//! RW             ALiBi, all heads, sequential
//! 7B             rotary, one key/value head, parallel after one norm
//! 40B, 180B      rotary, some key/value heads ("new decoder"), parallel, each part after its own norm
//! 11B            the same after one norm
//! ```

use model_spec::alibi_slopes;
use model_spec::{Biases, ConfigError, ConfigFile, LayerNorms, MlpKind, NormSpec, Position, Residual, RopeStyle};

use super::bloom::FALCON;
use super::naming::Naming;
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn falcon(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    if config.flag_or("apply_residual_connection_post_layernorm", false)? {
        return Err(config.unsupported("apply_residual_connection_post_layernorm", "only false is supported"));
    }
    let variant = Variant::read(config)?;
    let sizes = sizes(config, &variant)?;
    let norm = NormSpec::layer(config.number_or("layer_norm_epsilon", 1e-5)? as f32);
    let bias = config.flag_or("bias", false)?;
    let attention = sizes.attention(position(config, &sizes)?, Biases { qkv: bias, output: bias });
    let mlp = sizes.mlp(MlpKind::Plain, activation(config, "activation", "gelu")?, bias);
    let residual = if variant.parallel { Residual::Parallel } else { Residual::Sequential };
    let norms = if variant.norms == 2 { LayerNorms::before(norm) } else { LayerNorms::shared(norm) };
    let layers = vec![layer(attention, mlp, norms, residual); sizes.layers];
    let spec = sizes.model(folder, layers, norm, Tied::UnlessSaid)?;
    let part = if variant.new && variant.norms == 2 { two_norms } else { FALCON.part };
    let qkv = if config.is_gguf() { sizes.stacked_qkv() } else { sizes.grouped_qkv() };
    Ok(Blueprint { spec, names: Naming { qkv: Some(qkv), part, ..FALCON }.names() })
}

/// What the generations differ in.
struct Variant {
    /// The "new decoder".
    new: bool,
    parallel: bool,
    /// Norms on the inputs of a layer's parts.
    norms: usize,
}

impl Variant {
    fn read(config: &ConfigFile) -> Result<Self, ConfigError> {
        let new = config.flag_or("new_decoder_architecture", false)?;
        let parallel = new || config.flag_or("parallel_attn", true)?;
        let norms = match new {
            true => config.size_or("num_ln_in_parallel_attn", 2)?,
            false => 2 - usize::from(parallel),
        };
        if norms > 2 {
            return Err(config.unsupported("num_ln_in_parallel_attn", "expected 1 or 2"));
        }
        Ok(Self { new, parallel, norms })
    }
}

fn sizes(config: &ConfigFile, variant: &Variant) -> Result<Sizes, ConfigError> {
    let sizes = Sizes::with_intermediate(config, 4)?.or_context(2048);
    let heads = sizes.heads;
    let key = config.spelled(&["num_kv_heads", "n_head_kv"]).unwrap_or("num_kv_heads");
    match variant.new {
        true => sizes.with_kv_heads(config, key, config.size_or(key, heads)?),
        false if config.flag_or("multi_query", true)? => sizes.with_kv_heads(config, key, 1),
        false => Ok(sizes),
    }
}

fn position(config: &ConfigFile, sizes: &Sizes) -> Result<Position, ConfigError> {
    if !config.flag_or("alibi", false)? {
        return sizes.rope(config, RopeStyle::Halves);
    }
    // The bias is added before scores are scaled.
    let scale = (sizes.head_dim as f32).sqrt().recip() * alibi_times(config);
    Ok(Position::Alibi(alibi_slopes(sizes.heads, 8.0).into_iter().map(|slope| slope * scale).collect()))
}

/// How often the bias is added. Once by the code that the published checkpoints bring with them, which `auto_map`
/// names. A file that names none is the library's own, whose eager attention (transformers 4.41 to 4.57 at least) adds
/// it to the scores and to their mask.
fn alibi_times(config: &ConfigFile) -> f32 {
    if config.get("auto_map").is_some() { 1.0 } else { 2.0 }
}

fn two_norms(part: LayerParam) -> &'static str {
    match part {
        LayerParam::BeforeAttention => "ln_attn",
        LayerParam::BeforeMlp => "ln_mlp",
        other => (FALCON.part)(other),
    }
}
