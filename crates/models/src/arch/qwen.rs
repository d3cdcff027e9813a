//! Qwen 1: Llama under other names, with fused queries, keys and values and a bias on them.

use model_spec::{Activation, Biases, ConfigError, LayerNorms, MlpKind, NormSpec, Residual, RopeStyle};

use super::naming::{LLAMA, Naming};
use super::parts::{Sizes, Tied, layer};
use super::{Blueprint, Folder};
use crate::weights::LayerParam;

pub(super) fn qwen(folder: &Folder) -> Result<Blueprint, ConfigError> {
    let config = &folder.config;
    let mut sizes = Sizes::read(config)?;
    // Counts gate and up together.
    if !sizes.intermediate.is_multiple_of(2) {
        return Err(config.unsupported("intermediate_size", "it counts gate and up together, so it must be even"));
    }
    sizes.intermediate /= 2;
    // Beyond the training's length heads would turn and scores scale otherwise (use_dynamic_ntk, use_logn_attn), by the
    // length so far, which keys in a cache cannot follow.
    sizes.context_len = config.size_opt("seq_length")?.or(sizes.context_len);
    let norm = NormSpec::rms(config.number_or("layer_norm_epsilon", 1e-6)? as f32);
    let rope = sizes.partial_rope(config, config.number_or("rotary_pct", 1.0)?, RopeStyle::Halves)?;
    let bias = !config.flag_or("no_bias", true)?;
    let attention = sizes.attention(rope, Biases { qkv: true, output: bias });
    let mlp = sizes.mlp(MlpKind::Gated, Activation::Silu, bias);
    let layer = layer(attention, mlp, LayerNorms::before(norm), Residual::Sequential);
    let spec = sizes.model(folder, vec![layer; sizes.layers], norm, Tied::IfSaid)?;
    Ok(Blueprint { spec, names: Naming { qkv: Some(sizes.stacked_qkv()), ..NAMING }.names() })
}

const NAMING: Naming = Naming {
    embedding: "transformer.wte",
    final_norm: "transformer.ln_f",
    layers: "transformer.h",
    part: |part| match part {
        LayerParam::BeforeAttention => "ln_1",
        LayerParam::BeforeMlp => "ln_2",
        LayerParam::Query | LayerParam::Key | LayerParam::Value => "attn.c_attn",
        LayerParam::Output => "attn.c_proj",
        LayerParam::Gate => "mlp.w2",
        LayerParam::Up => "mlp.w1",
        LayerParam::Down => "mlp.c_proj",
        other => (LLAMA.part)(other),
    },
    ..LLAMA
};

#[cfg(test)]
mod tests {
    #[test]
    fn gate_and_up_are_of_one_width() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = |size: usize| {
            let text = format!(
                r#"{{"architectures": ["QWenLMHeadModel"], "vocab_size": 33, "hidden_size": 32, "num_hidden_layers": 1,
                    "num_attention_heads": 4, "max_position_embeddings": 64, "intermediate_size": {size}}}"#
            );
            std::fs::write(folder.path().join("config.json"), text).expect("written");
            crate::read_spec(folder.path()).map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(config(48), Ok(()));
        for odd in [1, 49] {
            assert!(config(odd).unwrap_err().contains("intermediate_size"), "{odd}");
        }
    }
}
