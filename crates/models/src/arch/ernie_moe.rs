//! ERNIE 4.5 with MoE layers: some of them, experts chosen by corrected scores, and an MLP for all tokens.

use model_spec::{ConfigError, ConfigFile, MlpSpec, MoeSpec, RoutingSpec, SharedExpertSpec};

use super::expert_naming::ExpertNaming;
use super::moe::{experts, moe, moe_layers};
use super::naming::{LLAMA, Naming};
use super::{Blueprint, Folder, llama};
use crate::weights::LayerParam;

pub(super) fn ernie_moe(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    if config.flag_or("use_bias", false)? {
        return Err(config.unsupported("use_bias", "only false is supported"));
    }
    // So little that dividing by the sum alone is the same.
    if config.number_or("moe_norm_min", 1e-12)? > 1e-9 {
        return Err(config.unsupported("moe_norm_min", "at most 1e-9 is supported"));
    }
    let mut spec = llama::ernie(folder)?.spec;
    let (count, routing) = experts(config, "moe_num_experts")?;
    let routing = RoutingSpec { correction: true, ..routing };
    let width = config.size("moe_intermediate_size")?;
    let shared = config.number_or("moe_num_shared_experts", 2.0)? as usize;
    let layers = MoeLayers::read(config, spec.layers.len())?;
    moe_layers(&mut spec, |index, mlp| {
        let of = |width| MlpSpec { intermediate_size: width, ..mlp };
        let all = (shared > 0).then(|| SharedExpertSpec { mlp: of(shared * width), gated: false });
        let moe = MoeSpec { shared: all, ..moe(of(width), count, routing) };
        if layers.has(index) { moe.into() } else { mlp.into() }
    });
    let names = Naming { part, experts: ExpertNaming::USUAL, ..LLAMA };
    Ok(Blueprint { spec, names: names.names() })
}

/// Which layers have experts: each `step`-th from `first` to `last`.
#[derive(Debug, PartialEq)]
struct MoeLayers {
    first: usize,
    last: usize,
    step: usize,
}

impl MoeLayers {
    fn read(config: &ConfigFile, layers: usize) -> Result<Self, ConfigError> {
        let last = match config.number_or("moe_layer_end_index", -1.0)? {
            -1.0 => layers - 1,
            last => last as usize,
        };
        let first = config.number_or("moe_layer_start_index", 1.0)? as usize;
        Ok(Self { first, last, step: config.size_or("moe_layer_interval", 1)? })
    }

    fn has(&self, index: usize) -> bool {
        (self.first..=self.last).contains(&index) && (index + 1).is_multiple_of(self.step)
    }
}

fn part(part: LayerParam) -> &'static str {
    match part {
        LayerParam::RouterCorrection => "mlp.moe_statics.e_score_correction_bias",
        other => (LLAMA.part)(other),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn which_layers_have_experts() {
        let found = |text: &str| {
            let config = ConfigFile::parse(Path::new("config.json"), text.as_bytes()).unwrap();
            let layers = MoeLayers::read(&config, 6).unwrap();
            (0..6).filter(|&index| layers.has(index)).collect::<Vec<_>>()
        };
        assert_eq!(found("{}"), [1, 2, 3, 4, 5]);
        assert_eq!(found(r#"{"moe_layer_start_index": 2, "moe_layer_end_index": -1}"#), [2, 3, 4, 5]);
        assert_eq!(found(r#"{"moe_layer_end_index": 4, "moe_layer_interval": 2}"#), [1, 3]);
    }
}
