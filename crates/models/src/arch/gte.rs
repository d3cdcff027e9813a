//! GTE's own class (`NewModel`): BERT with rotary positions, a fused projection of queries, keys and values, and gated
//! MLPs.

use model_spec::{
    Biases, ConfigError, ConfigFile, MlpBias, MlpKind, NormSpec, Position, RopeScaling, RopeSpec, RopeStyle,
};

use super::bert::Encoder;
use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, activation};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn gte(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    if config.text_or("position_embedding_type", "rope")? != "rope" {
        return Err(config.unsupported("position_embedding_type", "expected rope"));
    }
    for flag in ["logn_attention_scale", "logn_attention_clip1"] {
        if config.flag_or(flag, false)? {
            return Err(config.unsupported(flag, "expected scores scaled by the head's width alone"));
        }
    }
    let sizes = Sizes::read(config)?;
    let activation = activation(config, "hidden_act", "gelu")?;
    let [up, gate] = sizes.gate_up();
    let encoder = Encoder {
        attention: sizes.attention(position(config, &sizes)?, Biases { qkv: true, output: true }),
        mlp: sizes.mlp(MlpKind::Gated, activation, MlpBias { up: false, down: true }),
        norm: norm(config)?,
        token_types: types(config)?,
        positions: None,
        naming: Naming {
            qkv: config.flag_or("pack_qkv", true)?.then(|| sizes.stacked_qkv()),
            part: if config.flag_or("pack_qkv", true)? { packed } else { apart },
            gate_up: Some([gate, up]),
            ..NAMING
        },
    };
    encoder.blueprint(folder, &sizes)
}

fn norm(config: &ConfigFile) -> Result<NormSpec, ConfigError> {
    let eps = config.number_or("layer_norm_eps", 1e-12)? as f32;
    match config.text_or("layer_norm_type", "layer_norm")?.as_str() {
        "layer_norm" => Ok(NormSpec::layer(eps)),
        "rms_norm" => Ok(NormSpec::rms(eps)),
        _ => Err(config.unsupported("layer_norm_type", "expected layer_norm or rms_norm")),
    }
}

/// Types of tokens; the file may say that there are 0.
fn types(config: &ConfigFile) -> Result<Option<usize>, ConfigError> {
    if config.number_opt("type_vocab_size")? == Some(0.0) { Ok(None) } else { config.size_opt("type_vocab_size") }
}

/// `ntk`: the base grows by the factor `f`, and frequencies are divided by `f^(2/dim)` besides.
fn position(config: &ConfigFile, sizes: &Sizes) -> Result<Position, ConfigError> {
    let scaling = match config.object("rope_scaling")? {
        Some(scaling) if scaling.text_or("type", "")? == "ntk" => scaling,
        _ => return sizes.rope(config, RopeStyle::Halves),
    };
    let factor = scaling.number("factor")?;
    if factor < 1.0 || scaling.number_opt("mixed_b")?.is_some() {
        return Err(scaling.unsupported("factor", "expected at least 1, and no mixed_b"));
    }
    let theta = config.number_or("rope_theta", 10000.0)? * factor;
    let factor = factor.powf(2.0 / sizes.head_dim as f64);
    let (rotary_dim, style) = (sizes.head_dim, RopeStyle::Halves);
    Ok(Position::Rope(RopeSpec { theta, rotary_dim, style, scaling: RopeScaling::Linear { factor } }))
}

const NAMING: Naming = Naming {
    embedding: "new.embeddings.word_embeddings",
    embedding_norm: "new.embeddings.LayerNorm",
    token_types: "new.embeddings.token_type_embeddings",
    head_dense: "new.pooler.dense",
    head: "classifier",
    layers: "new.encoder.layer",
    ..LLAMA
};

fn packed(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "attention.qkv_proj",
        other => apart(other),
    }
}

fn apart(part: LayerParam) -> &'static str {
    match part {
        LayerParam::AfterAttention => "attn_ln",
        LayerParam::AfterMlp => "mlp_ln",
        LayerParam::Query => "attention.q_proj",
        LayerParam::Key => "attention.k_proj",
        LayerParam::Value => "attention.v_proj",
        LayerParam::Output => "attention.o_proj",
        LayerParam::Gate | LayerParam::Up => "mlp.up_gate_proj",
        LayerParam::Down => "mlp.down_proj",
        other => (LLAMA.part)(other),
    }
}
