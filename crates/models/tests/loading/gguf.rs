//! GGUF files: each computes what the same weights under their class's own names do.

use super::moe::{MIXTURE, checkpoint};
use super::*;

/// Llama's names, but for those of norms.
macro_rules! names {
    ($($more:expr),* $(,)?) => {
        &[
            $($more,)*
            ("model.embed_tokens", "token_embd"),
            ("model.norm", "output_norm"),
            ("lm_head", "output"),
            ("model.layers", "blk"),
            ("input_layernorm", "attn_norm"),
            ("self_attn.q_proj", "attn_q"),
            ("self_attn.k_proj", "attn_k"),
            ("self_attn.v_proj", "attn_v"),
            ("self_attn.o_proj", "attn_output"),
            ("self_attn.q_norm", "attn_q_norm"),
            ("self_attn.k_norm", "attn_k_norm"),
            ("mlp.gate_proj", "ffn_gate"),
            ("mlp.up_proj", "ffn_up"),
            ("mlp.down_proj", "ffn_down"),
        ]
    };
}

// After the macro, which it uses.
mod gpt_oss;

/// A tensor of a GGUF file: f32, or MXFP4 where it has blocks.
struct Written {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
    blocks: Vec<u8>,
}

impl Written {
    fn new(name: String, shape: Vec<usize>, values: Vec<f32>) -> Self {
        Self { name, shape, values, blocks: Vec::new() }
    }

    fn kind(&self) -> u32 {
        if self.blocks.is_empty() { 0 } else { 39 }
    }

    fn bytes(&self) -> Vec<u8> {
        self.values.iter().flat_map(|value| value.to_le_bytes()).chain(self.blocks.iter().copied()).collect()
    }
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
    for tensor in tensors {
        out.extend(text(&tensor.name));
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        tensor.shape.iter().rev().for_each(|extent| out.extend((*extent as u64).to_le_bytes()));
        out.extend(tensor.kind().to_le_bytes());
        out.extend(offset.to_le_bytes());
        offset += (tensor.bytes().len() as u64).next_multiple_of(32);
    }
    out.resize(out.len().next_multiple_of(32), 0);
    for tensor in tensors {
        out.extend(tensor.bytes());
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
        Written::new(name, tensor.shape.clone(), values)
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
        together.push(Written::new(format!("blk.{layer}.{name}_exps.weight"), shape, values));
    }
    let metadata = metadata("llama", &[("expert_count", 3), ("expert_used_count", 2)]);
    let is_whole = |one: &&Written| !one.name.starts_with("blk.") || one.name.split('.').count() == 4;
    let others = each.iter().filter(|one| is_whole(one));
    let stacked: Vec<&Written> = others.chain(&together).collect();
    assert_eq!(computed(&[file(&metadata, &stacked)]), expected);
    assert_eq!(computed(&[file(&metadata, &each.iter().collect::<Vec<_>>())]), expected);
}

/// A class, its family of files, and how those differ.
struct Family {
    class: &'static str,
    name: &'static str,
    /// More of `config.json`.
    config: &'static str,
    sizes: &'static [(&'static str, u32)],
    numbers: &'static [(&'static str, f32)],
    /// The names of files for those of the class.
    names: &'static [(&'static str, &'static str)],
}

impl Family {
    fn config(&self) -> String {
        CONFIG
            .replace("LlamaForCausalLM", self.class)
            .replace("\"eos_token_id\"", &format!("{} \"eos_token_id\"", self.config))
    }

    /// A checkpoint of this class in which every number counts.
    fn checkpoint(&self) -> Tensors {
        let (dir, saved) = (folder(&self.config()), tempfile::tempdir().expect("a folder"));
        models::save_random(dir.path(), saved.path(), DType::F32, 1).expect(self.name);
        let bytes = std::fs::read(saved.path().join("model.safetensors")).expect("weights");
        let stored = safetensors::SafeTensors::deserialize(&bytes).expect("safetensors");
        let mut tensors: Tensors = stored.tensors().into_iter().enumerate().map(drawn).collect();
        tensors.sort_by(|(one, _), (other, _)| one.cmp(other));
        tensors
    }

