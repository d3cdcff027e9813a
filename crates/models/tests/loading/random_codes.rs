//! Random weights of quantised formats as files.

use std::collections::BTreeMap;

use super::*;

/// A model of two layers whose config says this of its weights, and more.
fn config(class: &str, more: &str, quantization: &str) -> String {
    format!(
        r#"{{"architectures": ["{class}"], "vocab_size": 33, "hidden_size": 64, "intermediate_size": 96,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "eos_token_id": 2, "torch_dtype": "bfloat16", {more} "quantization_config": {quantization}}}"#
    )
}

/// Saves random weights, loads them, and gives the types and shapes of what is in the file.
fn saved(config: &str) -> BTreeMap<String, (Dtype, Vec<usize>)> {
    let (dir, saved) = (folder(config), tempfile::tempdir().unwrap());
    models::save_random(dir.path(), saved.path(), DType::Bf16, 1).expect(config);
    let (mut model, _) = load(saved.path(), &options(LoadFormat::Auto, (0, 1))).expect(config);
    let logits = logits(&mut model, &mut Solo);
    assert!(logits.iter().all(|x| x.is_finite() && x.abs() < 100.0), "{config}: {logits:?}");
    // Tokens differ in what they make likely.
    assert_ne!(logits[..33], logits[33..66], "{config}");
    let bytes = std::fs::read(saved.path().join("model.safetensors")).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    file.iter().map(|(name, tensor)| (name.to_owned(), (tensor.dtype(), tensor.shape().to_vec()))).collect()
}

/// The tensors of a module, by what follows its name.
fn module(file: &BTreeMap<String, (Dtype, Vec<usize>)>, module: &str) -> Vec<(String, Dtype, Vec<usize>)> {
    let of = |(name, (dtype, shape)): (&String, &(Dtype, Vec<usize>))| {
        let ending = name.strip_prefix(module)?;
        Some((ending.to_owned(), *dtype, shape.clone()))
    };
    file.iter().filter_map(of).collect()
}

fn check(config: &str, of: &str, expected: &[(&str, Dtype, &[usize])]) -> BTreeMap<String, (Dtype, Vec<usize>)> {
    let file = saved(config);
    let expected: Vec<_> =
        expected.iter().map(|(ending, dtype, shape)| ((*ending).to_owned(), *dtype, shape.to_vec())).collect();
    assert_eq!(module(&file, of), expected, "{config}");
    file
}

const DOWN: &str = "model.layers.1.mlp.down_proj";

fn compressed(weights: &str, more: &str) -> String {
    format!(
        r#"{{"quant_method": "compressed-tensors", "ignore": ["lm_head", "re:.*layers\\.0\\.mlp.*"], "config_groups":
        {{"group_0": {{"targets": ["Linear"], {more} "weights": {weights}}}}}}}"#
    )
}

