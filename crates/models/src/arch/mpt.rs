//! MPT: ALiBi or learned positions, fused queries, keys and values, no biases in the models that were published.

use model_spec::{
    Activation, AttentionSpec, Biases, ConfigError, ConfigFile, LayerNorms, MlpKind, NormSpec, Position, PositionTable,
    Residual, alibi_slopes,
};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, bound, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn mpt(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let attention = config.object("attn_config")?.ok_or_else(|| config.missing("attn_config", "an object"))?;
    refuse(config, &attention)?;
    let sizes = sizes(config, &attention)?;
    let bias = !config.flag_or("no_bias", false)?;
    let norm = NormSpec { bias, ..NormSpec::layer(1e-5) };
    let mlp = sizes.mlp(MlpKind::Plain, Activation::Gelu, bias);
    let layer = layer(attend(&attention, &sizes, bias)?, mlp, LayerNorms::before(norm), Residual::Sequential);
    let mut spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::UnlessSaid)?;
    if !attention.flag_or("alibi", false)? && config.flag_or("learned_pos_emb", true)? {
        spec.embedding.positions = Some(PositionTable { rows: spec.context_len, offset: 0 });
    }
    let scale = match config.text_opt("logit_scale") {
        Ok(Some(name)) if name == "inv_sqrt_d_model" => (sizes.hidden as f32).sqrt().recip(),
        _ => config.number_or("logit_scale", 1.0)? as f32,
    };
    spec.head.change_logits(|head| head.scale = scale);
    Ok(Blueprint { spec, names: Naming { qkv: Some(sizes.stacked_qkv()), ..NAMING }.names() })
}

/// Refuses what no published model of the family has.
fn refuse(config: &ConfigFile, attention: &ConfigFile) -> Result<(), ConfigError> {
    for key in ["qk_ln", "qk_gn", "prefix_lm", "rope"] {
        if attention.flag_or(key, false)? {
            return Err(attention.unsupported(key, "only false is supported"));
        }
    }
    if !config.text_or("norm_type", "low_precision_layernorm")?.ends_with("layernorm") {
        return Err(config.unsupported("norm_type", "expected layernorm or low_precision_layernorm"));
    }
    Ok(())
}

fn sizes(config: &ConfigFile, attention: &ConfigFile) -> Result<Sizes, ConfigError> {
    // Four times, whatever `expansion_ratio` says: the library does not read it, and no published model differs.
    let sizes = Sizes::with_intermediate(config, 4)?;
    let heads = sizes.heads;
    match attention.text_or("attn_type", "multihead_attention")?.as_str() {
        "multihead_attention" => Ok(sizes),
        "multiquery_attention" => sizes.with_kv_heads(attention, "attn_type", 1),
        "grouped_query_attention" => {
            sizes.with_kv_heads(attention, "kv_n_heads", attention.size_or("kv_n_heads", heads)?)
        }
        _ => Err(attention.unsupported("attn_type", "expected multihead, multiquery or grouped_query _attention")),
    }
}

fn attend(attention: &ConfigFile, sizes: &Sizes, bias: bool) -> Result<AttentionSpec, ConfigError> {
    let position = match attention.flag_or("alibi", false)? {
        true => Position::Alibi(alibi_slopes(sizes.heads, attention.number_or("alibi_bias_max", 8.0)?)),
        false => Position::None,
    };
    let usual = sizes.attention(position, Biases { qkv: bias, output: bias });
    let scale = attention.number_opt("softmax_scale")?.map_or(usual.scale, |scale| scale as f32);
    Ok(AttentionSpec { scale, clip: bound(attention, "clip_qkv")?, ..usual })
}

const NAMING: Naming = Naming {
    embedding: "transformer.wte",
    positions: "transformer.wpe",
    final_norm: "transformer.norm_f",
    layers: "transformer.blocks",
    part: |part| match part {
        LayerParam::BeforeAttention => "norm_1",
        LayerParam::BeforeMlp => "norm_2",
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "attn.Wqkv",
        LayerParam::Output => "attn.out_proj",
        LayerParam::Up => "ffn.up_proj",
        LayerParam::Down => "ffn.down_proj",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};
