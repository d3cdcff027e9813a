//! Classes without a recorded reference whose published definition is another's under other names: the other's folder,
//! rewritten in these names, must give the other's recorded outputs.

use std::ops::Range;
use std::path::Path;

use safetensors::tensor::TensorView;
use safetensors::{SafeTensors, serialize};
use serde_json::{Map, Value, json};

use crate::checks::{Case, float32_in};
use crate::{folders, reference};

/// The classes, and the folder that each is checked on; sorted.
pub const RELABELLED: &[(&str, &str)] = &[
    ("AquilaForCausalLM", "llama"),
    ("AquilaModel", "llama"),
    ("ChatGLMForConditionalGeneration", "chatglm3"),
    ("ExaoneForCausalLM", "llama"),
    ("GlmForCausalLM", "chatglm3"),
    ("InternLM3ForCausalLM", "llama"),
    ("LLaMAForCausalLM", "llama"),
    ("MiMoForCausalLM", "qwen2"),
    ("MptForCausalLM", "mpt"),
    ("RWForCausalLM", "falcon-7b"),
    ("SeedOssForCausalLM", "qwen2"),
    ("StableLMEpochForCausalLM", "stablelm"),
    ("XverseForCausalLM", "llama"),
];

/// The names under which a tensor's rows are stored; `len` is how many there are.
type Rename = fn(name: &str, len: usize) -> Vec<(String, Range<usize>)>;

/// Writes `folder` again as a model of `class` and checks it.
fn check(class: &str, config: Value, rename: Rename) {
    let (_, folder) = RELABELLED.iter().find(|(name, _)| *name == class).expect("a class of the list");
    check_folder(folder, class, config, rename);
}

fn check_folder(folder: &'static str, class: &str, config: Value, rename: Rename) {
    let Some(from) = folders::zoo(folder) else { return };
    let to = tempfile::tempdir().expect("a folder");
    write_config(&from, to.path(), class, config);
    write_weights(&from, to.path(), rename);
    float32_in(&Case::of(folder), to.path(), &reference::read(&from));
}

/// Keys of `changes` replace those of the file; null takes one away.
fn write_config(from: &Path, to: &Path, class: &str, changes: Value) {
    let text = std::fs::read(from.join("config.json")).expect("config.json");
    let mut config: Map<String, Value> = serde_json::from_slice(&text).expect("JSON");
    config.insert("architectures".to_owned(), json!([class]));
    config.extend(changes.as_object().expect("an object").clone());
    std::fs::write(to.join("config.json"), serde_json::to_vec(&config).expect("JSON")).expect("config.json");
}

fn write_weights(from: &Path, to: &Path, rename: Rename) {
    let bytes = std::fs::read(from.join("model.safetensors")).expect("weights");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let parts = tensors.iter().flat_map(|(name, tensor)| {
        let len = tensor.shape()[0];
        rename(name, len).into_iter().map(move |(name, rows)| {
            let row = tensor.data().len() / len;
            let mut shape = tensor.shape().to_vec();
            shape[0] = rows.len();
            let data = &tensor.data()[rows.start * row..rows.end * row];
            (name, TensorView::new(tensor.dtype(), shape, data).expect("a part of a tensor"))
        })
    });
    let bytes = serialize(parts, None).expect("safetensors");
    std::fs::write(to.join("model.safetensors"), bytes).expect("weights");
}

fn same(name: &str, len: usize) -> Vec<(String, Range<usize>)> {
    vec![(name.to_owned(), 0..len)]
}

/// Each pair of `words` that is found is replaced, in order.
fn replaced(name: &str, words: &[(&str, &str)]) -> String {
    words.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to))
}

/// As the library's newest version writes it.
#[test]
fn gemma_3_with_rotary_parameters_by_type_of_layer() {
    let parameters = json!({
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10_000.0},
    });
    let config = json!({
        "rope_theta": null, "rope_local_base_freq": null, "rope_scaling": null, "rope_parameters": parameters,
    });
    check_folder("gemma3", "Gemma3ForCausalLM", config, same);
}

/// As the library's newest version writes it: the rotated share beside the base.
#[test]
fn heads_that_turn_in_part_with_rotary_parameters() {
    let config = |theta: f64, share: f64| {
        let parameters = json!({"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": share});
        json!({"rope_theta": null, "rotary_emb_base": null, "partial_rotary_factor": null, "rotary_pct": null,
            "rope_parameters": parameters})
    };
    check_folder("phi4-mini", "Phi3ForCausalLM", config(10_000.0, 0.75), same);
    check_folder("gpt-neox-sequential", "GPTNeoXForCausalLM", config(10_000.0, 1.0), same);
    check_folder("qwen3-next", "Qwen3NextForCausalLM", config(10_000_000.0, 0.5), same);
}

