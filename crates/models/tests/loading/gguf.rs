//! GGUF files: each computes what the same weights under their class's own names do.

use super::moe::{MIXTURE, checkpoint};
use super::*;

/// A tensor of a GGUF file: f32.
struct Written {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// A file of metadata (key, number of the type, bytes) and tensors.
fn file(metadata: &[(String, u32, Vec<u8>)], tensors: &[&Written]) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend((metadata.len() as u64).to_le_bytes());
    for (key, kind, value) in metadata {
        out.extend([text(key), kind.to_le_bytes().to_vec(), value.clone()].concat());
    }
    let mut offset = 0_u64;
    for Written { name, shape, values } in tensors {
        out.extend(text(name));
        out.extend((shape.len() as u32).to_le_bytes());
        shape.iter().rev().for_each(|extent| out.extend((*extent as u64).to_le_bytes()));
        out.extend(0_u32.to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += (values.len() as u64 * 4).next_multiple_of(32);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    for Written { values, .. } in tensors {
        values.iter().for_each(|value| out.extend(value.to_le_bytes()));
        out.resize(out.len().next_multiple_of(32), 0);
    }
    out
}

/// What `CONFIG` says, and more of this family.
fn metadata(family: &str, more: &[(&str, u32)]) -> Vec<(String, u32, Vec<u8>)> {
    let text = [&(family.len() as u64).to_le_bytes()[..], family.as_bytes()].concat();
    let mut all = vec![("general.architecture".to_owned(), 8, text)];
    let epsilon = (format!("{family}.attention.layer_norm_rms_epsilon"), 6, 1e-6_f32.to_le_bytes().to_vec());
    all.push(epsilon);
    let sizes = [
        ("embedding_length", 32),
        ("feed_forward_length", 48),
        ("block_count", 2),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
        ("attention.key_length", 8),
        ("attention.value_length", 8),
        ("context_length", 64),
    ];
    let sizes = sizes.iter().chain(more);
    all.extend(sizes.map(|(key, size)| (format!("{family}.{key}"), 4, size.to_le_bytes().to_vec())));
    all
}

/// The names of GGUF files for those of `tensors()`.
const NAMES: [(&str, &str); 15] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers", "blk"),
    ("input_layernorm", "attn_norm"),
    ("pre_feedforward_layernorm", "ffn_norm"),
    ("post_feedforward_layernorm", "post_ffw_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
    ("block_sparse_moe.gate", "ffn_gate_inp"),
];

fn values(tensor: &Tensor) -> Vec<f32> {
    tensor.bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// The tensors as a converter writes them; `post` is what it calls `post_attention_layernorm`.
fn converted(tensors: &Tensors, post: &str, plus_one: bool) -> Vec<Written> {
    let convert = |(name, tensor): &(String, Tensor)| {
        let name = NAMES.iter().fold(name.clone(), |name, (from, to)| name.replace(from, to));
        let name = name.replace("post_attention_layernorm", post);
        let added = if plus_one && name.ends_with("norm.weight") { 1.0 } else { 0.0 };
        let values = values(tensor).into_iter().map(|value| value + added).collect();
        Written { name, shape: tensor.shape.clone(), values }
    };
    tensors.iter().map(convert).collect()
}

/// Rows of queries and keys of heads of eight with rotary pairs side by side, as files of Llama's family have them.
fn pair_up(tensors: &mut [Written]) {
    for Written { values, .. } in
        tensors.iter_mut().filter(|one| ["attn_q.", "attn_k."].iter().any(|n| one.name.contains(n)))
    {
        let rows: Vec<Vec<f32>> = values.chunks(32).map(<[f32]>::to_vec).collect();
        let stored = |row: usize| row / 8 * 8 + row % 8 / 2 + row % 2 * 4;
        *values = (0..rows.len()).flat_map(|row| rows[stored(row)].clone()).collect();
    }
}

/// The logits of files `m….gguf` with these tensors.
fn computed(parts: &[Vec<u8>]) -> Vec<f32> {
    let dir = tempfile::tempdir().expect("a folder");
    for (part, bytes) in parts.iter().enumerate() {
        let name = format!("m-{:05}-of-{:05}.gguf", part + 1, parts.len());
        std::fs::write(dir.path().join(name), bytes).expect("written");
    }
    logits(&mut load(dir.path(), &options(LoadFormat::Auto, (0, 1))).expect("loads").0, &mut Solo)
}

fn expected(config: &str, tensors: &Tensors) -> Vec<f32> {
    let dir = folder(config);
    write(dir.path(), "model.safetensors", tensors);
    logits(&mut load(dir.path(), &options(LoadFormat::Auto, (0, 1))).expect("loads").0, &mut Solo)
}

/// What the first part lacks, such as the head, lies in another one.
#[test]
fn a_split_file_is_the_whole_one() {
    let all = tensors();
    let mut converted = converted(&all, "ffn_norm", false);
    pair_up(&mut converted);
    converted.sort_by_key(|tensor| tensor.name == "output.weight");
    let expected = expected(CONFIG, &all);
    for first in [0, 7] {
        let (some, rest): (Vec<_>, Vec<_>) = converted.iter().enumerate().partition(|(at, _)| *at < first);
        let of = |part: Vec<(usize, &Written)>, metadata: &[(String, u32, Vec<u8>)]| {
            file(metadata, &part.into_iter().map(|(_, tensor)| tensor).collect::<Vec<_>>())
        };
        assert_eq!(computed(&[of(some, &metadata("llama", &[])), of(rest, &[])]), expected, "{first}");
    }
}

#[test]
fn norms_around_the_parts_of_a_layer_are_told_apart() {
    let mut all = tensors();
    all.retain(|(name, _)| name != "lm_head.weight");
    let named = |name: &str, like: &str, by: f32| {
        let (_, found) = all.iter().find(|(name, _)| name.ends_with(like)).expect("a norm");
        let bytes = values(found).iter().flat_map(|value| (value * by).to_le_bytes()).collect();
        (name.to_owned(), Tensor { bytes, shape: found.shape.clone(), dtype: Dtype::F32 })
    };
    let more: Tensors = (0..2)
        .flat_map(|layer| ["pre", "post"].map(|place| (layer, place)))
        .map(|(layer, place)| {
            let name = format!("model.layers.{layer}.{place}_feedforward_layernorm.weight");
            named(&name, "1.input_layernorm.weight", if place == "pre" { 0.5 } else { -0.75 })
        })
        .collect();
    all.extend(more);
    let config = CONFIG.replace("LlamaForCausalLM", "Gemma2ForCausalLM").replace(
        "\"eos_token_id\"",
        "\"head_dim\": 8, \"query_pre_attn_scalar\": 8, \"sliding_window\": 64, \"eos_token_id\"",
    );
    let converted = converted(&all, "post_attention_norm", true);
    let of_file = computed(&[file(
        &metadata("gemma2", &[("attention.sliding_window", 64)]),
        &converted.iter().collect::<Vec<_>>(),
    )]);
    let of_class = expected(&config, &all);
    let worst = of_file.iter().zip(&of_class).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    // Norms lose some bits by the one that is added and taken away.
    assert!(worst < 1e-4, "{worst}");
}

/// All experts of a projection in one tensor, or one in each, as files had them first.
#[test]
fn experts_are_read() {
    let dir = checkpoint([Dtype::F32; 3]);
    let expected = logits(&mut load(dir.path(), &options(LoadFormat::Auto, (0, 1))).expect("loads").0, &mut Solo);
    let bytes = std::fs::read(dir.path().join("model.safetensors")).expect("weights");
    let stored = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
    let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        (name, Tensor { shape: view.shape().to_vec(), dtype: view.dtype(), bytes: view.data().to_vec() })
    };
    let all: Tensors = stored.tensors().into_iter().map(tensor).collect();
    assert!(MIXTURE.contains("\"num_local_experts\": 3"));
    let mut each = converted(&all, "ffn_norm", false);
    pair_up(&mut each);
    let pieces = [("w1", "ffn_gate"), ("w3", "ffn_up"), ("w2", "ffn_down")];
    for one in &mut each {
        for (expert, (from, to)) in (0..3).flat_map(|expert| pieces.map(|piece| (expert, piece))) {
            let from = format!("block_sparse_moe.experts.{expert}.{from}.");
            one.name = one.name.replace(&from, &format!("{to}.{expert}."));
        }
    }
    let mut together: Vec<Written> = Vec::new();
    for (layer, (_, name)) in (0..2).flat_map(|layer| pieces.map(|piece| (layer, piece))) {
        let of = |expert: usize| each.iter().find(|one| one.name == format!("blk.{layer}.{name}.{expert}.weight"));
        let experts: Vec<&Written> = (0..3).map(|expert| of(expert).expect("an expert")).collect();
        let shape = [&[3], &experts[0].shape[..]].concat();
        let values = experts.iter().flat_map(|one| one.values.clone()).collect();
        together.push(Written { name: format!("blk.{layer}.{name}_exps.weight"), shape, values });
    }
    let metadata = metadata("llama", &[("expert_count", 3), ("expert_used_count", 2)]);
    let is_whole = |one: &&Written| !one.name.starts_with("blk.") || one.name.split('.').count() == 4;
    let others = each.iter().filter(|one| is_whole(one));
    let stacked: Vec<&Written> = others.chain(&together).collect();
    assert_eq!(computed(&[file(&metadata, &stacked)]), expected);
    assert_eq!(computed(&[file(&metadata, &each.iter().collect::<Vec<_>>())]), expected);
}
