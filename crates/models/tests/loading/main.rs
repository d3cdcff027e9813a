//! Loading: what is read, what is refused and how, random weights, and the echo model.

mod cache_scales;
mod gguf;
mod moe;
mod pickle;
mod random_codes;
mod torch;

use std::path::Path;
use std::thread;

use collectives::{Collective, Solo, Threads};
use kernels::cpu::{CpuBackend, CpuOptions};
use kernels::ops::{Batch, DType, KvDType, Sequence};
use models::{
    ActivationRounding, ForwardError, LoadError, LoadFormat, LoadOptions, Memory, Model, NetworkHead, Placement,
    Progress, StateOptions,
};
use safetensors::{Dtype, View};

const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "vocab_size": 33, "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "eos_token_id": 2, "torch_dtype": "bfloat16"}"#;

fn options(format: LoadFormat, (rank, size): (usize, usize)) -> LoadOptions {
    LoadOptions {
        dtype: Some(DType::F32),
        kv_cache_dtype: None,
        states: StateOptions::default(),
        placement: Placement::rank(rank, size),
        head: NetworkHead::Stored,
        format,
        quantization: None,
        activations: ActivationRounding::None,
        seed: 1,
        max_len: None,
        block_size: 16,
        max_rows: 8,
        max_logit_rows: 8,
        threads: 2,
        lora: None,
    }
}

fn load(dir: &Path, options: &LoadOptions) -> Result<(Model, Progress), LoadError> {
    let mut last = Progress { bytes_done: 0, bytes_total: 0 };
    let backend = CpuBackend::new(CpuOptions { threads: 1, isa: None });
    let model = models::load(dir, options, Box::new(backend), &mut |progress| last = progress)?;
    Ok((model, last))
}

fn folder(config: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("config.json"), config).expect("config.json");
    dir
}

fn memory(num_blocks: usize) -> Memory {
    Memory { num_blocks, block_size: 4, max_sequences: 1 }
}

/// Runs five tokens and returns all logits.
fn logits(model: &mut Model, group: &mut dyn Collective) -> Vec<f32> {
    model.runner.allocate(memory(4));
    // Each group of layers has blocks of its own.
    let tables = &[vec![2, 1], vec![0, 3]][..model.runner.cache().groups.len()];
    let sequence = Sequence { first_row: 0, num_rows: 5, start: 0, tables, slot: 0 };
    let batch = Batch { tokens: &[1, 32, 3, 4, 5], positions: &[0, 1, 2, 3, 4], sequences: &[sequence] };
    model.runner.forward(batch, &[0, 1, 2, 3, 4], group).expect("a step").data.to_vec()
}

/// A tensor of a test checkpoint.
struct Tensor {
    shape: Vec<usize>,
    dtype: Dtype,
    bytes: Vec<u8>,
}

type Tensors = Vec<(String, Tensor)>;

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }
    fn shape(&self) -> &[usize] {
        &self.shape
    }
    fn data(&self) -> std::borrow::Cow<'_, [u8]> {
        (&self.bytes).into()
    }
    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Every tensor of the model that `CONFIG` describes, all values small and different.
fn tensors() -> Tensors {
    let mut all =
        vec![("model.embed_tokens.weight".to_owned(), vec![33, 32]), ("lm_head.weight".to_owned(), vec![33, 32])];
    all.push(("model.norm.weight".to_owned(), vec![32]));
    for layer in 0..2 {
        let mut add =
            |name: &str, shape: &[usize]| all.push((format!("model.layers.{layer}.{name}.weight"), shape.to_vec()));
        add("input_layernorm", &[32]);
        add("post_attention_layernorm", &[32]);
        add("self_attn.q_proj", &[32, 32]);
        add("self_attn.k_proj", &[16, 32]);
        add("self_attn.v_proj", &[16, 32]);
        add("self_attn.o_proj", &[32, 32]);
        add("mlp.gate_proj", &[48, 32]);
        add("mlp.up_proj", &[48, 32]);
        add("mlp.down_proj", &[32, 48]);
    }
    let tensor = |(index, (name, shape)): (usize, (String, Vec<usize>))| {
        let count = shape.iter().product::<usize>();
        let value = |i: usize| ((i * 7919 + index * 104_729) % 1009) as f32 / 1009.0 - 0.4;
        let bytes = (0..count).flat_map(|i| value(i).to_le_bytes()).collect();
        (name, Tensor { shape, dtype: Dtype::F32, bytes })
    };
    all.into_iter().enumerate().map(tensor).collect()
}

