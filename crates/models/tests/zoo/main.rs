//! The reference models: logits, log-probabilities and greedy tokens against recorded ones, for every way of running a
//! step.
//!
//! They run on the CPU and, where there is one, on a GPU; `QUIRE_TEST_DEVICE` says `cpu` or `cuda` for one of the two.
//! Folders come from `QUIRE_ZOO`, else `../shared/zoo` beside the repository, else the fixtures in it.

mod adapter_forms;
mod adapters;
mod bitsandbytes;
mod checks;
mod encoders;
mod engine;
mod expert_adapters;
mod folders;
#[path = "../../../../kernels/tests/conformance/gpu.rs"]
mod gpu;
mod merged_adapters;
mod networks;
mod own_tokens;
#[expect(dead_code, reason = "other tests use all of it")]
#[path = "../loading/pickle.rs"]
mod pickle;
mod pooled_table;
mod pooling;
mod reference;
mod relabelled;
mod table;
mod tensors;
mod vocabulary_adapters;

use checks::{
    Case, bfloat16, damaged_gguf, float32, shipped, states_in_16_bits, tensor_parallel, tensor_parallel_refused,
};
use engine::{Setup, load, load_model};
use kernels::ops::DType;

/// Tests of one reference model: exact in float32, close in 16 bits, and split over `$ranks`.
macro_rules! zoo {
    ($($test:ident: $case:expr, $low:expr, ranks: $ranks:expr, refused: $refused:expr;)*) => {$(
        mod $test {
            use super::*;

            #[test]
            fn exact() {
                float32(&case($case));
            }

            #[test]
            fn close_in_16_bits() {
                $low.iter().for_each(|dtype| bfloat16(&case($case), *dtype));
            }

            #[test]
            fn split() {
                let (ranks, refused): (&[usize], &[(usize, &str)]) = (&$ranks, &$refused);
                ranks.iter().for_each(|ranks| tensor_parallel(&case($case), *ranks));
                refused.iter().for_each(|(ranks, what)| tensor_parallel_refused(&case($case), *ranks, what));
            }
        }
    )*

        /// What is checked above.
        fn checked() -> Vec<Checked> {
            vec![$(Checked { folder: case($case).folder, low: $low.to_vec(), ranks: $ranks.to_vec() }),*]
        }
    };
}

/// A row of the table, for `docs/models.md`.
struct Checked {
    folder: &'static str,
    low: Vec<DType>,
    ranks: Vec<usize>,
}

/// A row of the table names a folder, or says more.
fn case(from: impl Into<Case>) -> Case {
    from.into()
}

impl From<&'static str> for Case {
    fn from(folder: &'static str) -> Self {
        Self::of(folder)
    }
}

const BF16: [DType; 1] = [DType::Bf16];
const BOTH: [DType; 2] = [DType::Bf16, DType::F16];
/// Sizes that three heads and an MLP of no multiple of three refuse.
const THREE_HEADS: [(usize, &str); 2] = [(2, "num_attention_heads"), (3, "intermediate_size")];
/// The short frequencies, for prompts that stay below the length of the training, and the long ones.
const SHORT: Case = Case { folder: "phi3-longrope", prompts: 0..3, max_len: Some(64) };
const LONG: Case = Case { folder: "phi3-longrope", prompts: 3..4, max_len: None };

