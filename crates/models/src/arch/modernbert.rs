//! ModernBERT: an encoder with norms before, rotary positions, gated MLPs, and layers that see everything between those
//! that see a window on either side.

use model_spec::{
    Biases, ClassesSpec, ConfigError, ConfigFile, DenseSpec, HeadActivation, HeadSpec, LayerNorms, LayerSpec, Mask,
    MlpKind, NormSpec, Position, Residual, RopeDefaults, RopeStyle, ScoredTokens, read_ropes,
};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer, sliding_layers};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn modernbert(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = norm(config)?;
    let mut spec = sizes.model(folder, layers(config, &sizes, norm)?, norm, Tied::UnlessSaid)?;
    spec.embedding.norm = Some(norm);
    spec.head = HeadSpec::Hidden;
    let naming = Naming { qkv: Some(sizes.stacked_qkv()), gate_up: Some(sizes.gate_up()), ..NAMING };
    Ok(Blueprint { spec, names: naming.names() })
}

fn norm(config: &ConfigFile) -> Result<NormSpec, ConfigError> {
    let eps = config.number_or("norm_eps", 1e-5)? as f32;
    Ok(NormSpec { bias: config.flag_or("norm_bias", false)?, ..NormSpec::layer(eps) })
}

fn layers(config: &ConfigFile, sizes: &Sizes, norm: NormSpec) -> Result<Vec<LayerSpec>, ConfigError> {
    let theta = config.number_or("global_rope_theta", 160_000.0)?;
    let defaults = RopeDefaults { theta, rotary_dim: sizes.head_dim, style: RopeStyle::Halves };
    let ropes = read_ropes(config, defaults, config.number_or("local_rope_theta", 10_000.0)?)?;
    let every = config.size_or("global_attn_every_n_layers", 3)?;
    // Half of it on either side, and the token itself.
    let window = config.size_or("local_attention", 128)? / 2 + 1;
    let bias = config.flag_or("attention_bias", false)?;
    let mlp =
        sizes.mlp(MlpKind::Gated, activation(config, "hidden_activation", "gelu")?, config.flag_or("mlp_bias", false)?);
    let slides = sliding_layers(config, sizes.layers, |index| !index.is_multiple_of(every))?;
    let layers = slides.iter().enumerate().map(|(index, slides)| {
        let rope = if *slides { &ropes.sliding } else { &ropes.global };
        let mut attention = sizes.attention(Position::Rope(rope.clone()), Biases { qkv: bias, output: bias });
        attention.mask = Mask::Bidirectional;
        attention.window = slides.then_some(window);
        let mut norms = LayerNorms::before(norm);
        // The embedding is normed already.
        norms.before_attention = norms.before_attention.filter(|_| index > 0);
        layer(attention, mlp, norms, Residual::Sequential)
    });
    Ok(layers.collect())
}

/// Class scores: dense, activation and norm, then the classifier, of the first token or of the mean over all.
pub(super) fn classes(config: &ConfigFile, count: usize) -> Result<ClassesSpec, ConfigError> {
    let of = match config.text_or("classifier_pooling", "cls")?.as_str() {
        "cls" => ScoredTokens::First,
        "mean" => ScoredTokens::Mean,
        _ => return Err(config.unsupported("classifier_pooling", "expected cls or mean")),
    };
    let dense = DenseSpec {
        activation: HeadActivation::Of(activation(config, "classifier_activation", "gelu")?),
        bias: config.flag_or("classifier_bias", false)?,
        norm: Some(norm(config)?),
    };
    Ok(ClassesSpec { count, bias: true, dense: Some(dense), of, tokens: None })
}

const NAMING: Naming = Naming {
    embedding: "model.embeddings.tok_embeddings",
    embedding_norm: "model.embeddings.norm",
    final_norm: "model.final_norm",
    head_dense: "head.dense",
    head_norm: "head.norm",
    head: "classifier",
    layers: "model.layers",
    part: |part| match part {
        LayerParam::BeforeAttention => "attn_norm",
        LayerParam::BeforeMlp => "mlp_norm",
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "attn.Wqkv",
        LayerParam::Output => "attn.Wo",
        LayerParam::Gate | LayerParam::Up => "mlp.Wi",
        LayerParam::Down => "mlp.Wo",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};