fn write(dir: &Path, file: &str, tensors: &[(String, Tensor)]) {
    let views = tensors.iter().map(|(name, tensor)| (name, tensor));
    safetensors::serialize_to_file(views, None, &dir.join(file)).expect("written");
}

fn refusal(result: Result<(Model, Progress), LoadError>) -> String {
    result.err().expect("a refusal").to_string()
}

#[test]
fn shards_are_the_single_file_in_parts() {
    let dir = folder(CONFIG);
    let all = tensors();
    write(dir.path(), "model.safetensors", &all);
    let (mut single, progress) = load(dir.path(), &options(LoadFormat::Auto, (0, 1))).expect("loads");
    let bytes: u64 = all.iter().map(|(_, tensor)| tensor.bytes.len() as u64).sum();
    assert_eq!(progress, Progress { bytes_done: bytes, bytes_total: bytes });
    assert!(single.weight_bytes >= bytes && single.runner.activation_bytes() > 0);
    // Two layers of K and V of two heads of 8 in f32.
    assert_eq!(single.runner.cache().place_bytes, 2 * 2 * 2 * 8 * 4);

    std::fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
    let map: Vec<String> =
        all.iter().enumerate().map(|(i, (name, _))| format!("{name:?}: \"part-{}.safetensors\"", i % 2)).collect();
    let index = format!("{{\"weight_map\": {{{}}}}}", map.join(","));
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).expect("written");
    let (even, odd): (Vec<_>, Vec<_>) = all.into_iter().enumerate().partition(|(i, _)| i % 2 == 0);
    for (part, tensors) in [even, odd].into_iter().enumerate() {
        let tensors: Vec<_> = tensors.into_iter().map(|(_, tensor)| tensor).collect();
        write(dir.path(), &format!("part-{part}.safetensors"), &tensors);
    }
    let (mut sharded, _) = load(dir.path(), &options(LoadFormat::Auto, (0, 1))).expect("loads");
    assert_eq!(logits(&mut single, &mut Solo), logits(&mut sharded, &mut Solo));
}

#[test]
fn a_rank_reads_its_slices_only() {
    let dir = folder(CONFIG);
    write(dir.path(), "model.safetensors", &tensors());
    let bytes = |rank, size| load(dir.path(), &options(LoadFormat::Auto, (rank, size))).expect("loads").1.bytes_total;
    let norms = 5 * 32 * 4;
    assert_eq!(bytes(0, 2) + bytes(1, 2), bytes(0, 1) + norms);
}

