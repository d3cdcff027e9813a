//! OLMoE: MoE layers of small experts, norms of all queries and all keys.

use model_spec::{ConfigError, NormSpec, QkNorm, RoutingSpec};

use super::expert_naming::ExpertNaming;
use super::moe::{experts, moe, moe_layers};
use super::naming::{LLAMA, Naming};
use super::parts::bound;
use super::{Blueprint, Folder, llama};

pub(super) fn olmoe(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let mut spec = llama::llama(folder)?.spec;
    let norm = NormSpec::rms(config.number_or("rms_norm_eps", 1e-5)? as f32);
    let clip = bound(config, "clip_qkv")?;
    for attention in spec.layers.iter_mut().filter_map(|layer| layer.mixer.attention_mut()) {
        (attention.qk_norm, attention.clip) = (Some(QkNorm::Whole(norm)), clip);
    }
    let (experts, routing) = experts(config, "num_experts")?;
    let routing = RoutingSpec { renormalise: config.flag_or("norm_topk_prob", false)?, ..routing };
    moe_layers(&mut spec, |_, mlp| moe(mlp, experts, routing).into());
    Ok(Blueprint { spec, names: Naming { experts: ExpertNaming::USUAL, ..LLAMA }.names() })
}
