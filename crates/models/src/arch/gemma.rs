//! Gemma 1, 2 and 3: norms that multiply by one plus the weight, scaled embeddings; 2 also norms what each part puts
//! out, caps scores and logits, and slides its window on every other layer; 3 norms heads instead of capping, and turns
//! sliding layers by another base.

use model_spec::{
    AttentionSpec, Biases, ConfigError, ConfigFile, LayerNorms, LayerSpec, MlpKind, MlpSpec, NormScale, NormSpec,
    Position, QkNorm, Residual, RopeDefaults, RopeStyle, Ropes, read_ropes,
};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation, layer, sliding_layers};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn gemma(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let base = Base::read(folder, everywhere)?;
    let layer = base.layer(base.attention.clone(), LayerNorms::before(base.norm));
    base.build(folder, vec![layer; base.sizes.layers], LLAMA)
}

pub(super) fn gemma2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let base = Base::read(folder, everywhere)?;
    let layers = sliding_layers(&folder.config, base.sizes.layers, |index| index.is_multiple_of(2))?;
    let layers = layers.into_iter().map(|slides| {
        let window = base.window.filter(|_| slides);
        base.layer(AttentionSpec { window, ..base.attention.clone() }, LayerNorms::around(base.norm))
    });
    base.build(folder, layers.collect(), Naming { part: norms_around, ..LLAMA })
}

pub(super) fn gemma3(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let base = Base::read(folder, |config, sizes| Ok(Position::Rope(ropes(config, sizes)?.global)))?;
    let period = config.size_or("sliding_window_pattern", 6)?;
    let global = AttentionSpec { qk_norm: Some(QkNorm::PerHead(base.norm)), ..base.attention.clone() };
    let position = Position::Rope(ropes(config, &base.sizes)?.sliding);
    let sliding = AttentionSpec { window: base.window, position, ..global.clone() };
    let layers = sliding_layers(config, base.sizes.layers, |index| !(index + 1).is_multiple_of(period))?;
    let layers = layers.into_iter().map(|slides| {
        let attention = if slides { &sliding } else { &global };
        base.layer(attention.clone(), LayerNorms::around(base.norm))
    });
    base.build(folder, layers.collect(), Naming { part: norms_around, ..LLAMA })
}

/// How a generation's layers that see everything know positions.
type Positions = fn(&ConfigFile, &Sizes) -> Result<Position, ConfigError>;

/// All layers turn by the same base.
fn everywhere(config: &ConfigFile, sizes: &Sizes) -> Result<Position, ConfigError> {
    sizes.rope(config, RopeStyle::Halves)
}

fn ropes(config: &ConfigFile, sizes: &Sizes) -> Result<Ropes, ConfigError> {
    let defaults = RopeDefaults { theta: 1e6, rotary_dim: sizes.head_dim, style: RopeStyle::Halves };
    read_ropes(config, defaults, config.number_or("rope_local_base_freq", 10000.0)?)
}

/// What the generations have in common.
struct Base {
    sizes: Sizes,
    norm: NormSpec,
    attention: AttentionSpec,
    mlp: MlpSpec,
    window: Option<usize>,
}

impl Base {
    fn read(folder: &Folder, position: Positions) -> Result<Self, ConfigError> {
        let config = &folder.config;
        let sizes = Sizes::read(config)?;
        let norm = NormSpec {
            scale: NormScale::OnePlusWeight,
            ..NormSpec::rms(config.number_or("rms_norm_eps", 1e-6)? as f32)
        };
        let bias = config.flag_or("attention_bias", false)?;
        let usual = sizes.attention(position(config, &sizes)?, Biases { qkv: bias, output: bias });
        let scale = config.number_opt("query_pre_attn_scalar")?.map(|width| (width as f32).sqrt().recip());
        let attention = AttentionSpec {
            scale: scale.unwrap_or(usual.scale),
            soft_cap: soft_cap(config, "attn_logit_softcapping")?,
            ..usual
        };
        // The first files say "gelu" in hidden_act and mean the approximation.
        let activation = activation(config, "hidden_activation", "gelu_pytorch_tanh")?;
        let mlp = sizes.mlp(MlpKind::Gated, activation, false);
        Ok(Self { sizes, norm, attention, mlp, window: config.size_opt("sliding_window")? })
    }

    fn layer(&self, attention: AttentionSpec, norms: LayerNorms) -> LayerSpec {
        layer(attention, self.mlp, norms, Residual::Sequential)
    }

    fn build(&self, folder: &Folder, layers: Vec<LayerSpec>, naming: Naming) -> Result<Blueprint, ConfigError> {
        let mut spec = self.sizes.model(folder, layers, self.norm, Tied::UnlessSaid)?;
        spec.embedding.scale = (self.sizes.hidden as f32).sqrt();
        let soft_cap = soft_cap(&folder.config, "final_logit_softcapping")?;
        spec.head.change_logits(|head| head.soft_cap = soft_cap);
        Ok(Blueprint { spec, names: naming.names() })
    }
}

fn soft_cap(config: &ConfigFile, key: &str) -> Result<Option<f32>, ConfigError> {
    Ok(config.number_opt(key)?.map(|cap| cap as f32))
}

fn norms_around(part: LayerParam) -> &'static str {
    match part {
        LayerParam::AfterAttention => "post_attention_layernorm",
        LayerParam::BeforeMlp => "pre_feedforward_layernorm",
        LayerParam::AfterMlp => "post_feedforward_layernorm",
        other => (LLAMA.part)(other),
    }
}