#[test]
fn faults_are_named() {
    let dir = folder(CONFIG);
    let attempt = || refusal(load(dir.path(), &options(LoadFormat::Auto, (0, 1))));
    assert!(attempt().contains("no .safetensors") && attempt().contains("--load-format dummy"));
    for damage in ["", "x", "PK\x03\x04", "\u{80}\x02}."] {
        std::fs::write(dir.path().join("pytorch_model.bin"), damage).expect("written");
        assert!(attempt().contains("pytorch_model.bin"), "{}", attempt());
    }

    let check = |change: &dyn Fn(&mut Tensors), words: &[&str]| {
        let mut all = tensors();
        change(&mut all);
        write(dir.path(), "model.safetensors", &all);
        let message = attempt();
        assert!(words.iter().all(|word| message.contains(word)), "{message} lacks one of {words:?}");
    };
    let message = refusal(load(dir.path(), &options(LoadFormat::Gguf, (0, 1))));
    assert!(message.contains("stored as pt") && message.contains("--load-format gguf"), "{message}");
    check(&|all| all[1].0 = "lm_heat.weight".to_owned(), &["\"lm_head.weight\"", "nearest name: \"lm_heat.weight\""]);
    check(&|all| all[5].1.shape = vec![16, 64], &["model.safetensors", "self_attn.q_proj", "[16, 64]", "[32, 32]"]);
    check(&|all| all[5].1.dtype = Dtype::I32, &["self_attn.q_proj", "I32", "BF16"]);

    for damage in [&b""[..], b"garbage", b"\xff\xff\xff\xff\xff\xff\xff\x7f{}", b"\x02\0\0\0\0\0\0\0{}trailing"] {
        std::fs::write(dir.path().join("model.safetensors"), damage).expect("written");
        assert!(attempt().contains("model.safetensors"), "{}", attempt());
    }
    std::fs::remove_file(dir.path().join("model.safetensors")).expect("removed");
    for (index, words) in [
        ("{}", "weight_map"),
        (r#"{"weight_map": {"a": "../x"}}"#, "../x"),
        (r#"{"weight_map": {"a": "x"}}"#, "x does"),
    ] {
        std::fs::write(dir.path().join("model.safetensors.index.json"), index).expect("written");
        assert!(attempt().contains(words), "{} lacks {words}", attempt());
    }
}

#[test]
fn impossible_options_are_refused() {
    let dir = folder(CONFIG);
    for (ranks, word) in [((2, 2), "rank"), ((0, 0), "size"), ((0, 3), "num_attention_heads = 4")] {
        let message = refusal(load(dir.path(), &options(LoadFormat::Dummy, ranks)));
        assert!(message.contains(word), "{message}");
    }
    let nothing = LoadOptions { max_rows: 0, ..options(LoadFormat::Dummy, (0, 1)) };
    assert!(refusal(load(dir.path(), &nothing)).contains("max_rows"));
}

#[test]
fn a_cache_is_of_what_is_computed_in_or_of_8_bits() {
    let dir = folder(CONFIG);
    let cached = |dtype, kv_cache_dtype| {
        let options = LoadOptions { dtype: Some(dtype), kv_cache_dtype, ..options(LoadFormat::Dummy, (0, 1)) };
        load(dir.path(), &options)
    };
    let place_bytes = |dtype, kv| cached(dtype, kv).expect("loads").0.runner.cache().place_bytes;
    let whole = place_bytes(DType::F32, None);
    assert_eq!(place_bytes(DType::F32, Some(DType::F32.into())), whole);
    assert_eq!(place_bytes(DType::F32, Some(KvDType::E4m3)) * 4, whole);
    assert_eq!(place_bytes(DType::Bf16, Some(KvDType::E4m3)) * 4, whole);
    let message = refusal(cached(DType::F32, Some(DType::F16.into())));
    assert!(message.contains("f16") && message.contains("--kv-cache-dtype"), "{message}");
}

#[test]
fn dummy_weights_are_one_model_however_split() {
    one_model_however_split(CONFIG);
}

#[test]
fn saved_random_weights_are_the_dummy_ones() {
    let (dir, saved) = (folder(CONFIG), tempfile::tempdir().unwrap());
    models::save_random(dir.path(), saved.path(), DType::Bf16, 1).expect("saves");
    let of = |dir: &Path, format| {
        let options = LoadOptions { seed: 1, ..options(format, (0, 1)) };
        logits(&mut load(dir, &options).expect("loads").0, &mut Solo)
    };
    assert_eq!(of(saved.path(), LoadFormat::Auto), of(dir.path(), LoadFormat::Dummy));
}

#[test]
fn so_they_are_with_latent_attention_and_experts_beside_shared_ones() {
    one_model_however_split(
        r#"{"architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 33, "hidden_size": 32,
    "intermediate_size": 48,
        "num_hidden_layers": 2, "num_attention_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 4, "v_head_dim": 12, "first_k_dense_replace": 1, "n_routed_experts": 8,
        "n_shared_experts": 1,
        "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1, "moe_intermediate_size": 8,
        "max_position_embeddings": 64}"#,
    );
}

#[test]
fn so_they_are_with_stacked_experts_and_biases() {
    one_model_however_split(
        r#"{"architectures": ["GptOssForCausalLM"], "vocab_size": 33, "hidden_size": 32, "intermediate_size": 8,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
        "num_experts_per_tok": 2, "sliding_window": 2, "max_position_embeddings": 64}"#,
    );
}

