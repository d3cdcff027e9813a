//! Refuses models with layers of shapes that a device has no kernels for, before any of their weights is read.

use kernels::ops::ShapeLimits;
use model_spec::{FeedForwardSpec, LayerSpec, MixerSpec, ModelSpec};

use crate::error::LoadError;

/// A size: its name in `config.json`, what it is, and the largest that is computed.
type Size = (&'static str, usize, usize);

/// Fails for the first layer beyond `limits`, those of `device`.
pub(crate) fn check(spec: &ModelSpec, limits: ShapeLimits, device: impl FnOnce() -> String) -> Result<(), LoadError> {
    let mut sizes = spec.layers.iter().flat_map(|layer| sizes(layer, limits));
    match sizes.find(|(_, size, most)| size > most) {
        Some((what, size, most)) => Err(LoadError::Beyond { what, size, most, device: device() }),
        None => Ok(()),
    }
}

fn sizes(layer: &LayerSpec, limits: ShapeLimits) -> impl Iterator<Item = Size> {
    let of_mixer: Vec<Size> = match &layer.mixer {
        MixerSpec::Attention(spec) => {
            vec![("head_dim", spec.head_dim, limits.head_dim), ("v_head_dim", spec.v_head_dim, limits.v_head_dim)]
        }
        MixerSpec::Latent(spec) => vec![
            ("kv_lora_rank", spec.kv_rank, limits.v_head_dim),
            ("kv_lora_rank + qk_rope_head_dim", spec.kv_rank + spec.rope_dim, limits.head_dim),
        ],
        MixerSpec::Mamba(spec) => vec![("state_size", spec.state_size, limits.state_dim)],
        MixerSpec::Mamba2(spec) => vec![("state_size", spec.state_size, limits.state_dim)],
        MixerSpec::Delta(spec) => vec![("linear_key_head_dim", spec.key_dim, limits.key_dim)],
    };
    let of_experts: Vec<Size> = match &layer.feed_forward {
        FeedForwardSpec::Moe(spec) => vec![
            ("the number of experts", spec.experts, limits.experts),
            ("num_experts_per_tok", spec.routing.top_k, limits.top_k),
        ],
        FeedForwardSpec::Dense(_) | FeedForwardSpec::None => Vec::new(),
    };
    of_mixer.into_iter().chain(of_experts)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ATTENTION: &str = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 33, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
        "head_dim": 640}"#;
    const LATENT: &str = r#"{"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 33, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
        "kv_lora_rank": 576, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1,
        "n_routed_experts": 3000, "num_experts_per_tok": 1500, "moe_intermediate_size": 16}"#;
    const LINEAR: &str = r#"{"architectures": ["Qwen3NextForCausalLM"], "vocab_size": 33, "hidden_size": 32,
        "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
        "linear_num_key_heads": 2, "linear_num_value_heads": 2, "linear_key_head_dim": 320, "linear_value_head_dim": 8,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16,
        "shared_expert_intermediate_size": 16}"#;
    const SCAN: &str = r#"{"architectures": ["Mamba2ForCausalLM"], "vocab_size": 33, "hidden_size": 32, "head_dim": 16,
        "num_hidden_layers": 2, "state_size": 300}"#;

    /// What is said of a model on a device with such limits.
    fn refusal(config: &str, limits: ShapeLimits) -> Option<String> {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("config.json"), config).expect("written");
        let spec = crate::read_spec(folder.path()).expect("a model");
        check(&spec, limits, || "cuda (a GPU)".to_owned()).err().map(|error| error.to_string())
    }

    #[test]
    fn sizes_beyond_a_device_are_refused_with_name_bound_and_remedy() {
        let none = ShapeLimits::NONE;
        for (config, limits, words) in [
            (
                ATTENTION,
                ShapeLimits { v_head_dim: 512, ..none },
                "v_head_dim = 640 is too large for cuda (a GPU), which computes up to 512",
            ),
            (ATTENTION, ShapeLimits { head_dim: 639, ..none }, "head_dim = 640"),
            (LATENT, ShapeLimits { v_head_dim: 512, ..none }, "kv_lora_rank = 576"),
            (LATENT, ShapeLimits { head_dim: 583, ..none }, "kv_lora_rank + qk_rope_head_dim = 584"),
            (LATENT, ShapeLimits { experts: 2048, ..none }, "the number of experts = 3000"),
            (LATENT, ShapeLimits { top_k: 1024, ..none }, "num_experts_per_tok = 1500"),
            (LINEAR, ShapeLimits { key_dim: 256, ..none }, "linear_key_head_dim = 320"),
            (SCAN, ShapeLimits { state_dim: 256, ..none }, "state_size = 300"),
        ] {
            let refusal = refusal(config, limits).expect(words);
            assert!(refusal.contains(words) && refusal.contains("--device cpu"), "{refusal}");
        }
    }

    #[test]
    fn sizes_up_to_the_limit_are_computed() {
        let limits = ShapeLimits { head_dim: 640, v_head_dim: 640, ..ShapeLimits::NONE };
        assert_eq!(refusal(ATTENTION, limits), None);
        for config in [LATENT, LINEAR, SCAN] {
            assert_eq!(refusal(config, ShapeLimits::NONE), None);
        }
    }
}