#[test]
fn they_are_the_tensors_that_checkpoints_have() {
    use Dtype::{BF16, F8_E4M3, F16, F32, I8, I32, I64};
    let llama = |quantization: &str| config("LlamaForCausalLM", "", quantization);
    for (bits, words) in [(4, 12), (8, 24), (3, 9)] {
        let gptq = format!(r#"{{"quant_method": "gptq", "bits": {bits}, "group_size": 32}}"#);
        check(
            &llama(&gptq),
            DOWN,
            &[
                (".g_idx", I32, &[96]),
                (".qweight", I32, &[words, 64]),
                (".qzeros", I32, &[3, 64 * bits / 32]),
                (".scales", F16, &[3, 64]),
            ],
        );
    }
    check(
        &llama(r#"{"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": true, "version": "gemm"}"#),
        DOWN,
        &[(".qweight", I32, &[96, 8]), (".qzeros", I32, &[3, 8]), (".scales", F16, &[3, 64])],
    );
    check(
        &llama(r#"{"quant_method": "fp8", "activation_scheme": "static"}"#),
        DOWN,
        &[(".input_scale", F32, &[1]), (".weight", F8_E4M3, &[64, 96]), (".weight_scale", F32, &[1])],
    );
    check(
        &llama(r#"{"quant_method": "fp8", "weight_block_size": [64, 64], "activation_scheme": "dynamic"}"#),
        DOWN,
        &[(".weight", F8_E4M3, &[64, 96]), (".weight_scale_inv", F32, &[1, 2])],
    );
    let w4 = r#"{"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": false}"#;
    let file = check(
        &llama(&compressed(w4, "")),
        DOWN,
        &[
            (".weight_packed", I32, &[64, 12]),
            (".weight_scale", BF16, &[64, 3]),
            (".weight_shape", I64, &[2]),
            (".weight_zero_point", I32, &[8, 3]),
        ],
    );
    // What the config leaves out is plain.
    assert_eq!(module(&file, "model.layers.0.mlp.down_proj"), [(".weight".to_owned(), BF16, vec![64, 96])]);
    assert_eq!(module(&file, "lm_head"), [(".weight".to_owned(), BF16, vec![33, 64])]);
    check(
        &llama(&compressed(
            r#"{"type": "int", "num_bits": 8, "strategy": "channel"}"#,
            r#""input_activations": {"type": "int", "num_bits": 8, "strategy": "token", "dynamic": true},"#,
        )),
        DOWN,
        &[(".weight", I8, &[64, 96]), (".weight_scale", BF16, &[64, 1])],
    );
}

#[test]
fn experts_are_written_as_their_formats_have_them() {
    use Dtype::{BF16, F8_E4M3, F16, F32, I32, U8};
    let experts = r#""num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 8, "head_dim": 16,"#;
    let file = saved(&config("GptOssForCausalLM", experts, r#"{"quant_method": "mxfp4"}"#));
    let expected = [
        ("down_proj_bias", BF16, vec![4, 64]),
        ("down_proj_blocks", U8, vec![4, 64, 3, 16]),
        ("down_proj_scales", U8, vec![4, 64, 3]),
        ("gate_up_proj_bias", BF16, vec![4, 192]),
        ("gate_up_proj_blocks", U8, vec![4, 192, 2, 16]),
        ("gate_up_proj_scales", U8, vec![4, 192, 2]),
    ];
    let expected = expected.map(|(ending, dtype, shape)| (ending.to_owned(), dtype, shape));
    assert_eq!(module(&file, "model.layers.0.mlp.experts."), expected);
    assert_eq!(file["model.layers.0.self_attn.q_proj.weight"], (BF16, vec![64, 64]));
    // A tool that quantises linear layers takes the experts apart.
    let w4 = r#"{"type": "int", "num_bits": 4, "strategy": "group", "group_size": 32}"#;
    let file = saved(&config("GptOssForCausalLM", experts, &compressed(w4, "")));
    assert_eq!(file["model.layers.1.mlp.experts.3.down_proj.weight_packed"], (I32, vec![64, 12]));
    let file =
        saved(&config("MixtralForCausalLM", experts, r#"{"quant_method": "gptq", "bits": 4, "group_size": 32}"#));
    assert_eq!(file["model.layers.1.block_sparse_moe.experts.3.w2.scales"], (F16, vec![3, 64]));
    assert_eq!(file["model.layers.1.block_sparse_moe.gate.weight"], (BF16, vec![4, 64]));
    let fp8 = r#"{"quant_method": "fp8", "weight_block_size": [64, 64], "modules_to_not_convert":
        ["lm_head", "model.layers.0.mlp.gate", "model.layers.1.mlp.gate"]}"#;
    let more = r#""num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 96,"#;
    let file = saved(&config("Qwen3MoeForCausalLM", more, fp8));
    assert_eq!(file["model.layers.1.mlp.experts.3.down_proj.weight"], (F8_E4M3, vec![64, 96]));
    assert_eq!(file["model.layers.1.mlp.experts.3.down_proj.weight_scale_inv"], (F32, vec![1, 2]));
    assert_eq!(file["model.layers.1.mlp.gate.weight"], (BF16, vec![4, 64]));
}

#[test]
fn formats_that_cannot_be_made_up_are_refused_before_a_file_is_written() {
    let (dir, saved) = (folder(&config("LlamaForCausalLM", "", r#"{"quant_method": "bitsandbytes"}"#)), folder("{}"));
    let message = models::save_random(dir.path(), saved.path(), DType::Bf16, 1).unwrap_err().to_string();
    assert!(message.contains("bitsandbytes"), "{message}");
    assert!(!saved.path().join("model.safetensors").exists());
}

/// GPT-2's `Conv1D`s are stored as the linear layers that they are, but for plain numbers; or they are refused.
#[test]
fn conv1d_layers_are_quantised_as_linear_ones() {
    use Dtype::{F16, I32};
    let gpt2 = |quantization: &str| {
        config("GPT2LMHeadModel", r#""n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4,"#, quantization)
    };
    check(
        &gpt2(r#"{"quant_method": "gptq", "bits": 4, "group_size": 32}"#),
        "transformer.h.1.attn.c_attn",
        &[
            (".bias", Dtype::BF16, &[128]),
            (".g_idx", I32, &[64]),
            (".qweight", I32, &[8, 128]),
            (".qzeros", I32, &[2, 16]),
            (".scales", F16, &[2, 128]),
        ],
    );
    for method in [r#"{"quant_method": "fp8"}"#, &compressed(r#"{"num_bits": 8, "type": "int"}"#, "")] {
        let (dir, saved) = (folder(&gpt2(method)), tempfile::tempdir().unwrap());
        let refusal = models::save_random(dir.path(), saved.path(), DType::Bf16, 1).expect_err(method).to_string();
        assert!(
            ["transformer.h.0.attn.c_attn.weight", "Conv1D", "gptq"].iter().all(|word| refusal.contains(word)),
            "{refusal}"
        );
        assert!(!saved.path().join("model.safetensors").exists(), "{method}");
    }
}
