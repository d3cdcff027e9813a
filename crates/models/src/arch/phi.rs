//! Phi 1, 1.5 and 2: attention and MLP in parallel after one layer norm, rotary embedding on a part of each head,
//! biases everywhere.

use model_spec::{Biases, ConfigError, LayerNorms, MlpKind, NormSpec, Residual, RopeStyle};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn phi(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    if config.flag_or("qk_layernorm", false)? {
        return Err(config.unsupported("qk_layernorm", "it is not supported"));
    }
    let norm = NormSpec::layer(config.number_or("layer_norm_eps", 1e-5)? as f32);
    let rope = sizes.partial_rope(config, 0.5, RopeStyle::Halves)?;
    let attention = sizes.attention(rope, Biases { qkv: true, output: true });
    let mlp = sizes.mlp(MlpKind::Plain, activation(config, "hidden_act", "gelu_new")?, true);
    let layer = layer(attention, mlp, LayerNorms::shared(norm), Residual::Parallel);
    let mut spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    spec.head.change_logits(|head| head.bias = true);
    Ok(Blueprint { spec, names: Naming { final_norm: "model.final_layernorm", part, ..LLAMA }.names() })
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Output => "self_attn.dense",
        LayerParam::Up => "mlp.fc1",
        LayerParam::Down => "mlp.fc2",
        other => (LLAMA.part)(other),
    }
}
