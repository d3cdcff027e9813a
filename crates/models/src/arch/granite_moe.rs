//! Granite with MoE layers, whose weights are stacked.

use model_spec::ConfigError;

use super::expert_naming::{ExpertNaming, StackedParam};
use super::moe::{experts, moe, moe_layers};
use super::naming::{LLAMA, Naming};
use super::{Blueprint, Folder, llama};
use crate::weights::{FusedShard, LayerParam};

pub(super) fn granite_moe(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let mut spec = llama::granite(folder)?.spec;
    let (count, routing) = experts(&folder.config, "num_local_experts")?;
    moe_layers(&mut spec, |_, mlp| moe(mlp, count, routing).into());
    let [gate, up] = FusedShard::split([folder.config.size("intermediate_size")?; 2]);
    let input =
        |rows| StackedParam { weight: "block_sparse_moe.input_linear.weight", bias: "", rows, transposed: false };
    let output = StackedParam { weight: "block_sparse_moe.output_linear.weight", ..input(FusedShard::ALL) };
    let experts = ExpertNaming::Stacked { count, pieces: [input(gate), input(up), output] };
    Ok(Blueprint { spec, names: Naming { part, experts, ..LLAMA }.names() })
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Router => "block_sparse_moe.router.layer",
        other => (LLAMA.part)(other),
    }
}
