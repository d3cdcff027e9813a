//! EXAONE 3 and 3.5: Llama under other names. EXAONE 4: norms on the outputs of both parts and on each head; where
//! layers slide, those that do not have no positions.

use model_spec::{
    AttentionSpec, Biases, ConfigError, LayerNorms, MlpKind, NormSpec, Position, QkNorm, Residual, RopeStyle,
};

use super::naming::{LLAMA, Naming};
use super::olmo::norms_after;
use super::parts::{Sizes, Tied, activation, layer, sliding_layers};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn exaone(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::rms(config.number_or("layer_norm_epsilon", 1e-5)? as f32);
    let attention = sizes.attention(sizes.rope(config, RopeStyle::Halves)?, Biases::default());
    let mlp = sizes.mlp(MlpKind::Gated, activation(config, "activation_function", "silu")?, false);
    let layer = layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential);
    let spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: NAMING.names() })
}

const NAMING: Naming = Naming {
    embedding: "transformer.wte",
    final_norm: "transformer.ln_f",
    layers: "transformer.h",
    part: |part| match part {
        LayerParam::BeforeAttention => "ln_1",
        LayerParam::BeforeMlp => "ln_2",
        LayerParam::Query => "attn.attention.q_proj",
        LayerParam::Key => "attn.attention.k_proj",
        LayerParam::Value => "attn.attention.v_proj",
        LayerParam::Output => "attn.attention.out_proj",
        LayerParam::Gate => "mlp.c_fc_0",
        LayerParam::Up => "mlp.c_fc_1",
        LayerParam::Down => "mlp.c_proj",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};

pub(super) fn exaone4(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::rms(config.number_or("rms_norm_eps", 1e-5)? as f32);
    let rope = sizes.rope(config, RopeStyle::Halves)?;
    let mlp = sizes.mlp(MlpKind::Gated, activation(config, "hidden_act", "silu")?, false);
    let (window, pattern) = (config.size_opt("sliding_window")?, pattern(folder)?);
    let default = |index: usize| pattern[index % pattern.len()] && index + 1 < sizes.layers;
    let layers = sliding_layers(config, sizes.layers, default)?.into_iter().map(|slides| {
        let position = if slides || window.is_none() { rope.clone() } else { Position::None };
        let attention = AttentionSpec {
            window: window.filter(|_| slides),
            qk_norm: Some(QkNorm::PerHead(norm)),
            ..sizes.attention(position, Biases::default())
        };
        layer(attention, mlp, LayerNorms::after(norm), Residual::Sequential)
    });
    let spec = sizes.model(folder, layers.collect(), norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: Naming { part: norms_after, ..LLAMA }.names() })
}

/// Which layers of a period slide, where `layer_types` is absent: `"LLLG"`, or the period's length with the last one
/// global.
fn pattern(folder: &Folder) -> Result<Vec<bool>, ConfigError> {
    let key = "sliding_window_pattern";
    if let Ok(Some(letters)) = folder.config.text_opt(key) {
        if letters.is_empty() || letters.chars().any(|letter| !"LG".contains(letter)) {
            return Err(folder.config.unsupported(key, "expected letters L and G"));
        }
        return Ok(letters.chars().map(|letter| letter == 'L').collect());
    }
    let period = folder.config.size_or(key, 4)?;
    Ok((1..=period).map(|layer| layer < period).collect())
}