zoo! {
    arcee: "arcee", BF16, ranks: [2], refused: [];
    awq: "llama-awq-int4-g128", BOTH, ranks: [2, 4], refused: [];
    baichuan_13b: "baichuan-13b", BF16, ranks: [], refused: THREE_HEADS;
    bnb_nf4: "llama-bnb-nf4", BF16, ranks: [2, 4], refused: [];
    bnb_nf4_double: "llama-bnb-nf4-double", BF16, ranks: [2, 4], refused: [];
    baichuan_7b: "baichuan-7b", BF16, ranks: [], refused: THREE_HEADS;
    bloom: "bloom", BOTH, ranks: [3], refused: [(2, "num_attention_heads")];
    chatglm3: "chatglm3", BOTH, ranks: [2, 4], refused: [];
    cohere: "cohere", BOTH, ranks: [2], refused: [];
    cohere2: "cohere2", BF16, ranks: [2, 4], refused: [];
    cohere_plus: "cohere-plus", BOTH, ranks: [], refused: THREE_HEADS;
    cwm: "cwm", BF16, ranks: [2], refused: [];
    dbrx: "dbrx", BF16, ranks: [2, 4], refused: [];
    deepseek_v2: "deepseek-v2", BF16, ranks: [], refused: THREE_HEADS;
    deepseek_v2_lite: "deepseek-v2-lite", BF16, ranks: [2, 4], refused: [];
    deepseek_v3: "deepseek-v3", BF16, ranks: [2, 4], refused: [];
    dots1: "dots1", BF16, ranks: [2], refused: [];
    ernie4_5: "ernie4_5", BF16, ranks: [2], refused: [];
    ernie4_5_moe: "ernie4_5_moe", BF16, ranks: [2], refused: [];
    exaone4: "exaone4", BF16, ranks: [2, 4], refused: [];
    falcon_11b: "falcon-11b", BF16, ranks: [2], refused: [];
    falcon_40b: "falcon-40b", BF16, ranks: [2, 4], refused: [];
    falcon_40b_alibi: "falcon-40b-alibi", BF16, ranks: [2, 4], refused: [];
    falcon_7b: "falcon-7b", BF16, ranks: [3], refused: [(2, "num_attention_heads")];
    falcon_7b_alibi: "falcon-7b-alibi", BF16, ranks: [2], refused: [];
    falcon_rw: "falcon-rw", BF16, ranks: [2], refused: [(4, "num_attention_heads")];
    gemma: "gemma", BF16, ranks: [2, 4], refused: [];
    gemma2: "gemma2", BF16, ranks: [2], refused: [];
    gemma3: "gemma3", BF16, ranks: [2, 4], refused: [];
    glm4: "glm4", BF16, ranks: [2, 4], refused: [];
    glm4_moe: "glm4_moe", BF16, ranks: [2], refused: [];
    gpt2: "gpt2", BOTH, ranks: [2], refused: [];
    gpt_bigcode: "gpt-bigcode", BF16, ranks: [], refused: THREE_HEADS;
    gpt_neox: "gpt-neox", BOTH, ranks: [3], refused: [(2, "num_attention_heads")];
    gpt_neox_sequential: "gpt-neox-sequential", BOTH, ranks: [2], refused: [];
    gpt_oss: "gpt-oss", BF16, ranks: [2, 4], refused: [];
    gptq_made: "gptq", BOTH, ranks: [2], refused: [];
    gptq_int4: "llama-gptq-int4-g128", BOTH, ranks: [2, 4], refused: [];
    gptq_int4_asym: "llama-gptq-int4-g32-asym", BOTH, ranks: [2, 4], refused: [];
    gptq_int4_desc_act: "llama-gptq-int4-g128-desc-act", BOTH, ranks: [2, 4], refused: [];
    gptq_int8: "llama-gptq-int8", BOTH, ranks: [2, 4], refused: [];
    gptj: "gptj", BOTH, ranks: [], refused: THREE_HEADS;
    gpt_oss_mxfp4: "gpt-oss-mxfp4", BF16, ranks: [2, 4], refused: [];
    granite: "granite", BF16, ranks: [2], refused: [];
    granite_moe: "granite-moe", BF16, ranks: [2, 4], refused: [];
    granite_moe_shared: "granite_moe_shared", BF16, ranks: [2], refused: [];
    internlm: "internlm", BOTH, ranks: [2], refused: [(4, "num_attention_heads")];
    internlm2: "internlm2", BF16, ranks: [2, 4], refused: [];
    llama: "llama", BOTH, ranks: [2, 4], refused: [(3, "num_attention_heads")];
    llama_rope_dynamic: "llama-rope-dynamic", BF16, ranks: [2], refused: [];
    llama_rope_linear: "llama-rope-linear", BF16, ranks: [], refused: THREE_HEADS;
    llama_rope_llama3: "llama-rope-llama3", BF16, ranks: [2], refused: [];
    llama_rope_yarn: "llama-rope-yarn", BF16, ranks: [2], refused: [];
    fp8_block: "llama-fp8-block", BF16, ranks: [2, 4], refused: [];
    fp8_dynamic: "llama-fp8-dynamic", BF16, ranks: [2, 4], refused: [];
    fp8_native: "llama-fp8-native", BF16, ranks: [2, 4], refused: [];
    fp8_static: "llama-fp8-static", BF16, ranks: [2, 4], refused: [];
    gguf_f16: "llama-gguf-f16", BOTH, ranks: [2], refused: [];
    gguf_q4_0: "llama-gguf-q4_0", BOTH, ranks: [2], refused: [];
    gguf_q4_k: "llama-gguf-q4_k", BOTH, ranks: [2], refused: [];
    gguf_q5_k: "llama-gguf-q5_k", BOTH, ranks: [2], refused: [];
    gguf_q6_k: "llama-gguf-q6_k", BOTH, ranks: [2], refused: [];
    gguf_q8_0: "llama-gguf-q8_0", BOTH, ranks: [2], refused: [];
    minicpm: "minicpm", BF16, ranks: [2], refused: [];
    mamba: "mamba", BF16, ranks: [2, 4], refused: [(3, "intermediate_size")];
    mamba2: "mamba2", BF16, ranks: [2], refused: [(4, "n_groups")];
    mistral: "mistral", BF16, ranks: [2], refused: [];
    mixtral: "mixtral", BF16, ranks: [2, 4], refused: [(3, "num_attention_heads")];
    mpt: "mpt", BF16, ranks: [3], refused: [(2, "num_attention_heads")];
    mpt_clip: "mpt-clip", BF16, ranks: [2, 4], refused: [];
    nemotron: "nemotron", BF16, ranks: [2, 4], refused: [];
    olmo: "olmo", BF16, ranks: [2], refused: [];
    olmo2: "olmo2", BF16, ranks: [2], refused: [];
    olmo3: "olmo3", BF16, ranks: [2], refused: [];
    olmoe: "olmoe", BF16, ranks: [2], refused: [];
    opt: "opt", BOTH, ranks: [], refused: THREE_HEADS;
    opt_350m: "opt-350m", BOTH, ranks: [3], refused: [(2, "num_attention_heads")];
    phi: "phi", BOTH, ranks: [2], refused: [];
    phi3_long: LONG, BF16, ranks: [2], refused: [];
    phi3_short: SHORT, BF16, ranks: [2], refused: [];
    phi4_mini: "phi4-mini", BF16, ranks: [], refused: THREE_HEADS;
    qwen1: "qwen1", BF16, ranks: [], refused: THREE_HEADS;
    qwen2: "qwen2", BF16, ranks: [3], refused: [(2, "num_attention_heads")];
    qwen2_moe: "qwen2-moe", BF16, ranks: [2, 4], refused: [];
    qwen3: "qwen3", BF16, ranks: [2, 4], refused: [];
    qwen3_moe: "qwen3-moe", BF16, ranks: [2, 4], refused: [];
    qwen3_next: "qwen3-next", BF16, ranks: [2], refused: [(4, "linear_num_key_heads")];
    rope_dynamic: "rope_dynamic", BF16, ranks: [2], refused: [];
    rope_linear: "rope_linear", BF16, ranks: [2], refused: [];
    rope_yarn: "rope_yarn", BF16, ranks: [2], refused: [];
    smollm3: "smollm3", BF16, ranks: [2], refused: [];
    spec_draft: "spec-draft", BF16, ranks: [3], refused: [(2, "num_attention_heads")];
    spec_target: "spec-target", BF16, ranks: [3], refused: [(2, "num_attention_heads")];
    squeezellm: "llama-squeezellm-int4", BF16, ranks: [2, 4], refused: [];
    w4a16: "llama-w4a16-g128", BF16, ranks: [2, 4], refused: [];
    w8a8_int8_dynamic: "llama-w8a8-int8-dynamic", BF16, ranks: [2, 4], refused: [];
    w8a8_int8_static: "llama-w8a8-int8-static", BF16, ranks: [2, 4], refused: [];
    stablelm: "stablelm", BF16, ranks: [2], refused: [];
    stablelm_2_12b: "stablelm-2-12b", BF16, ranks: [2], refused: [];
    starcoder2: "starcoder2", BF16, ranks: [2], refused: [];
}