/// The library's versions have called the number of experts by either name.
#[test]
fn experts_are_counted_under_either_name() {
    let config = json!({"num_experts": null, "num_local_experts": 8});
    check_folder("qwen3-moe", "Qwen3MoeForCausalLM", config, same);
    let config = json!({"num_experts": 4, "num_local_experts": null});
    check_folder("mixtral", "MixtralForCausalLM", config, same);
}

#[test]
fn mpt_under_the_librarys_name() {
    check("MptForCausalLM", json!({}), same);
}

#[test]
fn classes_that_are_llama_under_another_name() {
    for class in ["AquilaForCausalLM", "AquilaModel", "LLaMAForCausalLM", "XverseForCausalLM"] {
        check(class, json!({}), same);
    }
}

#[test]
fn internlm3_is_llama_and_says_twice_whether_there_are_biases() {
    check("InternLM3ForCausalLM", json!({"bias": false, "qkv_bias": false}), same);
    let qkv = json!({"bias": false, "qkv_bias": true, "use_sliding_window": null, "sliding_window": null});
    check_folder("qwen2", "InternLM3ForCausalLM", qkv, same);
}

/// What predicts further tokens is left aside.
#[test]
fn mimo_is_qwen_2() {
    check("MiMoForCausalLM", json!({"attention_bias": true, "num_nextn_predict_layers": 1}), same);
}

/// Biases are on queries, keys and values unless the file says otherwise; `llama` has none.
#[test]
fn seed_oss_is_llama_with_qwen_2s_biases() {
    let silent = json!({"use_sliding_window": null, "sliding_window": null});
    check("SeedOssForCausalLM", silent, same);
    check_folder("llama", "SeedOssForCausalLM", json!({"attention_bias": false, "attention_out_bias": false}), same);
}

#[test]
fn chatglm_for_generation_is_chatglm() {
    check("ChatGLMForConditionalGeneration", json!({}), same);
}

#[test]
fn exaone_is_llama_under_other_names() {
    let config = json!({"num_hidden_layers": null, "num_layers": 2, "hidden_act": null, "activation_function": "silu",
        "rms_norm_eps": null, "layer_norm_epsilon": 1e-5});
    check("ExaoneForCausalLM", config, |name, len| {
        let words = [
            ("model.embed_tokens", "transformer.wte"),
            ("model.norm", "transformer.ln_f"),
            ("model.layers", "transformer.h"),
            ("input_layernorm", "ln_1"),
            ("post_attention_layernorm", "ln_2"),
            ("self_attn.o_proj", "attn.attention.out_proj"),
            ("self_attn", "attn.attention"),
            ("mlp.gate_proj", "mlp.c_fc_0"),
            ("mlp.up_proj", "mlp.c_fc_1"),
            ("mlp.down_proj", "mlp.c_proj"),
        ];
        same(&replaced(name, &words), len)
    });
}

#[test]
fn falcon_under_its_first_names() {
    let config = json!({"num_attention_heads": null, "n_head": 3, "num_hidden_layers": null, "n_layer": 2});
    check("RWForCausalLM", config, same);
}

#[test]
fn glm_is_chatglm_in_the_librarys_format() {
    let config = json!({"num_hidden_layers": 2, "intermediate_size": 160, "num_key_value_heads": 2, "head_dim": 32,
        "vocab_size": 512, "rms_norm_eps": 1e-5, "attention_bias": true, "partial_rotary_factor": 0.5,
        "max_position_embeddings": 512, "hidden_act": "silu"});
    check("GlmForCausalLM", config, |name, len| {
        if name.ends_with("inv_freq") {
            return Vec::new();
        }
        let words = [
            ("transformer.embedding.word_embeddings", "model.embed_tokens"),
            ("transformer.encoder.final_layernorm", "model.norm"),
            ("transformer.output_layer", "lm_head"),
            ("transformer.encoder.layers", "model.layers"),
            ("self_attention.dense", "self_attn.o_proj"),
            ("mlp.dense_h_to_4h", "mlp.gate_up_proj"),
            ("mlp.dense_4h_to_h", "mlp.down_proj"),
        ];
        let name = replaced(name, &words);
        if !name.contains("self_attention.query_key_value") {
            return same(&name, len);
        }
        let part = |to, rows| (name.replace("self_attention.query_key_value", to), rows);
        vec![part("self_attn.q_proj", 0..128), part("self_attn.k_proj", 128..192), part("self_attn.v_proj", 192..256)]
    });
}

#[test]
fn stablelm_under_its_first_names() {
    let config = json!({"layer_norm_eps": null, "norm_eps": 1e-5, "partial_rotary_factor": null, "rope_pct": 0.25});
    check("StableLMEpochForCausalLM", config, same);
}
