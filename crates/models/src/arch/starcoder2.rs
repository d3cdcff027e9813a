//! StarCoder 2: layer norms, a plain MLP, biases everywhere, a sliding window.

use model_spec::{AttentionSpec, Biases, ConfigError, LayerNorms, MlpKind, NormSpec, Residual, RopeStyle};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn starcoder2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::layer(config.number_or("norm_epsilon", 1e-5)? as f32);
    let bias = config.flag_or("use_bias", true)?;
    let attention = AttentionSpec {
        window: config.size_opt("sliding_window")?,
        ..sizes.attention(sizes.rope(config, RopeStyle::Halves)?, Biases { qkv: bias, output: bias })
    };
    let mlp = sizes.mlp(MlpKind::Plain, activation(config, "hidden_act", "gelu_pytorch_tanh")?, bias);
    let layer = layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential);
    let spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::UnlessSaid)?;
    Ok(Blueprint { spec, names: Naming { part, ..LLAMA }.names() })
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Up => "mlp.c_fc",
        LayerParam::Down => "mlp.c_proj",
        other => (LLAMA.part)(other),
    }
}
