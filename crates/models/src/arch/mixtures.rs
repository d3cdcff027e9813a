//! What files that describe mixtures of experts have in common.

use model_spec::{ConfigError, ConfigFile, FeedForwardSpec, MixtureSpec, MlpSpec, ModelSpec, RoutingSpec};

/// Number of experts, under `key`, and how a token chooses `num_experts_per_tok` of them by softmax.
pub(super) fn experts(config: &ConfigFile, key: &str) -> Result<(usize, RoutingSpec), ConfigError> {
    let experts = config.size(key)?;
    let top_k = config.size("num_experts_per_tok")?;
    if top_k > experts {
        return Err(config.unsupported("num_experts_per_tok", &format!("there are {experts} experts")));
    }
    Ok((experts, RoutingSpec::softmax(top_k)))
}

/// A mixture of these MLPs and nothing beside them.
pub(super) fn mixture(expert: MlpSpec, (experts, routing): (usize, RoutingSpec)) -> MixtureSpec {
    MixtureSpec { experts, expert, routing, shared: None }
}

/// Makes a mixture of the MLP of each layer.
pub(super) fn mix_layers(spec: &mut ModelSpec, mixture: impl Fn(usize, MlpSpec) -> FeedForwardSpec) {
    for (index, layer) in spec.layers.iter_mut().enumerate() {
        if let FeedForwardSpec::Dense(mlp) = layer.feed_forward {
            layer.feed_forward = mixture(index, mlp);
        }
    }
}