/// What a token takes in each group of layers, `(window, bytes)`, and in the blocks, and a sequence in states; in
/// float32.
fn keeps(folder: &str, groups: &[(Option<usize>, u64)], place_bytes: u64, state_bytes: u64) {
    let Some(dir) = folders::zoo(folder) else { return };
    let cache = load(&dir, Setup::new(DType::F32)).expect("a model").cache();
    let found: Vec<_> = cache.groups.iter().map(|group| (group.window, group.bytes_per_token)).collect();
    assert_eq!(
        (found.as_slice(), cache.place_bytes, cache.state_bytes),
        (groups, place_bytes, state_bytes),
        "{folder}"
    );
}

#[test]
fn caches_hold_what_layers_look_at() {
    // Two key/value heads of 32, keys and values: 512 bytes a layer.
    keeps("llama", &[(None, 2 * 512)], 2 * 512, 0);
    keeps("mistral", &[(Some(16), 3 * 512)], 3 * 512, 0);
    keeps("gemma2", &[(None, 2 * 512), (Some(16), 2 * 512)], 2 * 512, 0);
    keeps("gpt-oss", &[(None, 2 * 512), (Some(16), 2 * 512)], 2 * 512, 0);
    // One layer keeps everything and three a window: groups of one, over one layer's memory.
    keeps("cohere2", &[(None, 512), (Some(16), 512), (Some(16), 512), (Some(16), 512)], 512, 0);
    keeps("gemma3", &[(None, 256), (Some(16), 256), (Some(16), 256), (Some(16), 256)], 256, 0);
    // Three layers of 128 channels: three inputs and 16 values each.
    keeps("mamba", &[(None, 0)], 0, 3 * 128 * (3 + 16) * 4);
    // Three layers: three inputs of 192 channels, and 128 channels of 16 values.
    keeps("mamba2", &[(None, 0)], 0, 3 * (3 * 192 + 128 * 16) * 4);
    // Two layers of each kind: three inputs of 128 channels, and four heads of 16 by 16.
    keeps("qwen3-next", &[(None, 2 * 512)], 2 * 512, 2 * (3 * 128 + 4 * 16 * 16) * 4);
}

