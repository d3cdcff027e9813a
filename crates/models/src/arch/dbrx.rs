//! DBRX: clipped queries, keys and values, layer norms without shift, MoE whose weights are stacked and partly
//! transposed.

use model_spec::{
    Activation, AttentionSpec, Biases, ConfigError, ConfigFile, FeedForwardSpec, LayerNorms, LayerSpec, MlpKind,
    NormSpec, Position, Residual, RopeDefaults, RopeStyle, RoutingSpec, read_rope,
};

use super::expert_naming::{ExpertNaming, StackedParam};
use super::moe::moe;
use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, bound};
use super::{Blueprint, Folder};
use crate::weights::{FusedShard, LayerParam};

pub(super) fn dbrx(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let nested = |key| config.object(key)?.ok_or_else(|| config.missing(key, "an object"));
    let (attention, ffn) = (nested("attn_config")?, nested("ffn_config")?);
    let sizes = Sizes::with_intermediate(config, 0)?;
    let heads = sizes.heads;
    let sizes = sizes.with_kv_heads(&attention, "kv_n_heads", attention.size_or("kv_n_heads", heads)?)?;
    let sizes = Sizes { intermediate: ffn.size("ffn_hidden_size")?, ..sizes };
    let norm = NormSpec { bias: false, ..NormSpec::layer(1e-5) };
    let (experts, feed_forward) = feed_forward(&ffn, &sizes)?;
    let layer = LayerSpec {
        mixer: attend(config, &attention, &sizes)?.into(),
        feed_forward,
        norms: LayerNorms::before(norm),
        residual: Residual::Sequential,
        residual_scale: 1.0,
    };
    let spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    let piece = |weight, transposed| StackedParam { weight, bias: "", rows: FusedShard::ALL, transposed };
    let pieces =
        [piece("ffn.experts.mlp.w1", false), piece("ffn.experts.mlp.v1", false), piece("ffn.experts.mlp.w2", true)];
    let experts = ExpertNaming::Stacked { count: experts, pieces };
    Ok(Blueprint { spec, names: Naming { qkv: Some(sizes.stacked_qkv()), experts, ..NAMING }.names() })
}

fn attend(config: &ConfigFile, attention: &ConfigFile, sizes: &Sizes) -> Result<AttentionSpec, ConfigError> {
    let theta = attention.number_or("rope_theta", 10000.0)?;
    let rope = RopeDefaults { theta, rotary_dim: sizes.head_dim, style: RopeStyle::Halves };
    let position = Position::Rope(read_rope(config, rope)?);
    let clip = bound(attention, "clip_qkv")?;
    Ok(AttentionSpec { clip, ..sizes.attention(position, Biases::default()) })
}

/// Number of experts, and the MoE layer.
fn feed_forward(ffn: &ConfigFile, sizes: &Sizes) -> Result<(usize, FeedForwardSpec), ConfigError> {
    let (experts, top_k) = (ffn.size_or("moe_num_experts", 4)?, ffn.size_or("moe_top_k", 1)?);
    if top_k > experts {
        return Err(ffn.unsupported("moe_top_k", &format!("there are {experts} experts")));
    }
    let renormalise = match ffn.number_opt("moe_normalize_expert_weights")? {
        None => false,
        Some(1.0) => true,
        Some(_) => return Err(ffn.unsupported("moe_normalize_expert_weights", "only 1 and null are supported")),
    };
    let activation = match ffn.object("ffn_act_fn")? {
        None => Activation::Silu,
        Some(function) => super::parts::activation(&function, "name", "silu")?,
    };
    let mlp = sizes.mlp(MlpKind::Gated, activation, false);
    let routing = RoutingSpec { renormalise, ..RoutingSpec::softmax(top_k) };
    Ok((experts, moe(mlp, experts, routing).into()))
}

const NAMING: Naming = Naming {
    embedding: "transformer.wte",
    final_norm: "transformer.norm_f",
    layers: "transformer.blocks",
    part,
    ..LLAMA
};

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::BeforeAttention => "norm_attn_norm.norm_1",
        LayerParam::BeforeMlp => "norm_attn_norm.norm_2",
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "norm_attn_norm.attn.Wqkv",
        LayerParam::Output => "norm_attn_norm.attn.out_proj",
        LayerParam::Router => "ffn.router.layer",
        other => (LLAMA.part)(other),
    }
}
