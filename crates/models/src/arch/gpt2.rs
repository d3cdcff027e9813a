//! GPT-2 and GPT-BigCode (StarCoder): learned positions, layer norms, biases everywhere.
//!
//! GPT-2's matrices are stored `[in, out]`; GPT-BigCode shares one key and value among all heads.

use model_spec::{
    Biases, ConfigError, ConfigFile, EmbeddingSpec, LayerNorms, MlpKind, NormSpec, Position, PositionTable, Residual,
};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn gpt2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let sizes = Sizes::with_intermediate(&folder.config, 4)?;
    let naming = Naming { qkv: Some(sizes.stacked_qkv()), conv1d: true, ..NAMING };
    build(folder, &sizes, naming)
}

pub(super) fn bigcode(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let mut sizes = Sizes::with_intermediate(config, 4)?;
    if config.flag_or("multi_query", true)? {
        sizes.kv_heads = 1;
    }
    let naming = Naming { qkv: Some(sizes.grouped_qkv()), ..NAMING };
    build(folder, &sizes, naming)
}

fn build(folder: &Folder, sizes: &Sizes, naming: Naming) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let norm = NormSpec::layer(config.number_or("layer_norm_epsilon", 1e-5)? as f32);
    let mlp = sizes.mlp(MlpKind::Plain, activation(config, "activation_function", "gelu_new")?, true);
    let layers = (0..sizes.layers).map(|index| {
        let mut attention = sizes.attention(Position::None, Biases { qkv: true, output: true });
        attention.scale = scale(config, attention.scale, index)?;
        Ok(layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential))
    });
    let mut spec = sizes.model(folder, layers.collect::<Result<_, ConfigError>>()?, norm, Tied::UnlessSaid)?;
    let positions = Some(PositionTable { rows: spec.context_len, offset: 0 });
    spec.embedding = EmbeddingSpec { positions, ..spec.embedding };
    Ok(Blueprint { spec, names: naming.names() })
}

/// Scores may be left unscaled, or scaled down with depth.
fn scale(config: &ConfigFile, usual: f32, layer: usize) -> Result<f32, ConfigError> {
    let scale = if config.flag_or("scale_attn_weights", true)? { usual } else { 1.0 };
    let deeper = config.flag_or("scale_attn_by_inverse_layer_idx", false)?;
    Ok(if deeper { scale / (layer + 1) as f32 } else { scale })
}

const NAMING: Naming = Naming {
    embedding: "transformer.wte",
    positions: "transformer.wpe",
    final_norm: "transformer.ln_f",
    layers: "transformer.h",
    part: |part| match part {
        LayerParam::BeforeAttention => "ln_1",
        LayerParam::BeforeMlp => "ln_2",
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "attn.c_attn",
        LayerParam::Output => "attn.c_proj",
        LayerParam::Up => "mlp.c_fc",
        LayerParam::Down => "mlp.c_proj",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};
