//! What MoE architectures read alike.

use model_spec::{ConfigError, ConfigFile, FeedForwardSpec, MlpSpec, ModelSpec, MoeSpec, RoutingSpec};

/// What families, and versions of the library that writes their files, call the number of experts.
const EXPERTS_KEYS: [&str; 4] = ["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"];
/// And the number of those that a token goes to.
const TOP_K_KEYS: [&str; 2] = ["num_experts_per_tok", "moe_k"];

/// The key of the number of experts, where the file has it.
pub(super) fn experts_key(config: &ConfigFile) -> Option<&'static str> {
    config.spelled(&EXPERTS_KEYS)
}

/// Number of experts, usually under `key`, and how a token chooses some of them by softmax.
pub(super) fn experts(config: &ConfigFile, key: &str) -> Result<(usize, RoutingSpec), ConfigError> {
    let experts = config.size(experts_key(config).unwrap_or(key))?;
    let key = config.spelled(&TOP_K_KEYS).unwrap_or(TOP_K_KEYS[0]);
    let top_k = config.size(key)?;
    if top_k > experts {
        return Err(config.unsupported(key, &format!("there are {experts} experts")));
    }
    Ok((experts, RoutingSpec::softmax(top_k)))
}

/// MoE of these MLPs, without shared experts.
pub(super) fn moe(expert: MlpSpec, experts: usize, routing: RoutingSpec) -> MoeSpec {
    MoeSpec { experts, expert, routing, shared: None }
}

/// Turns the MLP of each layer into MoE.
pub(super) fn moe_layers(spec: &mut ModelSpec, moe: impl Fn(usize, MlpSpec) -> FeedForwardSpec) {
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if let FeedForwardSpec::Dense(mlp) = layer.feed_forward {
            layer.feed_forward = moe(index, mlp);
        }
    }
}
