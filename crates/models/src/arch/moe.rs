//! What MoE architectures read alike.

use model_spec::{ConfigError, ConfigFile, FeedForwardSpec, MlpSpec, ModelSpec, MoeSpec, RoutingSpec};

/// Number of experts, under `key`, and how a token chooses `num_experts_per_tok` of them by softmax.
pub(super) fn experts(config: &ConfigFile, key: &str) -> Result<(usize, RoutingSpec), ConfigError> {
    let experts = config.size(key)?;
    let top_k = config.size("num_experts_per_tok")?;
    if top_k > experts {
        return Err(config.unsupported("num_experts_per_tok", &format!("there are {experts} experts")));
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
