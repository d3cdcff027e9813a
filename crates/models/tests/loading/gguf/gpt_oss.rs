//! gpt-oss: experts apart, and in four-bit floats.

use super::*;

const GPT_OSS: Family = Family {
    class: "GptOssForCausalLM",
    name: "gpt-oss",
    config: r#""head_dim": 8, "num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": 3,
        "rms_norm_eps": 1e-6, "rope_theta": 150000, "rope_scaling": {"rope_type": "yarn", "factor": 8,
        "original_max_position_embeddings": 16, "truncate": false},"#,
    sizes: &[
        ("attention.sliding_window", 3),
        ("expert_count", 3),
        ("expert_used_count", 2),
        ("expert_feed_forward_length", 48),
        ("rope.scaling.original_context_length", 16),
    ],
    numbers: &[("rope.freq_base", 150_000.0), ("rope.scaling.factor", 8.0)],
    names: names![
        ("post_attention_layernorm", "post_attention_norm"),
        ("self_attn.sinks", "attn_sinks.weight"),
        ("mlp.router", "ffn_gate_inp"),
    ],
};

impl Family {
    /// gpt-oss's metadata, with experts of `inner` inner features.
    fn gpt_oss_metadata(&self, inner: u32) -> Vec<(String, u32, Vec<u8>)> {
        let mut all = self.metadata();
        let text = [&4_u64.to_le_bytes()[..], b"yarn"].concat();
        all.push(("gpt-oss.rope.scaling.type".to_owned(), 8, text));
        for key in ["feed_forward_length", "expert_feed_forward_length"] {
            all.push((format!("gpt-oss.{key}"), 4, inner.to_le_bytes().to_vec()));
        }
        all
    }
}

/// Every second row of each expert of a tensor `[experts, rows, width]`, from the first or the second one on.
fn every_second<T: Copy>(values: &[T], width: usize, first: usize) -> Vec<T> {
    values.chunks(width).skip(first).step_by(2).flatten().copied().collect()
}

/// Each expert's matrix the other way round.
fn turned(values: &[f32], [rows, cols]: [usize; 2]) -> Vec<f32> {
    values.chunks(rows * cols).flat_map(|one| (0..rows * cols).map(|at| one[at % rows * cols + at / rows])).collect()
}

/// A tensor of gpt-oss as a converter writes it: gate and up apart, matrices by output features.
fn without_fused_experts(name: &str, tensor: &Tensor) -> Vec<Written> {
    let Some((layer, part)) = name.split_once(".mlp.experts.") else { return vec![GPT_OSS.renamed(name, tensor)] };
    let (layer, values) = (layer.replace("model.layers", "blk"), values(tensor));
    let named = |part: &str, shape: &[usize], values| Written::new(format!("{layer}.{part}"), shape.to_vec(), values);
    match (part, &tensor.shape[..]) {
        ("gate_up_proj", [experts, inputs, outputs]) => {
            let upright = turned(&values, [*inputs, *outputs]);
            let half = |first| every_second(&upright, *inputs, first);
            let shape = [*experts, outputs / 2, *inputs];
            vec![named("ffn_gate_exps.weight", &shape, half(0)), named("ffn_up_exps.weight", &shape, half(1))]
        }
        ("gate_up_proj_bias", [experts, outputs]) => {
            let (half, shape) = (|first| every_second(&values, 1, first), [*experts, outputs / 2]);
            vec![named("ffn_gate_exps.bias", &shape, half(0)), named("ffn_up_exps.bias", &shape, half(1))]
        }
        ("down_proj", [experts, inputs, outputs]) => {
            let upright = turned(&values, [*inputs, *outputs]);
            vec![named("ffn_down_exps.weight", &[*experts, *outputs, *inputs], upright)]
        }
        ("down_proj_bias", shape) => vec![named("ffn_down_exps.bias", shape, values.clone())],
        (other, shape) => panic!("{other} {shape:?}"),
    }
}

#[test]
fn experts_of_gpt_oss_are_taken_apart() {
    let checkpoint = GPT_OSS.checkpoint();
    let written: Vec<Written> = checkpoint.iter().flat_map(|(name, one)| without_fused_experts(name, one)).collect();
    let of_file = computed(&[file(&GPT_OSS.gpt_oss_metadata(48), &written.iter().collect::<Vec<_>>())]);
    assert!(of_file.iter().all(|x| x.is_finite()) && of_file[..33] != of_file[33..66]);
    assert_eq!(of_file, expected(&GPT_OSS.config(), &checkpoint));
}

