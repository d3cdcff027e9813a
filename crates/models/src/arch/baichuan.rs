//! Baichuan 1 and 2: Llama with fused queries, keys and values. 7B turns heads, 13B uses ALiBi; the second generation's
//! head has rows of length one.

use model_spec::{Biases, ConfigError, LayerNorms, MlpKind, NormSpec, Position, Residual, RopeStyle, alibi_slopes};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

/// Vocabulary of the second generation.
const SECOND_VOCABULARY: usize = 125_696;

pub(super) fn baichuan(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::rms(config.number_or("rms_norm_eps", 1e-6)? as f32);
    // Both sizes of the second generation have one class name; only 7B's files name a number of positions.
    let position = match config.get("max_position_embeddings") {
        Some(_) => sizes.rope(config, RopeStyle::Halves)?,
        None => Position::Alibi(alibi_slopes(sizes.heads, 8.0)),
    };
    let mlp = sizes.mlp(MlpKind::Gated, activation(config, "hidden_act", "silu")?, false);
    let attention = sizes.attention(position, Biases::default());
    let layer = layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential);
    let mut spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    spec.head.change_logits(|head| head.unit_rows = sizes.vocab == SECOND_VOCABULARY);
    Ok(Blueprint { spec, names: Naming { part, qkv: Some(sizes.stacked_qkv()), ..LLAMA }.names() })
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "self_attn.W_pack",
        other => (LLAMA.part)(other),
    }
}