    /// The same as a converter writes it: `Conv1D`s turned, experts in one tensor, matrices of one row as vectors.
    fn converted(&self, tensors: &Tensors) -> Vec<Written> {
        let mut written: Vec<Written> = tensors.iter().map(|(name, tensor)| self.renamed(name, tensor)).collect();
        let (experts, mut others): (Vec<Written>, Vec<Written>) =
            written.drain(..).partition(|one| one.name.contains("_exps."));
        for expert in experts {
            match others.iter_mut().find(|one| one.name == expert.name) {
                Some(all) => {
                    all.shape[0] += 1;
                    all.values.extend(expert.values);
                }
                None => others.push(Written { shape: [&[1], &expert.shape[..]].concat(), ..expert }),
            }
        }
        others
    }

    fn renamed(&self, name: &str, tensor: &Tensor) -> Written {
        let values = values(tensor);
        let stored = self.names.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
        let Tensor { shape, .. } = tensor;
        if ["c_attn.weight", "c_proj.weight", "c_fc.weight"]
            .iter()
            .any(|end| self.name == "gpt2" && name.ends_with(end))
        {
            let [inputs, outputs] = shape[..] else { panic!("a matrix") };
            let turned = (0..inputs * outputs).map(|at| values[at % inputs * outputs + at / inputs]).collect();
            return Written::new(stored, vec![outputs, inputs], turned);
        }
        if name.ends_with("query_key_value.weight") {
            return Written::new(stored, shape.clone(), self.ungrouped(&values, shape[1]));
        }
        let shape = if shape[0] == 1 { shape[1..].to_vec() } else { shape.clone() };
        Written::new(stored, shape, values)
    }

    /// Falcon's rows of queries, keys and values of heads of eight: from one key/value head after the other to all
    /// queries, all keys, all values.
    fn ungrouped(&self, values: &[f32], width: usize) -> Vec<f32> {
        let (_, kv) = self.sizes.iter().find(|(key, _)| *key == "attention.head_count_kv").expect("key/value heads");
        let (head, queries) = (8 * width, 4 / *kv as usize);
        let groups = || values.chunks((queries + 2) * head);
        let part = |heads: std::ops::Range<usize>| {
            groups().flat_map(|group| &group[heads.start * head..heads.end * head]).copied().collect::<Vec<f32>>()
        };
        [part(0..queries), part(queries..queries + 1), part(queries + 1..queries + 2)].concat()
    }

    fn metadata(&self) -> Vec<(String, u32, Vec<u8>)> {
        let mut all = metadata(self.name, self.sizes);
        let number = |(key, number): &(&str, f32)| (format!("{}.{key}", self.name), 6, number.to_le_bytes().to_vec());
        all.extend(self.numbers.iter().map(number));
        all
    }
}