#[test]
fn states_kept_in_16_bits() {
    for kept in [DType::Bf16, DType::F16] {
        states_in_16_bits("mamba", kept, 3 * 128 * (3 + 16) * 2);
        states_in_16_bits("mamba2", kept, 3 * (3 * 192 + 128 * 16) * 2);
        states_in_16_bits("qwen3-next", kept, 2 * (3 * 128 + 4 * 16 * 16) * 2);
    }
}

/// A GGUF file with bytes changed in its header, or cut off: a model or an error, never a panic.
#[test]
fn damaged_gguf_files() {
    damaged_gguf("llama-gguf-q4_k");
}

#[test]
fn latent_caches_hold_one_vector_a_token() {
    let Some(dir) = folders::zoo("deepseek-v3") else { return };
    // Three layers of 32 latent and 16 rotated elements; every rank holds all of them.
    for rank in [(0, 1), (1, 2)] {
        for (dtype, size) in [(DType::F32, 4), (DType::Bf16, 2)] {
            let setup = Setup { rank, ..Setup::new(dtype) };
            let model = load(&dir, setup).expect("a model");
            assert_eq!(model.cache().place_bytes, 3 * (32 + 16) * size, "{dtype:?}");
        }
    }
}

#[test]
fn the_model_that_ships() {
    shipped("model", "main");
}

#[test]
fn the_draft_that_ships() {
    shipped("draft", "draft");
}

/// Weights stay as they are stored: what a model takes is what its file holds, but for a scale row a row and for norms,
/// which are in f32.
#[test]
fn weights_of_8_bits_take_a_byte() {
    for folder in ["llama-fp8-block", "llama-fp8-dynamic", "llama-fp8-native", "llama-fp8-static"] {
        let Some(dir) = folders::zoo(folder) else { return };
        let file = std::fs::metadata(dir.join("model.safetensors")).expect("weights").len();
        let model = load_model(&dir, Setup::new(DType::Bf16)).expect("a model");
        let bytes = model.weight_bytes;
        assert!(bytes.abs_diff(file) < file / 40, "{folder}: {bytes} bytes of a file of {file}");
        // Embeddings, which are the head, have 16 bits.
        assert!(bytes > model.num_weights && bytes < model.num_weights * 3 / 2, "{folder}: {bytes}");
    }
}
