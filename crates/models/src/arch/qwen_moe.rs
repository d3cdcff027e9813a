//! Qwen 2 and 3 with MoE layers: all but some; Qwen 2 also has an expert that all tokens share, behind a gate.

use model_spec::{ConfigError, ConfigFile, FeedForwardSpec, MlpBias, MlpSpec, MoeSpec, SharedExpertSpec};

use super::expert_naming::ExpertNaming;
use super::moe::{experts, moe_layers};
use super::naming::{LLAMA, Naming};
use super::{Blueprint, Folder, llama};
use crate::weights::{LayerParam, MlpParam};

/// Names in Qwen's MoE layers.
pub(super) const NAMING: Naming = Naming { part, experts: ExpertNaming::USUAL, ..LLAMA };

pub(super) fn qwen2_moe(folder: &Folder) -> Result<Blueprint, ConfigError> {
    build(folder, llama::qwen2(folder)?)
}

pub(super) fn qwen3_moe(folder: &Folder) -> Result<Blueprint, ConfigError> {
    build(folder, llama::qwen3(folder)?)
}

fn build(folder: &Folder, dense: Blueprint) -> Result<Blueprint, ConfigError> {
    let mut spec = dense.spec;
    let layers = Layers::read(&folder.config)?;
    moe_layers(&mut spec, |index, mlp| layers.feed_forward(index, mlp));
    Ok(Blueprint { spec, names: NAMING.names() })
}

/// Which layers are MoE, and their experts.
pub(super) struct Layers {
    /// An MoE layer; the activation is filled in later.
    moe: MoeSpec,
    /// Each `step`-th layer is MoE.
    step: usize,
    dense: Vec<f64>,
}

impl Layers {
    pub(super) fn read(config: &ConfigFile) -> Result<Self, ConfigError> {
        let (experts, routing) = experts(config, "num_experts")?;
        let renormalise = config.flag_or("norm_topk_prob", false)?;
        let mlp = |width| MlpSpec {
            kind: model_spec::MlpKind::Gated,
            intermediate_size: width,
            activation: model_spec::Activation::Silu,
            bias: MlpBias::default(),
        };
        let shared = config.size_opt("shared_expert_intermediate_size")?;
        let moe = MoeSpec {
            experts,
            expert: mlp(config.size("moe_intermediate_size")?),
            routing: model_spec::RoutingSpec { renormalise, ..routing },
            shared: shared.map(|width| SharedExpertSpec { mlp: mlp(width), gated: true }),
        };
        let step = config.size_or("decoder_sparse_step", 1)?;
        Ok(Self { moe, step, dense: config.numbers_opt("mlp_only_layers")?.unwrap_or_default() })
    }

    /// A layer's feed-forward part where `dense` is what it is without experts.
    pub(super) fn feed_forward(&self, index: usize, dense: MlpSpec) -> FeedForwardSpec {
        if self.dense.contains(&(index as f64)) || !(index + 1).is_multiple_of(self.step) {
            return dense.into();
        }
        let activation = dense.activation;
        let expert = MlpSpec { activation, ..self.moe.expert };
        let shared =
            self.moe.shared.map(|shared| SharedExpertSpec { mlp: MlpSpec { activation, ..shared.mlp }, ..shared });
        MoeSpec { expert, shared, ..self.moe }.into()
    }
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Shared(MlpParam::Gate) => "mlp.shared_expert.gate_proj",
        LayerParam::Shared(MlpParam::Up) => "mlp.shared_expert.up_proj",
        LayerParam::Shared(MlpParam::Down) => "mlp.shared_expert.down_proj",
        other => (LLAMA.part)(other),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn some_layers_stay_dense() {
        let text =
            br#"{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8, "decoder_sparse_step": 2,
            "mlp_only_layers": [3]}"#;
        let layers = Layers::read(&ConfigFile::parse(Path::new("config.json"), text).unwrap()).unwrap();
        let (kind, activation) = (model_spec::MlpKind::Gated, model_spec::Activation::Gelu);
        let dense = MlpSpec { kind, intermediate_size: 32, activation, bias: MlpBias::default() };
        let mixed = (0..6).map(|index| matches!(layers.feed_forward(index, dense), FeedForwardSpec::Moe(_)));
        assert_eq!(mixed.collect::<Vec<_>>(), [false, true, false, false, false, true]);
        let FeedForwardSpec::Moe(moe) = layers.feed_forward(1, dense) else { panic!("an MoE layer") };
        assert_eq!((moe.expert.activation, moe.expert.intermediate_size, moe.shared), (activation, 8, None));
    }

    #[test]
    fn more_experts_a_token_than_there_are_is_an_error() {
        let text = br#"{"num_experts": 4, "num_experts_per_tok": 5, "moe_intermediate_size": 8}"#;
        let refusal =
            Layers::read(&ConfigFile::parse(Path::new("config.json"), text).unwrap()).err().unwrap().to_string();
        assert!(refusal.contains("num_experts_per_tok") && refusal.contains("there are 4"), "{refusal}");
    }
}
