//! The Llama family: one spec with different switches. RMS norm before attention and MLP, rotary embedding, gated MLP.

use model_spec::{
    AttentionSpec, Biases, ConfigError, ConfigFile, LayerNorms, MlpKind, NormSpec, Position, QkNorm, Residual,
    RopeDefaults, RopeStyle, read_rope,
};

use super::naming::LLAMA;
use super::parts::{Sizes, Tied, activation, layer, sliding_layers};
use super::{Blueprint, Folder};

/// In what the family's members differ.
struct Switches {
    bias: Biases,
    mlp_bias: bool,
    mlp: MlpKind,
    /// The MLP's non-linearity, unless the file says.
    activation: &'static str,
    qk_norm: bool,
    windows: Windows,
    /// Which elements of a head turn together.
    style: RopeStyle,
    /// Base of the rotary embedding, unless the file says.
    theta: f64,
    /// Of the norms, unless the file says.
    eps: f64,
    tied: Tied,
}

impl Default for Switches {
    fn default() -> Self {
        Self {
            bias: Biases::default(),
            mlp_bias: false,
            mlp: MlpKind::Gated,
            activation: "silu",
            qk_norm: false,
            windows: Windows::None,
            style: RopeStyle::Halves,
            theta: 10000.0,
            eps: 1e-6,
            tied: Tied::IfSaid,
        }
    }
}

impl Switches {
    /// Biases as `attention_bias` and `mlp_bias` say.
    fn read(config: &ConfigFile) -> Result<Self, ConfigError> {
        let attention = config.flag_or("attention_bias", false)?;
        let mlp_bias = config.flag_or("mlp_bias", false)?;
        Ok(Self { bias: Biases { qkv: attention, output: attention }, mlp_bias, ..Self::default() })
    }
}

/// Which layers attend through a sliding window.
enum Windows {
    None,
    /// `sliding_window` on all of them.
    All,
    /// As `use_sliding_window`, `max_window_layers` and `layer_types` say; `on` where the first is absent.
    Later {
        on: bool,
    },
    /// As `layer_types` says, else all but each fourth from the first on.
    Most,
}

/// Llama, and models that are Llama under another name.
pub(super) fn llama(folder: &Folder) -> Result<Blueprint, ConfigError> {
    build(folder, Switches::read(&folder.config)?)
}

/// Mistral: all layers may have a sliding window.
pub(super) fn mistral(folder: &Folder) -> Result<Blueprint, ConfigError> {
    build(folder, Switches { windows: Windows::All, ..Default::default() })
}

/// Qwen 2 and 2.5: biases on q, k and v, unless `qkv_bias` says otherwise; the upper layers may have a sliding window.
pub(super) fn qwen2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let qkv = folder.config.flag_or("qkv_bias", true)?;
    build(
        folder,
        Switches { bias: Biases { qkv, output: false }, windows: Windows::Later { on: false }, ..Default::default() },
    )
}

/// Qwen 3: norms of query and key heads instead of biases.
pub(super) fn qwen3(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let attention = folder.config.flag_or("attention_bias", false)?;
    let bias = Biases { qkv: attention, output: attention };
    build(folder, Switches { bias, qk_norm: true, windows: Windows::Later { on: false }, ..Default::default() })
}

/// InternLM 1: `bias` stands for q, k, v and o; the base of the rotary embedding is in `rotary`.
pub(super) fn internlm(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let bias = folder.config.flag_or("bias", true)?;
    let rotary = folder.config.object("rotary")?;
    if let Some(rotary) = &rotary
        && rotary.text_or("type", "origin")? != "origin"
    {
        return Err(rotary.unsupported("type", "only \"origin\" is supported"));
    }
    let theta = rotary.map_or(Ok(10000.0), |rotary| rotary.number_or("base", 10000.0))?;
    build(folder, Switches { bias: Biases { qkv: bias, output: bias }, theta, ..Default::default() })
}

/// InternLM 3: `qkv_bias` is of q, k and v, `bias` of all other matrices.
pub(super) fn internlm3(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let [qkv, others] = ["qkv_bias", "bias"].map(|key| folder.config.flag_or(key, false));
    let others = others?;
    build(folder, Switches { bias: Biases { qkv: qkv?, output: others }, mlp_bias: others, ..Default::default() })
}

