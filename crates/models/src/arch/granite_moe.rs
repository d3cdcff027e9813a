//! Granite with MoE layers, whose weights are stacked; there may be an expert that all tokens share.

use model_spec::{ConfigError, MlpSpec, MoeSpec, SharedExpertSpec};

use super::expert_naming::{ExpertNaming, StackedParam};
use super::moe::{experts, moe, moe_layers};
use super::naming::{LLAMA, Naming};
use super::{Blueprint, Folder, llama};
use crate::weights::{FusedShard, LayerParam, MlpParam};

pub(super) fn granite_moe(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let mut spec = llama::granite(folder)?.spec;
    let (count, routing) = experts(&folder.config, "num_local_experts")?;
    let width = match folder.config.number_or("shared_intermediate_size", 0.0)? {
        0.0 => None,
        _ => folder.config.size_opt("shared_intermediate_size")?,
    };
    moe_layers(&mut spec, |_, mlp| {
        let shared = |width| SharedExpertSpec { mlp: MlpSpec { intermediate_size: width, ..mlp }, gated: false };
        MoeSpec { shared: width.map(shared), ..moe(mlp, count, routing) }.into()
    });
    let [gate, up] = FusedShard::split([folder.config.size("intermediate_size")?; 2]);
    let input =
        |rows| StackedParam { weight: "block_sparse_moe.input_linear.weight", bias: "", rows, transposed: false };
    let output = StackedParam { weight: "block_sparse_moe.output_linear.weight", ..input(FusedShard::ALL) };
    let experts = ExpertNaming::Stacked { count, pieces: [input(gate), input(up), output] };
    let shared_gate_up = width.map(|width| FusedShard::split([width; 2]));
    Ok(Blueprint { spec, names: Naming { part, experts, shared_gate_up, ..LLAMA }.names() })
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::Router => "block_sparse_moe.router.layer",
        LayerParam::Shared(MlpParam::Gate | MlpParam::Up) => "shared_mlp.input_linear",
        LayerParam::Shared(MlpParam::Down) => "shared_mlp.output_linear",
        other => (LLAMA.part)(other),
    }
}