fn one_model_however_split(config: &str) {
    let dir = folder(config);
    let saved = tempfile::tempdir().unwrap();
    let bytes = models::save_random(dir.path(), saved.path(), DType::F32, 1).expect("saves");
    let (mut model, _) = load(saved.path(), &options(LoadFormat::Safetensors, (0, 1))).expect("loads what was saved");
    assert!(bytes > 0 && logits(&mut model, &mut Solo).iter().all(|x| x.is_finite() && x.abs() < 100.0));
    let again = models::save_random(dir.path(), saved.path(), DType::F32, 1).unwrap_err().to_string();
    assert!(again.contains("cannot write") && again.contains("model.safetensors"), "{again}");
    let whole = |seed| {
        let options = LoadOptions { seed, ..options(LoadFormat::Dummy, (0, 1)) };
        logits(&mut load(dir.path(), &options).expect("loads").0, &mut Solo)
    };
    let expected = whole(1);
    assert!(expected.iter().all(|x| x.is_finite() && x.abs() < 100.0));
    assert_eq!(expected, whole(1));
    assert_ne!(expected, whole(2));
    // A vocabulary of 33 does not divide by two: the second rank's part is padded.
    let rank = |mut group: Threads| {
        let dir = dir.path().to_owned();
        thread::spawn(move || {
            let mut model = load(&dir, &options(LoadFormat::Dummy, (group.rank(), 2))).expect("loads").0;
            logits(&mut model, &mut group)
        })
    };
    let ranks: Vec<_> = Threads::group(2).into_iter().map(rank).collect();
    for rank in ranks {
        let split = rank.join().expect("a rank");
        assert_eq!(split.len(), expected.len());
        assert!(split.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "{split:?}\n{expected:?}");
    }
}

#[test]
fn copied_blocks_hold_the_same() {
    let dir = folder(CONFIG);
    let mut model = load(dir.path(), &options(LoadFormat::Dummy, (0, 1))).expect("loads").0;
    logits(&mut model, &mut Solo);
    model.runner.copy_blocks(&[2, 1], &[3, 0]);
    let mut next = |blocks: &[u32]| {
        let sequence = Sequence { first_row: 0, num_rows: 1, start: 5, tables: &[blocks.to_vec()], slot: 0 };
        let batch = Batch { tokens: &[7], positions: &[5], sequences: &[sequence] };
        model.runner.forward(batch, &[0], &mut Solo).expect("a step").data.to_vec()
    };
    let original = next(&[2, 1]);
    assert_eq!(original, next(&[3, 0]));
}

#[test]
fn faulty_steps_are_errors() {
    let dir = folder(CONFIG);
    let mut model = load(dir.path(), &options(LoadFormat::Dummy, (0, 1))).expect("loads").0;
    let sequence = [Sequence { first_row: 0, num_rows: 1, start: 0, tables: &[vec![0]], slot: 0 }];
    let batch = |token: &'static [u32]| Batch { tokens: token, positions: &[0], sequences: &sequence };
    assert!(matches!(model.runner.forward(batch(&[1]), &[0], &mut Solo), Err(ForwardError::NoKv)));
    model.runner.allocate(memory(1));
    assert!(matches!(
        model.runner.forward(batch(&[33]), &[0], &mut Solo),
        Err(ForwardError::Token { token: 33, vocab: 33 })
    ));
    assert!(matches!(model.runner.forward(batch(&[1]), &[1], &mut Solo), Err(ForwardError::LogitRows { .. })));
    let mut group = Threads::group(2);
    assert!(matches!(model.runner.forward(batch(&[1]), &[0], &mut group[0]), Err(ForwardError::Group { .. })));
    assert_eq!(model.runner.forward(batch(&[1]), &[], &mut Solo).expect("a step").rows, 0);
}

#[test]
fn the_echo_model_needs_a_config_only() {
    let dir = folder(
        r#"{"architectures": ["EchoForCausalLM"], "vocab_size": 8192, "max_position_embeddings": 1024,
            "eos_token_id": 4}"#,
    );
    let (mut model, _) = load(dir.path(), &options(LoadFormat::Auto, (0, 1))).expect("loads");
    assert_eq!((model.spec.vocab_size, model.spec.context_len, &model.spec.eos_token_ids[..]), (8192, 1024, &[4][..]));
    assert_eq!((model.weight_bytes, model.runner.cache().place_bytes), (0, 0));
    model.runner.allocate(memory(10));
    model.runner.set_slots(1);
    model.runner.set_prompt(0, &[5, 6, 7]);
    let sequence = Sequence { first_row: 0, num_rows: 1, start: 3, tables: &[], slot: 0 };
    let batch = Batch { tokens: &[5], positions: &[3], sequences: &[sequence] };
    let logits = model.runner.forward(batch, &[0], &mut Solo).expect("a step");
    assert_eq!((logits.rows, logits.vocab, logits.row(0)[6], logits.row(0)[5]), (1, 8192, 0.0, f32::NEG_INFINITY));
}
