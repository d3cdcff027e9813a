//! gpt-oss: attention with learned sinks, every other layer through a window; MoE with clamped experts, gate and up
//! interleaved.

use model_spec::{
    Activation, AttentionSpec, Biases, ConfigError, ConfigFile, LayerNorms, LayerSpec, MlpKind, NormSpec, Residual,
    RopeStyle, RoutingSpec,
};

use super::expert_naming::{ExpertNaming, StackedParam};
use super::moe::{experts, moe};
use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, bound, sliding_layers};
use super::{Blueprint, Folder};
use crate::weights::{FusedShard, LayerParam};

pub(super) fn gpt_oss(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::rms(config.number_or("rms_norm_eps", 1e-5)? as f32);
    let bias = config.flag_or("attention_bias", true)?;
    let position = sizes.rope(config, RopeStyle::Halves)?;
    let attention = AttentionSpec { sinks: true, ..sizes.attention(position, Biases { qkv: bias, output: bias }) };
    let limit = bound(config, "swiglu_limit")?.unwrap_or(7.0);
    let (count, routing) = experts(config, "num_local_experts")?;
    let mlp = sizes.mlp(MlpKind::Gated, Activation::ClampedSwiGlu { limit }, true);
    let moe = moe(mlp, count, RoutingSpec { bias: true, ..routing });
    let window = config.size("sliding_window")?;
    let sliding = sliding_layers(config, sizes.layers, |layer| layer.is_multiple_of(2))?;
    let layers = sliding.into_iter().map(|slides| LayerSpec {
        mixer: AttentionSpec { window: slides.then_some(window), ..attention.clone() }.into(),
        feed_forward: moe.into(),
        norms: LayerNorms::before(norm),
        residual: Residual::Sequential,
        residual_scale: 1.0,
    });
    let spec = sizes.model(folder, layers.collect(), norm, Tied::IfSaid)?;
    let apart = config.is_gguf() || has_linear_experts(config)?;
    let experts = if apart { ExpertNaming::USUAL } else { stacked(count) };
    Ok(Blueprint { spec, names: Naming { part, experts, ..LLAMA }.names() })
}

/// Whether a tool has quantised the experts as linear layers, for which it takes them apart.
fn has_linear_experts(config: &ConfigFile) -> Result<bool, ConfigError> {
    let Some(quantization) = config.object("quantization_config")? else { return Ok(false) };
    let method = quantization.text_or("quant_method", "")?;
    Ok(["auto-round", "awq", "compressed-tensors", "gptq"].contains(&method.as_str()))
}

fn stacked(count: usize) -> ExpertNaming {
    let [gate, up] = FusedShard::split([1, 1]);
    let gate_up = |rows| StackedParam {
        weight: "mlp.experts.gate_up_proj",
        bias: "mlp.experts.gate_up_proj_bias",
        rows,
        transposed: true,
    };
    let (weight, bias) = ("mlp.experts.down_proj", "mlp.experts.down_proj_bias");
    let down = StackedParam { weight, bias, rows: FusedShard::ALL, transposed: true };
    ExpertNaming::Stacked { count, pieces: [gate_up(gate), gate_up(up), down] }
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Router => "mlp.router",
        other => (LLAMA.part)(other),
    }
}
