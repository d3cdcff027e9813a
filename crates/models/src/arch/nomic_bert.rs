//! NomicBERT: BERT with rotary positions, gated MLPs and no biases.

use model_spec::{Activation, Biases, ConfigError, ConfigFile, MlpBias, MlpKind, NormSpec, RopeStyle};

use super::bert::Encoder;
use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, activation};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn nomic_bert(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    refuse(config)?;
    let mut sizes = Sizes::with_intermediate(config, 4)?;
    // Positions past those of the training need another base, which the class leaves to its caller.
    let trained = config.size_opt("max_trained_positions")?;
    sizes.context_len = sizes.context_len.map(|len| trained.map_or(len, |trained| len.min(trained)));
    let (kind, activation) = match config.text_or("activation_function", "gelu")?.as_str() {
        "swiglu" => (MlpKind::Gated, Activation::Silu),
        "geglu" => (MlpKind::Gated, Activation::Gelu),
        _ => (MlpKind::Plain, activation(config, "activation_function", "gelu")?),
    };
    if kind == MlpKind::Gated {
        sizes.intermediate = sizes.intermediate.next_multiple_of(GATED_WIDTH);
    }
    let style = match config.flag_or("rotary_emb_interleaved", false)? {
        true => RopeStyle::Interleaved,
        false => RopeStyle::Halves,
    };
    let rotary_dim = (sizes.head_dim as f64 * config.number_or("rotary_emb_fraction", 1.0)?) as usize;
    let bias = config.flag_or("qkv_proj_bias", true)?;
    let biases = MlpBias { up: config.flag_or("mlp_fc1_bias", true)?, down: config.flag_or("mlp_fc2_bias", true)? };
    let encoder = Encoder {
        attention: sizes.attention(sizes.rope_of(config, rotary_dim, style)?, Biases { qkv: bias, output: bias }),
        mlp: sizes.mlp(kind, activation, biases),
        norm: NormSpec::layer(config.number_or("layer_norm_epsilon", 1e-12)? as f32),
        token_types: if config.number_or("type_vocab_size", 2.0)? > 0.0 {
            config.size_opt("type_vocab_size")?
        } else {
            None
        },
        positions: None,
        naming: Naming {
            qkv: Some(sizes.stacked_qkv()),
            part: if kind == MlpKind::Gated { gated } else { plain },
            ..NAMING
        },
    };
    encoder.blueprint(folder, &sizes)
}

/// Inner widths of gated MLPs are multiples of this.
const GATED_WIDTH: usize = 256;

fn refuse(config: &ConfigFile) -> Result<(), ConfigError> {
    if config.flag_or("prenorm", false)? {
        return Err(config.unsupported("prenorm", "expected norms after each add"));
    }
    if config.flag_or("use_rms_norm", false)? {
        return Err(config.unsupported("use_rms_norm", "expected layer norms"));
    }
    if config.number_or("moe_every_n_layers", 0.0)? > 0.0 {
        return Err(config.unsupported("moe_every_n_layers", "expected an MLP in every layer"));
    }
    if config.number_opt("rotary_emb_scale_base")?.is_some() {
        return Err(config.unsupported("rotary_emb_scale_base", "expected plain rotary positions"));
    }
    Ok(())
}

const NAMING: Naming = Naming {
    embedding: "embeddings.word_embeddings",
    embedding_norm: "emb_ln",
    token_types: "embeddings.token_type_embeddings",
    layers: "encoder.layers",
    ..LLAMA
};

fn gated(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Gate => "mlp.fc12",
        LayerParam::Up => "mlp.fc11",
        other => plain(other),
    }
}

fn plain(part: LayerParam) -> &'static str {
    match part {
        LayerParam::AfterAttention => "norm1",
        LayerParam::AfterMlp => "norm2",
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "attn.Wqkv",
        LayerParam::Output => "attn.out_proj",
        LayerParam::Up => "mlp.fc1",
        LayerParam::Down => "mlp.fc2",
        other => (LLAMA.part)(other),
    }
}
