//! DeepSeek V2 and V3: latent attention; after some dense layers MoE of many small experts, beside a few that all
//! tokens share.

use model_spec::{
    Activation, ConfigError, ConfigFile, ExpertGroups, FeedForwardSpec, LatentSpec, LayerNorms, LayerSpec, MixerSpec,
    MlpBias, MlpKind, MlpSpec, MoeSpec, NormSpec, Residual, RopeDefaults, RopeStyle, RouterScore, RoutingSpec,
    SharedExpertSpec, read_rope,
};

use super::expert_naming::ExpertNaming;
use super::moe::{experts, experts_key};
use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, activation};
use super::{Blueprint, Folder};

/// What a version does where its file is silent.
pub(super) struct Version {
    pub scoring: &'static str,
    pub method: &'static str,
    pub renormalise: bool,
    /// Layers without experts at the beginning.
    pub first_dense: usize,
}

impl Version {
    /// As the third, whose routing others took over.
    pub(super) const V3: Self = Self { scoring: "sigmoid", method: "noaux_tc", renormalise: true, first_dense: 0 };
}

/// Names where MoE layers are DeepSeek's.
pub(super) const NAMING: Naming = Naming { experts: ExpertNaming::USUAL, ..LLAMA };

pub(super) fn deepseek_v2(folder: &Folder) -> Result<Blueprint, ConfigError> {
    build(folder, Version { scoring: "softmax", method: "greedy", renormalise: false, first_dense: 0 })
}

pub(super) fn deepseek_v3(folder: &Folder) -> Result<Blueprint, ConfigError> {
    build(folder, Version::V3)
}

fn build(folder: &Folder, version: Version) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let sizes = Sizes::read(config)?;
    let norm = NormSpec::rms(config.number_or("rms_norm_eps", 1e-6)? as f32);
    let mixer = MixerSpec::Latent(latent(config, &sizes, norm)?);
    let layers = feed_forwards(config, &sizes, &version)?.into_iter().map(|feed_forward| LayerSpec {
        mixer: mixer.clone(),
        feed_forward,
        norms: LayerNorms::before(norm),
        residual: Residual::Sequential,
        residual_scale: 1.0,
    });
    let spec = sizes.model(folder, layers.collect(), norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: NAMING.names() })
}

/// Each layer's feed-forward part: after some dense ones, MoE.
pub(super) fn feed_forwards(
    config: &ConfigFile,
    sizes: &Sizes,
    version: &Version,
) -> Result<Vec<FeedForwardSpec>, ConfigError> {
    let mlp = sizes.mlp(MlpKind::Gated, activation(config, "hidden_act", "silu")?, false);
    let moe = experts_key(config).map(|_| moe(config, version, mlp.activation)).transpose()?;
    let first = config.number_or("first_k_dense_replace", version.first_dense as f64)? as usize;
    let step = config.size_or("moe_layer_freq", 1)?;
    let of_layer = |index: usize| match moe {
        Some(moe) if index >= first && index.is_multiple_of(step) => moe.into(),
        _ => FeedForwardSpec::Dense(mlp),
    };
    Ok((0..sizes.layers).map(of_layer).collect())
}

fn latent(config: &ConfigFile, sizes: &Sizes, norm: NormSpec) -> Result<LatentSpec, ConfigError> {
    let (nope_dim, rope_dim) = (config.size("qk_nope_head_dim")?, config.size("qk_rope_head_dim")?);
    let style = match config.flag_or("rope_interleave", true)? {
        true => RopeStyle::Interleaved,
        false => RopeStyle::Halves,
    };
    let rope = RopeDefaults { theta: 10000.0, rotary_dim: rope_dim, style };
    Ok(LatentSpec {
        heads: sizes.heads,
        query_rank: config.size_opt("q_lora_rank")?,
        kv_rank: config.size("kv_lora_rank")?,
        nope_dim,
        rope_dim,
        v_head_dim: config.size("v_head_dim")?,
        scale: (((nope_dim + rope_dim) as f64).sqrt().recip() * temperature(config)?.powi(2)) as f32,
        rope: read_rope(config, rope)?,
        // The library's value, whatever rms_norm_eps says.
        norm: NormSpec { eps: 1e-6, ..norm },
        bias: config.flag_or("attention_bias", false)?,
    })
}

/// What YaRN multiplies queries and keys by, both here in the scores (YaRN, arXiv 2309.00071, section 3.4).
fn temperature(config: &ConfigFile) -> Result<f64, ConfigError> {
    let scaling = match config.object("rope_scaling")? {
        Some(scaling) => Some(scaling),
        None => config.object("rope_parameters")?,
    };
    let Some(scaling) = scaling else { return Ok(1.0) };
    let (weight, factor) = (scaling.number_or("mscale_all_dim", 0.0)?, scaling.number_or("factor", 1.0)?);
    Ok(if factor > 1.0 { 0.1 * weight * factor.ln() + 1.0 } else { 1.0 })
}