/// A tensor of the same shape, of numbers of its own.
fn drawn((index, (name, view)): (usize, (String, safetensors::tensor::TensorView<'_>))) -> (String, Tensor) {
    let count: usize = view.shape().iter().product();
    let value = |i: usize| ((i * 7919 + index * 104_729 + name.len() * 31) % 1009) as f32 / 1009.0 - 0.4;
    let bytes = (0..count).flat_map(|i| value(i).to_le_bytes()).collect();
    (name.clone(), Tensor { shape: view.shape().to_vec(), dtype: Dtype::F32, bytes })
}

const EPSILON: (&str, f32) = ("attention.layer_norm_epsilon", 1e-5);

const NORM_BEFORE_MLP: (&str, &str) = ("post_attention_layernorm", "ffn_norm");

const FALCON: [(&str, &str); 10] = [
    ("transformer.word_embeddings", "token_embd"),
    ("transformer.ln_f", "output_norm"),
    ("transformer.h", "blk"),
    ("self_attention.query_key_value", "attn_qkv"),
    ("self_attention.dense", "attn_output"),
    ("mlp.dense_h_to_4h", "ffn_up"),
    ("mlp.dense_4h_to_h", "ffn_down"),
    ("input_layernorm", "attn_norm"),
    ("ln_attn", "attn_norm_2"),
    ("ln_mlp", "attn_norm"),
];

const FAMILIES: [Family; 12] = [
    Family {
        class: "Cohere2ForCausalLM",
        name: "cohere2",
        config: r#""logit_scale": 0.5, "tie_word_embeddings": true, "sliding_window": 3,"#,
        sizes: &[("attention.sliding_window", 3), ("rope.dimension_count", 8)],
        numbers: &[EPSILON, ("logit_scale", 0.5)],
        names: names![],
    },
    Family {
        class: "CohereForCausalLM",
        name: "command-r",
        config: r#""use_qk_norm": true, "logit_scale": 0.5, "tie_word_embeddings": true,"#,
        sizes: &[],
        numbers: &[EPSILON, ("logit_scale", 0.5)],
        names: names![],
    },
    // 7B, 11B, 40B.
    Family {
        class: "FalconForCausalLM",
        name: "falcon",
        config: r#""multi_query": true, "parallel_attn": true, "bias": false,"#,
        sizes: &[("attention.head_count_kv", 1)],
        numbers: &[EPSILON],
        names: &FALCON,
    },
    Family {
        class: "FalconForCausalLM",
        name: "falcon",
        config: r#""new_decoder_architecture": true, "num_kv_heads": 2, "num_ln_in_parallel_attn": 1, "bias": false,
            "tie_word_embeddings": false,"#,
        sizes: &[("attention.head_count_kv", 2)],
        numbers: &[EPSILON],
        names: &[
            FALCON[0],
            FALCON[1],
            FALCON[2],
            FALCON[3],
            FALCON[4],
            FALCON[5],
            FALCON[6],
            FALCON[7],
            ("lm_head", "output"),
        ],
    },
    Family {
        class: "FalconForCausalLM",
        name: "falcon",
        config: r#""new_decoder_architecture": true, "num_kv_heads": 2, "bias": false,"#,
        sizes: &[("attention.head_count_kv", 2)],
        numbers: &[EPSILON],
        names: &FALCON,
    },
    Family {
        class: "GPT2LMHeadModel",
        name: "gpt2",
        config: r#""num_key_value_heads": 4,"#,
        sizes: &[("attention.head_count_kv", 4)],
        numbers: &[EPSILON],
        names: &[
            ("transformer.wte", "token_embd"),
            ("transformer.wpe", "position_embd"),
            ("transformer.ln_f", "output_norm"),
            ("transformer.h", "blk"),
            ("ln_1", "attn_norm"),
            ("ln_2", "ffn_norm"),
            ("attn.c_attn", "attn_qkv"),
            ("attn.c_proj", "attn_output"),
            ("mlp.c_fc", "ffn_up"),
            ("mlp.c_proj", "ffn_down"),
        ],
    },
    Family {
        class: "Glm4ForCausalLM",
        name: "glm4",
        config: r#""attention_bias": true, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-6,"#,
        sizes: &[("rope.dimension_count", 4)],
        numbers: &[],
        names: names![
            ("post_self_attn_layernorm", "post_attention_norm"),
            NORM_BEFORE_MLP,
            ("post_mlp_layernorm", "post_ffw_norm"),
            ("mlp.gate_up_proj", "ffn_up"),
        ],
    },
    Family {
        class: "Olmo2ForCausalLM",
        name: "olmo2",
        config: r#""rms_norm_eps": 1e-6,"#,
        sizes: &[],
        numbers: &[],
        names: names![
            ("post_attention_layernorm", "post_attention_norm"),
            ("post_feedforward_layernorm", "post_ffw_norm"),
        ],
    },
    Family {
        class: "Phi3ForCausalLM",
        name: "phi3",
        config: r#""rms_norm_eps": 1e-6, "partial_rotary_factor": 0.75,"#,
        // No window is written so.
        sizes: &[("rope.dimension_count", 6), ("attention.sliding_window", 0)],
        numbers: &[],
        names: names![NORM_BEFORE_MLP, ("self_attn.qkv_proj", "attn_qkv"), ("mlp.gate_up_proj", "ffn_up")],
    },
    Family {
        class: "Qwen2MoeForCausalLM",
        name: "qwen2moe",
        config: r#""num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "rms_norm_eps": 1e-6,
            "shared_expert_intermediate_size": 40, "norm_topk_prob": false,"#,
        sizes: &[("expert_count", 3), ("expert_used_count", 2), ("expert_feed_forward_length", 24)],
        numbers: &[],
        names: names![
            NORM_BEFORE_MLP,
            ("mlp.shared_expert_gate", "ffn_gate_inp_shexp"),
            ("mlp.shared_expert.gate_proj", "ffn_gate_shexp"),
            ("mlp.shared_expert.up_proj", "ffn_up_shexp"),
            ("mlp.shared_expert.down_proj", "ffn_down_shexp"),
            ("mlp.gate.", "ffn_gate_inp."),
            ("mlp.experts.0.", "mlp.experts."),
            ("mlp.experts.1.", "mlp.experts."),
            ("mlp.experts.2.", "mlp.experts."),
            ("mlp.experts.gate_proj", "ffn_gate_exps"),
            ("mlp.experts.up_proj", "ffn_up_exps"),
            ("mlp.experts.down_proj", "ffn_down_exps"),
        ],
    },
    Family {
        class: "StableLmForCausalLM",
        name: "stablelm",
        config: r#""use_qkv_bias": true, "partial_rotary_factor": 0.25,"#,
        sizes: &[("rope.dimension_count", 2)],
        numbers: &[EPSILON],
        names: names![NORM_BEFORE_MLP],
    },
    Family {
        class: "Starcoder2ForCausalLM",
        name: "starcoder2",
        config: r#""tie_word_embeddings": true,"#,
        sizes: &[],
        numbers: &[EPSILON],
        names: names![NORM_BEFORE_MLP, ("mlp.c_fc", "ffn_up"), ("mlp.c_proj", "ffn_down")],
    },
];

#[test]
fn families_compute_what_their_classes_do() {
    for family in FAMILIES {
        let checkpoint = family.checkpoint();
        let converted = family.converted(&checkpoint);
        let of_file = computed(&[file(&family.metadata(), &converted.iter().collect::<Vec<_>>())]);
        assert!(of_file.iter().all(|x| x.is_finite()) && of_file[..33] != of_file[33..66], "{}", family.name);
        assert_eq!(of_file, expected(&family.config(), &checkpoint), "{}", family.name);
    }
}

/// What a family's class cannot be told from a file is refused, not left out.
#[test]
fn what_a_file_says_is_kept_or_refused() {
    let refused = |name: &str, more: &[(&str, u32)], tensor: &str, words: &[&str]| {
        let dir = tempfile::tempdir().expect("a folder");
        let tensor = Written::new(tensor.to_owned(), vec![8], vec![1.0; 8]);
        std::fs::write(dir.path().join("m.gguf"), file(&metadata(name, more), &[&tensor])).expect("written");
        let message = refusal(load(dir.path(), &options(LoadFormat::Auto, (0, 1))));
        assert!(words.iter().all(|word| message.contains(word)), "{name}: {message}");
    };
    refused("stablelm", &[], "blk.0.attn_q_norm.weight", &["norms of queries and keys", "safetensors"]);
    refused("olmo2", &[("attention.sliding_window", 8)], "output_norm.weight", &["sliding window", "safetensors"]);
    refused("qwen2", &[("rope.dimension_count", 4)], "output_norm.weight", &["rotary", "4 of 8"]);
    refused("glm4", &[("rope.dimension_sections", 4)], "output_norm.weight", &["rotary", "sections"]);
    for name in ["bloom", "mamba"] {
        refused(name, &[], "output_norm.weight", &[name, "phi3, qwen2, qwen2moe"]);
    }
}

/// A list of texts, and one of whole numbers, as metadata.
fn lists(texts: &[&str], kinds: &[i32]) -> [(String, u32, Vec<u8>); 2] {
    let list = |kind: u32, count: usize, items: Vec<u8>| {
        [&kind.to_le_bytes()[..], &(count as u64).to_le_bytes(), &items].concat()
    };
    let text = |text: &&str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let (all, numbers) = (texts.iter().flat_map(text).collect(), kinds.iter().flat_map(|kind| kind.to_le_bytes()));
    [
        ("tokenizer.ggml.tokens".to_owned(), 9, list(8, texts.len(), all)),
        ("tokenizer.ggml.token_type".to_owned(), 9, list(5, kinds.len(), numbers.collect())),
    ]
}

/// A part of gpt-oss's turn ends with the token that ends Phi's turn.
#[test]
fn tokens_that_end_a_turn_are_told_from_those_that_end_a_part_of_it() {
    let ends = |texts: &[&str], kinds: &[i32]| {
        let dir = tempfile::tempdir().expect("a folder");
        let metadata: Vec<_> = metadata("phi3", &[]).into_iter().chain(lists(texts, kinds)).collect();
        std::fs::write(dir.path().join("m.gguf"), file(&metadata, &[])).expect("written");
        let config = model_spec::ConfigFile::of_model(dir.path()).expect("metadata");
        assert!(config.is_gguf());
        config.get("eos_token_id").cloned().expect("ends")
    };
    // Three: a control token; one: words like any other.
    assert_eq!(ends(&["a", "<|end|>", "<|im_end|>"], &[1, 3, 1]), serde_json::json!([1]));
    assert_eq!(ends(&["<|call|>", "<|end|>", "<|return|>"], &[3, 3, 3]), serde_json::json!([0, 2]));
}