/// Seed-OSS: biases on q, k and v, unless `attention_bias` says otherwise, and as `attention_out_bias` says on o.
pub(super) fn seed_oss(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let qkv = config.flag_or("attention_bias", true)?;
    let output = config.flag_or("attention_out_bias", false)?;
    build(folder, Switches { bias: Biases { qkv, output }, ..Switches::read(config)? })
}

/// Arcee (AFM): squared ReLU without a gate.
pub(super) fn arcee(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let switches = Switches::read(&folder.config)?;
    build(folder, Switches { mlp: MlpKind::Plain, activation: "relu2", eps: 1e-5, ..switches })
}

/// ERNIE 4.5: heads turn in pairs of neighbours; `use_bias` stands for all matrices of the layers.
pub(super) fn ernie(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let bias = folder.config.flag_or("use_bias", false)?;
    build(
        folder,
        Switches {
            bias: Biases { qkv: bias, output: bias },
            mlp_bias: bias,
            style: RopeStyle::Interleaved,
            theta: 500_000.0,
            eps: 1e-5,
            tied: Tied::UnlessSaid,
            ..Default::default()
        },
    )
}

/// Code World Model: three layers of four have a sliding window.
pub(super) fn cwm(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let mlp_bias = folder.config.flag_or("mlp_bias", false)?;
    let switches = Switches { windows: Windows::Most, theta: 1_000_000.0, eps: 1e-5, ..Default::default() };
    build(folder, Switches { mlp_bias, ..switches })
}

/// dots.llm1 without its experts: Qwen 3, whose later layers slide unless the file says otherwise.
pub(super) fn dots(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let windows = Windows::Later { on: true };
    build(folder, Switches { qk_norm: true, windows, ..Switches::read(&folder.config)? })
}

/// Granite: Llama with scales at the embedding, the scores, the residual adds and the logits.
pub(super) fn granite(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let number = |key| folder.config.number_or(key, 1.0).map(|x| x as f32);
    let (scores, residual) = (number("attention_multiplier")?, number("residual_multiplier")?);
    let mut blueprint = llama(folder)?;
    blueprint.spec.embedding.scale = number("embedding_multiplier")?;
    let scale = number("logits_scaling")?.recip();
    blueprint.spec.head.change_logits(|head| head.scale = scale);
    for layer in &mut blueprint.spec.layers {
        if let Some(attention) = layer.mixer.attention_mut() {
            attention.scale = scores;
        }
        layer.residual_scale = residual;
    }
    Ok(blueprint)
}

/// MiniCPM: Llama with scales at the embedding, the residual adds and the logits.
pub(super) fn minicpm(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let hidden = config.number("hidden_size")?;
    let mut blueprint = build(folder, Switches { tied: Tied::UnlessSaid, ..Switches::read(config)? })?;
    blueprint.spec.embedding.scale = config.number_or("scale_emb", 1.0)? as f32;
    let scale = (config.number_or("dim_model_base", hidden)? / hidden) as f32;
    blueprint.spec.head.change_logits(|head| head.scale = scale);
    let depth = blueprint.spec.layers.len() as f64;
    let scale = config.number_or("scale_depth", depth.sqrt())? / depth.sqrt();
    blueprint.spec.layers.iter_mut().for_each(|layer| layer.residual_scale = scale as f32);
    Ok(blueprint)
}

/// SmolLM 3: Llama with some layers without RoPE.
pub(super) fn smollm3(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let switches =
        Switches { tied: Tied::UnlessSaid, windows: Windows::Later { on: false }, ..Switches::read(config)? };
    let mut blueprint = build(folder, switches)?;
    let layers = &mut blueprint.spec.layers;
    let interval = config.size_or("no_rope_layer_interval", 4)?;
    let rotates = match config.numbers_opt("no_rope_layers")? {
        Some(list) if list.len() != layers.len() => {
            return Err(config.unsupported("no_rope_layers", &format!("expected {} entries", layers.len())));
        }
        Some(list) => list.into_iter().map(|rotates| rotates != 0.0).collect(),
        None => (1..=layers.len()).map(|layer| !layer.is_multiple_of(interval)).collect::<Vec<bool>>(),
    };
    for (layer, _) in layers.iter_mut().zip(rotates).filter(|(_, rotates)| !rotates) {
        if let Some(attention) = layer.mixer.attention_mut() {
            attention.position = Position::None;
        }
    }
    Ok(blueprint)
}