fn moe(config: &ConfigFile, version: &Version, activation: Activation) -> Result<MoeSpec, ConfigError> {
    let width = config.size("moe_intermediate_size")?;
    let mlp = |width| MlpSpec { kind: MlpKind::Gated, intermediate_size: width, activation, bias: MlpBias::default() };
    let (experts, routing) = experts(config, "n_routed_experts")?;
    let score = match config.text_or("scoring_func", version.scoring)?.as_str() {
        "softmax" => RouterScore::Softmax,
        // dots.llm1's files say the second.
        "sigmoid" | "noaux_tc" => RouterScore::Sigmoid,
        _ => return Err(config.unsupported("scoring_func", "expected softmax or sigmoid")),
    };
    let (groups, correction) = match config.text_or("topk_method", version.method)?.as_str() {
        "greedy" => (None, false),
        "group_limited_greedy" => (Some(groups(config, experts, routing.top_k, 1)?), false),
        "noaux_tc" => (Some(groups(config, experts, routing.top_k, 2)?), true),
        _ => return Err(config.unsupported("topk_method", "expected greedy, group_limited_greedy or noaux_tc")),
    };
    let renormalise = config.flag_or("norm_topk_prob", version.renormalise)?;
    let scale = config.number_or("routed_scaling_factor", 1.0)? as f32;
    let shared = config.size_opt("n_shared_experts")?;
    Ok(MoeSpec {
        experts,
        expert: mlp(width),
        routing: RoutingSpec { score, correction, groups, renormalise, scale, ..routing },
        shared: shared.map(|count| SharedExpertSpec { mlp: mlp(count * width), gated: false }),
    })
}

/// Groups scored by their `best` experts.
fn groups(config: &ConfigFile, experts: usize, top_k: usize, best: usize) -> Result<ExpertGroups, ConfigError> {
    let (count, kept) = (config.size_or("n_group", 1)?, config.size_or("topk_group", 1)?);
    if !experts.is_multiple_of(count) || experts / count < best {
        let reason = format!("it must divide the {experts} experts into groups of at least {best}");
        return Err(config.unsupported("n_group", &reason));
    }
    if kept > count || kept * (experts / count) < top_k {
        let reason = format!("expected at most {count} groups, with {top_k} experts or more");
        return Err(config.unsupported("topk_group", &reason));
    }
    Ok(ExpertGroups { count, kept, best })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str) -> ConfigFile {
        ConfigFile::parse(Path::new("config.json"), text.as_bytes()).unwrap()
    }

    #[test]
    fn groups_must_fit() {
        let refusal = |text: &str| groups(&config(text), 8, 3, 2).unwrap_err().to_string();
        for text in [r#"{"n_group": 3}"#, r#"{"n_group": 8}"#] {
            assert!(refusal(text).contains("n_group"), "{text}");
        }
        for text in [r#"{"n_group": 4, "topk_group": 5}"#, r#"{"n_group": 4, "topk_group": 1}"#] {
            assert!(refusal(text).contains("topk_group"), "{text}");
        }
        let fits = groups(&config(r#"{"n_group": 4, "topk_group": 2}"#), 8, 3, 2).unwrap();
        assert_eq!(fits, ExpertGroups { count: 4, kept: 2, best: 2 });
    }

    #[test]
    fn dots_names_its_scores_after_the_method() {
        let moe = |more: &str| {
            let text =
                format!(r#"{{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8{more}}}"#);
            moe(&config(&text), &Version::V3, Activation::Silu)
        };
        for more in ["", r#", "scoring_func": "noaux_tc""#, r#", "scoring_func": "sigmoid""#] {
            let routing = moe(more).unwrap().routing;
            assert_eq!((routing.score, routing.correction), (RouterScore::Sigmoid, true), "{more}");
        }
        assert!(moe(r#", "scoring_func": "tanh""#).unwrap_err().to_string().contains("scoring_func"));
    }

    #[test]
    fn scores_take_up_the_temperature() {
        let scaled = r#"{"rope_scaling": {"type": "yarn", "factor": 40, "mscale_all_dim": 1.0}}"#;
        assert!((temperature(&config(scaled)).unwrap() - 1.368_888).abs() < 1e-6);
        assert_eq!(temperature(&config("{}")).unwrap(), 1.0);
    }

    #[test]
    fn heads_turn_in_pairs_unless_the_file_says_otherwise() {
        let sizes = r#""vocab_size": 33, "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
            "max_position_embeddings": 64, "intermediate_size": 48, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4, "v_head_dim": 8"#;
        for (more, style) in [
            ("", RopeStyle::Interleaved),
            (r#", "rope_interleave": true"#, RopeStyle::Interleaved),
            (r#", "rope_interleave": false"#, RopeStyle::Halves),
        ] {
            let config = config(&format!("{{{sizes}{more}}}"));
            let sizes = Sizes::read(&config).unwrap();
            assert_eq!(latent(&config, &sizes, NormSpec::rms(1e-6)).unwrap().rope.style, style, "{more}");
        }
    }
}