/// Blocks of MXFP4 as GGUF files have them: the exponent first, then codes `j` and `j + 16` in byte `j`.
fn blocks(codes: &[u8], exponents: &[u8]) -> Vec<u8> {
    let code = |block: &[u8], at: usize| block[at / 2] >> (at % 2 * 4) & 15;
    let pair = |block: &[u8], at| code(block, at) | code(block, at + 16) << 4;
    let block = |(block, exponent): (&[u8], &u8)| {
        [*exponent].into_iter().chain((0..16).map(|at| pair(block, at))).collect::<Vec<u8>>()
    };
    codes.chunks(16).zip(exponents).flat_map(block).collect()
}

/// The same numbers from OpenAI's blocks and from ggml's.
#[test]
fn four_bit_floats_are_read() {
    let config = GPT_OSS.config().replace("\"intermediate_size\": 48", "\"intermediate_size\": 64");
    let config =
        config.replace("\"eos_token_id\"", r#""quantization_config": {"quant_method": "mxfp4"}, "eos_token_id""#);
    let (dir, saved) = (folder(&config), tempfile::tempdir().expect("a folder"));
    models::save_random(dir.path(), saved.path(), DType::F32, 1).expect("saves");
    let bytes = std::fs::read(saved.path().join("model.safetensors")).expect("weights");
    let stored = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let mut written = Vec::new();
    for (name, view) in stored.tensors() {
        let Some(weight) = name.strip_suffix("_blocks") else {
            let plain = Tensor { shape: view.shape().to_vec(), dtype: view.dtype(), bytes: view.data().to_vec() };
            if !name.ends_with("_scales") {
                written.extend(without_fused_experts(&name, &plain));
            }
            continue;
        };
        let scales = stored.tensor(&format!("{weight}_scales")).expect("scales");
        // Exponents of their own, so that one in another's place is seen.
        let exponents: Vec<u8> =
            scales.data().iter().zip((0..=255).cycle()).map(|(exponent, at): (&u8, u8)| exponent - at % 3).collect();
        let [experts, rows, groups, _] = view.shape()[..] else { panic!("blocks") };
        let layer = weight.split_once(".mlp").expect("a layer").0.replace("model.layers", "blk");
        let mut add = |part: &str, rows: usize, codes: &[u8], exponents: &[u8]| {
            let (name, shape) = (format!("{layer}.{part}_exps.weight"), vec![experts, rows, groups * 32]);
            written.push(Written { blocks: blocks(codes, exponents), ..Written::new(name, shape, Vec::new()) });
        };
        if weight.ends_with("down_proj") {
            add("ffn_down", rows, view.data(), &exponents);
            continue;
        }
        for (part, first) in [("ffn_gate", 0), ("ffn_up", 1)] {
            let codes = every_second(view.data(), groups * 16, first);
            add(part, rows / 2, &codes, &every_second(&exponents, groups, first));
        }
    }
    rewrite_exponents(saved.path(), &stored);
    let expected = logits(&mut load(saved.path(), &options(LoadFormat::Auto, (0, 1))).expect("loads").0, &mut Solo);
    let of_file = computed(&[file(&GPT_OSS.gpt_oss_metadata(64), &written.iter().collect::<Vec<_>>())]);
    assert!(of_file.iter().all(|x| x.is_finite()) && of_file[..33] != of_file[33..66]);
    assert_eq!(of_file, expected);
}

/// The file again, with the exponents that the GGUF file has.
fn rewrite_exponents(dir: &Path, stored: &safetensors::SafeTensors<'_>) {
    let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let changed = |(byte, at): (&u8, u8)| if name.ends_with("_scales") { byte - at % 3 } else { *byte };
        let bytes = view.data().iter().zip((0..=255).cycle()).map(changed).collect();
        (name, Tensor { shape: view.shape().to_vec(), dtype: view.dtype(), bytes })
    };
    write(dir, "model.safetensors", &stored.tensors().into_iter().map(tensor).collect::<Vec<_>>());
}
