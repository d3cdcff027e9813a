//! Qwen3-Next: linear attention by the gated delta rule, every few layers gated softmax attention, and MoE.

use model_spec::{
    AttentionSpec, Biases, ConfigError, ConfigFile, DeltaSpec, LayerNorms, LayerSpec, MixerSpec, MlpKind, NormScale,
    NormSpec, QkNorm, Residual, RopeStyle,
};

use super::parts::{Sizes, Tied, activation};
use super::{Blueprint, Folder, qwen_moe};
use crate::weights::{FusedShard, LayerParam, Names, ParamId, TensorLocation};

pub(super) fn qwen3_next(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let eps = config.number_or("rms_norm_eps", 1e-6)? as f32;
    let norm = NormSpec { scale: NormScale::OnePlusWeight, ..NormSpec::rms(eps) };
    let bias = config.flag_or("attention_bias", false)?;
    let rope = sizes.partial_rope(config, 0.25, RopeStyle::Halves)?;
    let attention = AttentionSpec {
        qk_norm: Some(QkNorm::PerHead(norm)),
        gated: true,
        ..sizes.attention(rope, Biases { qkv: bias, output: bias })
    };
    let delta = delta(config, eps)?;
    let linear = linear_layers(config, sizes.layers)?;
    let (experts, mlp) =
        (qwen_moe::Layers::read(config)?, sizes.mlp(MlpKind::Gated, activation(config, "hidden_act", "silu")?, false));
    let layer = |(index, linear): (usize, &bool)| LayerSpec {
        mixer: if *linear { MixerSpec::Delta(delta) } else { attention.clone().into() },
        feed_forward: experts.feed_forward(index, mlp),
        norms: LayerNorms::before(norm),
        residual: Residual::Sequential,
        residual_scale: 1.0,
    };
    let layers = linear.iter().enumerate().map(layer).collect();
    let spec = sizes.model(folder, layers, norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: names(linear, delta, sizes.head_dim) })
}

fn delta(config: &ConfigFile, norm_eps: f32) -> Result<DeltaSpec, ConfigError> {
    let (key_heads, value_heads) = (config.size("linear_num_key_heads")?, config.size("linear_num_value_heads")?);
    if !value_heads.is_multiple_of(key_heads) {
        let reason = format!("it must be a multiple of linear_num_key_heads = {key_heads}");
        return Err(config.unsupported("linear_num_value_heads", &reason));
    }
    let conv_kernel = config.size_or("linear_conv_kernel_dim", 4)?;
    if !(2..=8).contains(&conv_kernel) {
        return Err(config.unsupported("linear_conv_kernel_dim", "from 2 to 8 tokens are supported"));
    }
    let (key_dim, value_dim) = (config.size("linear_key_head_dim")?, config.size("linear_value_head_dim")?);
    Ok(DeltaSpec { key_heads, value_heads, key_dim, value_dim, conv_kernel, norm_eps })
}

/// Which layers are linear: as `layer_types` says, else all but every `full_attention_interval`-th.
fn linear_layers(config: &ConfigFile, layers: usize) -> Result<Vec<bool>, ConfigError> {
    match config.texts_opt("layer_types")? {
        Some(types) if types.len() != layers => {
            Err(config.unsupported("layer_types", &format!("expected {layers} entries")))
        }
        Some(types) => Ok(types.iter().map(|kind| kind == "linear_attention").collect()),
        None => {
            let interval = config.size_or("full_attention_interval", 4)?;
            Ok((1..=layers).map(|layer| !layer.is_multiple_of(interval)).collect())
        }
    }
}

/// As Qwen's MoE models, but for linear layers, whose projections are grouped by key head, and for queries with their
/// gate beside them.
fn names(linear: Vec<bool>, delta: DeltaSpec, head_dim: usize) -> Names {
    let usual = qwen_moe::NAMING.names();
    let values = delta.value_heads / delta.key_heads;
    let width = values * delta.value_dim;
    let [q, k, v, gate] = FusedShard::split([delta.key_dim, delta.key_dim, width, width]);
    let [beta, step] = FusedShard::split([values, values]);
    let [query, query_gate] = FusedShard::split([head_dim, head_dim]);
    Box::new(move |slot, kind| {
        let ParamId::Layer(layer, part) = slot else { return usual(slot, kind) };
        if !linear[layer] {
            let rows = match part {
                LayerParam::Query => query,
                LayerParam::MixerGate => query_gate,
                _ => return usual(slot, kind),
            };
            return TensorLocation { rows, ..usual(ParamId::Layer(layer, LayerParam::Query), kind) };
        }
        let (name, rows) = match part {
            LayerParam::Query => ("in_proj_qkvz.weight", q),
            LayerParam::Key => ("in_proj_qkvz.weight", k),
            LayerParam::Value => ("in_proj_qkvz.weight", v),
            LayerParam::MixerGate => ("in_proj_qkvz.weight", gate),
            LayerParam::Beta => ("in_proj_ba.weight", beta),
            LayerParam::Step => ("in_proj_ba.weight", step),
            LayerParam::Taps => ("conv1d.weight", FusedShard::ALL),
            LayerParam::Decay => ("A_log", FusedShard::ALL),
            LayerParam::StepBias => ("dt_bias", FusedShard::ALL),
            LayerParam::MixerNorm => ("norm.weight", FusedShard::ALL),
            LayerParam::Output => ("out_proj.weight", FusedShard::ALL),
            _ => return usual(slot, kind),
        };
        TensorLocation { rows, ..TensorLocation::from(format!("model.layers.{layer}.linear_attn.{name}")) }
    })
}
