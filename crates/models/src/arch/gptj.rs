//! GPT-J: attention and MLP in parallel after one layer norm, interleaved rotary embedding on a part of each head, a
//! bias on the head.

use model_spec::{Biases, ConfigError, LayerNorms, MlpKind, NormSpec, Residual, RopeStyle};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn gptj(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::with_intermediate(config, 4)?;
    let norm = NormSpec::layer(config.number_or("layer_norm_epsilon", 1e-5)? as f32);
    let rotary_dim = config.size_or("rotary_dim", sizes.head_dim)?;
    if rotary_dim > sizes.head_dim {
        return Err(config.unsupported("rotary_dim", &format!("heads are only {} wide", sizes.head_dim)));
    }
    let rope = sizes.rope_of(config, rotary_dim, RopeStyle::Interleaved)?;
    let mlp = sizes.mlp(MlpKind::Plain, activation(config, "activation_function", "gelu_new")?, true);
    let layer = layer(sizes.attention(rope, Biases::default()), mlp, LayerNorms::shared(norm), Residual::Parallel);
    let mut spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    spec.head.change_logits(|head| head.bias = true);
    Ok(Blueprint { spec, names: NAMING.names() })
}

const NAMING: Naming = Naming {
    embedding: "transformer.wte",
    final_norm: "transformer.ln_f",
    layers: "transformer.h",
    part: |part| match part {
        LayerParam::BeforeAttention => "ln_1",
        LayerParam::Query => "attn.q_proj",
        LayerParam::Key => "attn.k_proj",
        LayerParam::Value => "attn.v_proj",
        LayerParam::Output => "attn.out_proj",
        LayerParam::Up => "mlp.fc_in",
        LayerParam::Down => "mlp.fc_out",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};
