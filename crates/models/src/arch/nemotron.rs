//! Nemotron and Minitron: layer norms that multiply by one plus the weight, squared ReLU without a gate, a half-turned
//! rotary embedding.

use model_spec::{Biases, ConfigError, LayerNorms, MlpKind, NormScale, NormSpec, Residual, RopeStyle};

use super::naming::LLAMA;
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};

pub(super) fn nemotron(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let eps = config.number_or("norm_eps", 1e-5)? as f32;
    let norm = NormSpec { scale: NormScale::OnePlusWeight, ..NormSpec::layer(eps) };
    let bias = config.flag_or("attention_bias", false)?;
    let rope = sizes.partial_rope(config, 0.5, RopeStyle::Halves)?;
    let attention = sizes.attention(rope, Biases { qkv: bias, output: bias });
    let mlp_bias = config.flag_or("mlp_bias", false)?;
    let mlp = sizes.mlp(MlpKind::Plain, activation(config, "hidden_act", "relu2")?, mlp_bias);
    let layer = layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential);
    let spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: LLAMA.names() })
}
