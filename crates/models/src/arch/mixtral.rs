//! Mixtral: Mistral with MoE in every layer.

use model_spec::ConfigError;

use super::expert_naming::ExpertNaming;
use super::moe::{experts, moe, moe_layers};
use super::naming::{LLAMA, Naming};
use super::{Blueprint, Folder, llama};
use crate::weights::LayerParam;

pub(super) fn mixtral(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let mut spec = llama::mistral(folder)?.spec;
    let (count, routing) = experts(&folder.config, "num_local_experts")?;
    moe_layers(&mut spec, |_, mlp| moe(mlp, count, routing).into());
    let experts = ExpertNaming::Each { prefix: "block_sparse_moe.experts", pieces: ["w1", "w3", "w2"] };
    Ok(Blueprint { spec, names: Naming { part, experts, ..LLAMA }.names() })
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Router => "block_sparse_moe.gate",
        other => (LLAMA.part)(other),
    }
}