fn build(folder: &Folder, switches: Switches) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::rms(config.number_or("rms_norm_eps", switches.eps)? as f32);
    let rope = RopeDefaults { theta: switches.theta, rotary_dim: sizes.head_dim, style: switches.style };
    let attention = AttentionSpec {
        qk_norm: switches.qk_norm.then_some(QkNorm::PerHead(norm)),
        ..sizes.attention(Position::Rope(read_rope(config, rope)?), switches.bias)
    };
    let mlp = sizes.mlp(switches.mlp, activation(config, "hidden_act", switches.activation)?, switches.mlp_bias);
    let layers = windows(config, &switches.windows, sizes.layers)?.into_iter().map(|window| {
        let attention = AttentionSpec { window, ..attention.clone() };
        layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential)
    });
    let spec = sizes.model(folder, layers.collect(), norm, switches.tied)?;
    Ok(Blueprint { spec, names: LLAMA.names() })
}

/// The window of every layer.
fn windows(config: &ConfigFile, rule: &Windows, layers: usize) -> Result<Vec<Option<usize>>, ConfigError> {
    let window = || config.size_opt("sliding_window");
    match rule {
        Windows::None => Ok(vec![None; layers]),
        Windows::All => Ok(vec![window()?; layers]),
        // What `sliding_window` says then, some write as 0.
        Windows::Later { on } if !config.flag_or("use_sliding_window", *on)? => Ok(vec![None; layers]),
        Windows::Later { .. } => {
            let window = window()?;
            let full = config.number_or("max_window_layers", layers as f64)? as usize;
            let sliding = sliding_layers(config, layers, |layer| layer >= full)?;
            Ok(sliding.into_iter().map(|slides| window.filter(|_| slides)).collect())
        }
        Windows::Most => {
            let window = config.size_or("sliding_window", 8192)?;
            let sliding = sliding_layers(config, layers, |layer| !layer.is_multiple_of(4))?;
            Ok(sliding.into_iter().map(|slides| slides.then_some(window)).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn check(text: &str, rule: Windows, expected: &[Option<usize>]) {
        let config = ConfigFile::parse(Path::new("config.json"), text.as_bytes()).unwrap();
        assert_eq!(windows(&config, &rule, 3).unwrap(), expected, "{text}");
    }

    #[test]
    fn windows_of_layers() {
        check(r#"{"sliding_window": 16}"#, Windows::All, &[Some(16); 3]);
        check(r#"{"sliding_window": null}"#, Windows::All, &[None; 3]);
        check(r#"{"sliding_window": 16}"#, Windows::None, &[None; 3]);
        check(r#"{"sliding_window": 16, "max_window_layers": 0}"#, Windows::Later { on: false }, &[None; 3]);
        let on = r#"{"use_sliding_window": true, "sliding_window": 16, "max_window_layers": 1}"#;
        check(on, Windows::Later { on: false }, &[None, Some(16), Some(16)]);
        let off = r#"{"use_sliding_window": false, "sliding_window": 0}"#;
        check(off, Windows::Later { on: false }, &[None; 3]);
        let types = r#"{"use_sliding_window": true, "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}"#;
        check(types, Windows::Later { on: false }, &[Some(8), None, Some(8)]);
        let silent = r#"{"sliding_window": 16, "max_window_layers": 2}"#;
        check(silent, Windows::Later { on: true }, &[None, None, Some(16)]);
        check(silent, Windows::Most, &[None, Some(16), Some(16)]);
        check("{}", Windows::Most, &[None, Some(8192), Some(8192)]);
    }

    #[test]
    fn qwen_2_has_biases_unless_it_says_otherwise() {
        let folder = tempfile::tempdir().expect("a folder");
        for (more, expected) in [("", true), (r#", "qkv_bias": true"#, true), (r#", "qkv_bias": false"#, false)] {
            let text = format!(
                r#"{{"architectures": ["Qwen2ForCausalLM"], "vocab_size": 33, "hidden_size": 32, "num_hidden_layers": 1,
                    "num_attention_heads": 4, "max_position_embeddings": 64, "intermediate_size": 48{more}}}"#
            );
            std::fs::write(folder.path().join("config.json"), text).expect("written");
            let mut spec = crate::read_spec(folder.path()).expect("a model");
            let attention = spec.layers[0].mixer.attention_mut().expect("attention");
            assert_eq!((attention.bias.qkv, attention.bias.output), (expected, false), "{more}");
        }
    }
}
