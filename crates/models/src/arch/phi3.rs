//! Phi 3, 3.5 and 4: Llama with fused projections, a rotary embedding that may turn a part of each head, and a sliding
//! window.

use model_spec::{AttentionSpec, Biases, ConfigError, LayerNorms, MlpKind, NormSpec, Residual, RopeStyle};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn phi3(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::rms(config.number_or("rms_norm_eps", 1e-5)? as f32);
    let bias = config.flag_or("attention_bias", false)?;
    let rope = sizes.partial_rope(config, 1.0, RopeStyle::Halves)?;
    let attention = AttentionSpec {
        window: config.size_opt("sliding_window")?,
        ..sizes.attention(rope, Biases { qkv: bias, output: bias })
    };
    let mlp_bias = config.flag_or("mlp_bias", false)?;
    let mlp = sizes.mlp(MlpKind::Gated, activation(config, "hidden_act", "silu")?, mlp_bias);
    let layer = layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential);
    let mut spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    let bias = config.flag_or("lm_head_bias", false)?;
    spec.head.change_logits(|head| head.bias = bias);
    let naming = Naming { part, qkv: Some(sizes.stacked_qkv()), gate_up: Some(sizes.gate_up()), ..LLAMA };
    Ok(Blueprint { spec, names: naming.names() })
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "self_attn.qkv_proj",
        LayerParam::Gate | LayerParam::Up => "mlp.gate_up_proj",
        other => (LLAMA.part)(other),
    }
}
