//! OPT: learned positions from row 2 on, biases everywhere; 350m embeds in a smaller width and norms after each add.

use model_spec::{
    Biases, ConfigError, ConfigFile, EmbeddingSpec, LayerNorms, LayerSpec, MlpKind, NormScale, NormSpec, Position,
    PositionTable, Residual,
};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::{LayerParam, Names, ParamId};

/// Rows of the table before that of position 0.
const OFFSET: usize = 2;

pub(super) fn opt(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = norm(config)?;
    let norm_first = config.flag_or("do_layer_norm_before", true)?;
    let layers = layers(config, &sizes, norm, norm_first)?;
    let mut spec = sizes.model(folder, layers, norm, Tied::UnlessSaid)?;
    spec.embedding = EmbeddingSpec {
        width: config.size_or("word_embed_proj_dim", sizes.hidden)?,
        positions: Some(PositionTable { rows: spec.context_len + OFFSET, offset: OFFSET }),
        ..spec.embedding
    };
    if norm_first && config.flag_or("_remove_final_layer_norm", false)? {
        spec.final_norm = None;
    }
    let names = if norm_first { NAMING.names() } else { norms_of_the_part_before(sizes.layers) };
    Ok(Blueprint { spec, names })
}

fn norm(config: &ConfigFile) -> Result<NormSpec, ConfigError> {
    let plain = NormSpec { scale: NormScale::None, bias: false, ..NormSpec::layer(1e-5) };
    Ok(if config.flag_or("layer_norm_elementwise_affine", true)? { NormSpec::layer(1e-5) } else { plain })
}

fn layers(config: &ConfigFile, sizes: &Sizes, norm: NormSpec, norm_first: bool) -> Result<Vec<LayerSpec>, ConfigError> {
    let bias = config.flag_or("enable_bias", true)?;
    let attention = sizes.attention(Position::None, Biases { qkv: bias, output: bias });
    let mlp = sizes.mlp(MlpKind::Plain, activation(config, "activation_function", "relu")?, bias);
    let residual = if norm_first { Residual::Sequential } else { Residual::Normed };
    let mut layers = vec![layer(attention, mlp, LayerNorms::before(norm), residual); sizes.layers];
    if !norm_first {
        // What enters the first layer is not normed; what leaves the last one is, by the final norm.
        layers[0].norms.before_attention = None;
    }
    Ok(layers)
}

/// A norm after an add belongs to the part that follows it: the next layer's attention, or the head.
fn norms_of_the_part_before(layers: usize) -> Names {
    let names = NAMING.names();
    Box::new(move |slot, kind| {
        let after_mlp = |layer| ParamId::Layer(layer, LayerParam::BeforeMlp);
        let slot = match slot {
            ParamId::Layer(layer, LayerParam::BeforeAttention) => after_mlp(layer.saturating_sub(1)),
            ParamId::Layer(layer, LayerParam::BeforeMlp) => ParamId::Layer(layer, LayerParam::BeforeAttention),
            ParamId::FinalNorm => after_mlp(layers - 1),
            other => other,
        };
        names(slot, kind)
    })
}

const NAMING: Naming = Naming {
    embedding: "model.decoder.embed_tokens",
    positions: "model.decoder.embed_positions",
    project_in: "model.decoder.project_in",
    project_out: "model.decoder.project_out",
    final_norm: "model.decoder.final_layer_norm",
    layers: "model.decoder.layers",
    part: |part| match part {
        LayerParam::BeforeAttention => "self_attn_layer_norm",
        LayerParam::BeforeMlp => "final_layer_norm",
        LayerParam::Output => "self_attn.out_proj",
        LayerParam::Up => "fc1",
        LayerParam::Down => "fc2",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};
