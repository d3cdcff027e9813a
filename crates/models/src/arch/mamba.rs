//! Mamba 1 and 2: nothing but state-space mixers, one after the other.

use model_spec::{
    ConfigError, ConfigFile, EmbeddingSpec, FeedForwardSpec, HeadSpec, LayerNorms, LayerSpec, Mamba2Spec, MambaSpec,
    MixerSpec, ModelSpec, NormSpec, Residual,
};

use super::{Blueprint, Folder};
use crate::weights::{FusedShard, LayerParam, Names, ParamId, ParamKind, TensorLocation};

/// Longest sequence where the file names none: a state has no length.
const CONTEXT: usize = 1 << 20;

pub(super) fn mamba(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let hidden = config.size("hidden_size")?;
    let inner = inner(config, hidden)?;
    let spec = MambaSpec {
        inner,
        state_size: config.size_or("state_size", 16)?,
        conv_kernel: conv_kernel(config)?,
        step_rank: match config.get("time_step_rank").is_some_and(|rank| rank == "auto") {
            true => hidden.div_ceil(16),
            false => config.size_or("time_step_rank", hidden.div_ceil(16))?,
        },
        conv_bias: config.flag_or("use_conv_bias", true)?,
        bias: config.flag_or("use_bias", false)?,
    };
    let [x, gate] = FusedShard::split([inner, inner]);
    let [down, state_input, state_output] = FusedShard::split([spec.step_rank, spec.state_size, spec.state_size]);
    let location = move |part| match part {
        LayerParam::ScanInput => ("in_proj", x),
        LayerParam::MixerGate => ("in_proj", gate),
        LayerParam::StepDown => ("x_proj", down),
        LayerParam::StateInput => ("x_proj", state_input),
        LayerParam::StateOutput => ("x_proj", state_output),
        LayerParam::Step => ("dt_proj", FusedShard::ALL),
        other => (mixer_part(other), FusedShard::ALL),
    };
    blueprint(folder, MixerSpec::Mamba(spec), names(location))
}

pub(super) fn mamba2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let hidden = config.size("hidden_size")?;
    let (head_dim, inner) = (config.size_or("head_dim", 64)?, inner(config, hidden)?);
    let heads = config.size_or("num_heads", inner / head_dim)?;
    if heads * head_dim != inner {
        return Err(config.unsupported("num_heads", &format!("with head_dim it must make {inner} channels")));
    }
    if !config.flag_or("rms_norm", true)? {
        return Err(config.unsupported("rms_norm", "only with the norm after the gate"));
    }
    let groups = config.size_or("n_groups", 1)?;
    if !heads.is_multiple_of(groups) {
        return Err(config.unsupported("n_groups", &format!("it must divide num_heads = {heads}")));
    }
    let spec = Mamba2Spec {
        heads,
        head_dim,
        groups,
        state_size: config.size_or("state_size", 128)?,
        conv_kernel: conv_kernel(config)?,
        conv_bias: config.flag_or("use_conv_bias", true)?,
        bias: config.flag_or("use_bias", false)?,
        step_limit: step_limit(config)?,
        norm_eps: eps(config)?,
    };
    let shared = groups * spec.state_size;
    let [gate, x, state_input, state_output, step] = FusedShard::split([inner, inner, shared, shared, heads]);
    let location = move |part| match part {
        LayerParam::MixerGate => ("in_proj", gate),
        LayerParam::ScanInput => ("in_proj", x),
        LayerParam::StateInput => ("in_proj", state_input),
        LayerParam::StateOutput => ("in_proj", state_output),
        LayerParam::Step => ("in_proj", step),
        other => (mixer_part(other), FusedShard::ALL),
    };
    blueprint(folder, MixerSpec::Mamba2(spec), names(location))
}

/// Channels of a mixer.
fn inner(config: &ConfigFile, hidden: usize) -> Result<usize, ConfigError> {
    let expand = config.number_or("expand", 2.0)?;
    config.size_or("intermediate_size", (expand * hidden as f64) as usize)
}

fn conv_kernel(config: &ConfigFile) -> Result<usize, ConfigError> {
    let kernel = config.size_or("conv_kernel", 4)?;
    match kernel {
        2..=8 => Ok(kernel),
        _ => Err(config.unsupported("conv_kernel", "from 2 to 8 tokens are supported")),
    }
}

fn eps(config: &ConfigFile) -> Result<f32, ConfigError> {
    Ok(config.number_or("layer_norm_epsilon", 1e-5)? as f32)
}

/// `time_step_limit`; an upper bound that JSON cannot hold counts as none.
fn step_limit(config: &ConfigFile) -> Result<(f32, f32), ConfigError> {
    let Some(limit) = config.get("time_step_limit") else { return Ok((0.0, f32::INFINITY)) };
    let number = |at: usize| limit.get(at)?.as_f64();
    match (number(0), number(1)) {
        (Some(low), Some(high)) if low <= high => Ok((low as f32, high as f32)),
        (Some(low), None) => Ok((low as f32, f32::INFINITY)),
        _ => Err(config.unsupported("time_step_limit", "expected the least and the largest step")),
    }
}

fn blueprint(folder: &Folder, mixer: MixerSpec, names: Names) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let norm = NormSpec::rms(eps(config)?);
    let layer = LayerSpec {
        mixer,
        feed_forward: FeedForwardSpec::None,
        norms: LayerNorms { before_attention: Some(norm), ..Default::default() },
        residual: Residual::Sequential,
        residual_scale: 1.0,
    };
    let hidden = config.size("hidden_size")?;
    let spec = ModelSpec {
        architecture: folder.architecture.clone(),
        vocab_size: config.size("vocab_size")?,
        hidden_size: hidden,
        context_len: config.size_or("max_position_embeddings", CONTEXT)?,
        dtype: folder.dtype,
        eos_token_ids: folder.eos_token_ids.clone(),
        embedding: EmbeddingSpec::plain(hidden),
        layers: vec![layer; config.size("num_hidden_layers")?],
        final_norm: Some(norm),
        head: HeadSpec::plain(config.flag_or("tie_word_embeddings", true)?),
    };
    Ok(Blueprint { spec, names })
}

fn names(location: impl Fn(LayerParam) -> (&'static str, FusedShard) + Send + 'static) -> Names {
    Box::new(move |slot, kind| {
        let ending = if kind == ParamKind::Weight { "weight" } else { "bias" };
        match slot {
            ParamId::Head => format!("lm_head.{ending}").into(),
            ParamId::FinalNorm => format!("backbone.norm_f.{ending}").into(),
            ParamId::Layer(layer, LayerParam::BeforeAttention) => {
                format!("backbone.layers.{layer}.norm.{ending}").into()
            }
            ParamId::Layer(layer, part) => {
                let (name, rows) = location(part);
                // These are parameters of their own, not of a layer with a weight.
                let tensor = match part {
                    LayerParam::Decay | LayerParam::Skip | LayerParam::StepBias => {
                        format!("backbone.layers.{layer}.mixer.{name}")
                    }
                    _ => format!("backbone.layers.{layer}.mixer.{name}.{ending}"),
                };
                TensorLocation { rows, ..tensor.into() }
            }
            _ => format!("backbone.embeddings.{ending}").into(),
        }
    })
}

fn mixer_part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Taps => "conv1d",
        LayerParam::Decay => "A_log",
        LayerParam::Skip => "D",
        LayerParam::StepBias => "dt_bias",
        LayerParam::MixerNorm => "norm",
        _ => "out_proj",
    }
}
