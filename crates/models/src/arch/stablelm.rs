//! StableLM 2 and 3B: layer norms, rotary embedding on a part of each head; 12B has norms on each head and a parallel
//! residual.

use model_spec::{AttentionSpec, Biases, ConfigError, LayerNorms, MlpKind, NormSpec, QkNorm, Residual, RopeStyle};

use super::naming::LLAMA;
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::{LayerParam, Names, ParamId};

pub(super) fn stablelm(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::layer(
        config.number_or(config.spelled(&["layer_norm_eps", "norm_eps"]).unwrap_or("layer_norm_eps"), 1e-5)? as f32,
    );
    let rope = sizes.partial_rope(config, config.number_or("rope_pct", 0.25)?, RopeStyle::Halves)?;
    let head_norm = NormSpec { bias: false, ..norm };
    let attention = AttentionSpec {
        qk_norm: config.flag_or("qk_layernorm", false)?.then_some(QkNorm::EachHead(head_norm)),
        ..sizes.attention(rope, Biases { qkv: config.flag_or("use_qkv_bias", false)?, output: false })
    };
    let mlp = sizes.mlp(MlpKind::Gated, activation(config, "hidden_act", "silu")?, false);
    let (norms, residual) = match config.flag_or("use_parallel_residual", false)? {
        true => (LayerNorms::shared(norm), Residual::Parallel),
        false => (LayerNorms::before(norm), Residual::Sequential),
    };
    let layers = vec![layer(attention, mlp, norms, residual); sizes.layers];
    let spec = sizes.model(folder, layers, norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: names() })
}

/// Each head's norm is a tensor of its own.
fn names() -> Names {
    let names = LLAMA.names();
    Box::new(move |slot, kind| match slot {
        ParamId::Layer(layer, LayerParam::QueryHeadNorm(head)) => {
            format!("model.layers.{layer}.self_attn.q_layernorm.norms.{head}.weight").into()
        }
        ParamId::Layer(layer, LayerParam::KeyHeadNorm(head)) => {
            format!("model.layers.{layer}.self_attn.k_layernorm.norms.{head}.weight").into()
        }
        other => names(other, kind),
    })
}
