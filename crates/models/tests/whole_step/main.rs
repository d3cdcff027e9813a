//! Decode steps of one row that one kernel does as a whole give what their recorded kernels give, to the rounding of
//! 16-bit types, for as long as a sequence grows. On a GPU alone: `QUIRE_TEST_DEVICE=cuda` asks for one. Folders come
//! from `QUIRE_ZOO`, else `../shared/zoo` beside the repository, else the fixtures in it.

mod draws;
#[path = "../zoo/folders.rs"]
#[expect(dead_code, reason = "what ships is for other tests")]
mod folders;
#[path = "../../../../kernels/tests/conformance/gpu.rs"]
mod gpu;
mod sequence;

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use kernels::ops::DType;
use kernels_cuda::{CudaOptions, GemmTactics, WholeSteps};
use models::{ActivationRounding, LoadFormat, LoadOptions, Memory, NetworkHead, Placement, Runner, StateOptions};
use sequence::{Decoded, Sequence};

const BLOCK_SIZE: usize = 16;
const NUM_BLOCKS: usize = 512;
const MAX_ROWS: usize = 512;

/// A model that records its steps of one row.
fn load(dir: &Path, format: LoadFormat, whole_steps: WholeSteps) -> Box<dyn Runner> {
    let options = LoadOptions {
        dtype: Some(DType::Bf16),
        kv_cache_dtype: None,
        states: StateOptions::default(),
        placement: Placement::WHOLE,
        head: NetworkHead::Stored,
        format,
        quantization: None,
        activations: ActivationRounding::None,
        seed: 0,
        max_len: None,
        block_size: 16,
        max_rows: MAX_ROWS,
        max_logit_rows: 4,
        threads: 2,
        lora: None,
    };
    // Prompts are done alike each time: the fastest way of a product is another one once it has been measured.
    let backend = gpu::open(&CudaOptions { whole_steps, gemms: GemmTactics::Library, ..gpu::options() });
    let mut model = models::load(dir, &options, backend, &mut |_| {}).expect("a model").runner;
    model.set_capture_sizes(&[1, 2]);
    model.allocate(Memory { num_blocks: NUM_BLOCKS, block_size: BLOCK_SIZE, max_sequences: 2 });
    model.set_slots(2);
    model
}

/// The same numbers as a share of the largest.
fn check_close(what: &str, got: &[f32], want: &[f32], share: f32) {
    let most = want.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    for (index, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (got - want).abs();
        assert!(error <= share * most, "{what}: logit {index} is {got}, want {want}, of {most} at most");
    }
}

/// Runs a greedy sequence by whole steps, and the same tokens by recorded kernels.
fn compare(dir: &Path, format: LoadFormat, prompts: &[usize], steps: usize) {
    let [mut whole, mut kernels] = [WholeSteps::Always, WholeSteps::Never].map(|steps| load(dir, format, steps));
    for (index, &prompt) in prompts.iter().enumerate() {
        let what = format!("{}, {prompt} tokens and more", dir.display());
        let mut sequence = Sequence::new(prompt, index);
        let got = sequence.decode(&mut *whole, steps, None);
        let tokens: Vec<u32> = got.iter().map(|step| step.token).collect();
        let want = sequence.decode(&mut *kernels, steps, Some(&tokens));
        for (step, (got, want)) in got.iter().zip(&want).enumerate() {
            check_close(&format!("{what}, step {step}"), &got.logits, &want.logits, 0.03);
            let Decoded { token, logits, .. } = got;
            assert!(
                logits.iter().all(|logit| *logit <= logits[*token as usize]),
                "{what}: token {token} of step {step}"
            );
        }
        let ran = |steps: &[Decoded], kernel: &str| {
            steps.iter().skip(1).all(|step| step.ran.iter().any(|name| name.contains(kernel)))
        };
        assert!(ran(&got, "whole_step"), "{what}: {:?}", got[1].ran);
        assert!(ran(&want, "cuda_graph"), "{what}: {:?}", want[1].ran);
        // Again, and nothing is left over from before.
        let again = sequence.decode(&mut *whole, steps, None);
        for (step, (got, again)) in got.iter().zip(&again).enumerate() {
            assert_eq!((got.token, &got.logits), (again.token, &again.logits), "{what}, step {step} again");
        }
        assert_eq!(sequence.decode_ahead(&mut *whole, steps), tokens, "{what}, submitted ahead");
    }
}

/// Runs a greedy sequence by whatever is measured to be faster, while the sequence is there, and the same tokens by
/// recorded kernels.
fn compare_chosen(dir: &Path, format: LoadFormat, prompt: usize, steps: usize) {
    let [mut chosen, mut kernels] = [WholeSteps::Faster, WholeSteps::Never].map(|steps| load(dir, format, steps));
    let mut sequence = Sequence::new(prompt, 3);
    let got = sequence.decode(&mut *chosen, steps, None);
    let tokens: Vec<u32> = got.iter().map(|step| step.token).collect();
    let want = sequence.decode(&mut *kernels, steps, Some(&tokens));
    for (step, (got, want)) in got.iter().zip(&want).enumerate() {
        check_close(&format!("{}, step {step}", dir.display()), &got.logits, &want.logits, 0.03);
    }
    let ran = |kernel: &str| got.iter().skip(1).all(|step| step.ran.iter().any(|name| name.contains(kernel)));
    assert!(ran("whole_step") || ran("cuda_graph"), "{:?}", got[1].ran);
}

/// Runs `check` where a GPU is to be tested, one at a time: a capture is lost where another backend of the process,
/// which has the same context, waits for all of the device.
fn on_a_gpu(check: impl FnOnce()) {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let only = std::env::var("QUIRE_TEST_DEVICE").ok();
    if only.as_deref() != Some("cpu") && gpu::backend(only.is_some()).is_some() {
        check();
    }
}

fn compare_zoo(name: &str, prompts: &[usize], steps: usize) {
    on_a_gpu(|| {
        if let Some(dir) = folders::zoo(name) {
            compare(&dir, LoadFormat::Auto, prompts, steps);
        }
    });
}

/// A shape with random weights.
fn with_shape(config: &str, check: impl FnOnce(&Path)) {
    on_a_gpu(|| {
        let dir = tempfile::tempdir().expect("a folder");
        std::fs::write(dir.path().join("config.json"), config).expect("a file");
        check(dir.path());
    });
}

fn compare_shape(config: &str, prompts: &[usize], steps: usize) {
    with_shape(config, |dir| compare(dir, LoadFormat::Dummy, prompts, steps));
}

#[test]
fn llama() {
    compare_zoo("llama", &[2, 13, 30], 40);
}

#[test]
fn llama_with_a_scaled_rotation() {
    compare_zoo("llama-rope-yarn", &[5], 30);
}

#[test]
fn qwen2_with_biases() {
    compare_zoo("qwen2", &[3, 15], 30);
}

#[test]
fn qwen3_with_norms_of_heads() {
    compare_zoo("qwen3", &[3, 15], 30);
}

#[test]
fn mistral_with_a_window() {
    compare_zoo("mistral", &[3, 40], 30);
}

#[test]
fn phi4_mini_with_a_part_that_rotates() {
    compare_zoo("phi4-mini", &[7], 20);
}

#[test]
fn what_is_faster_is_found_beside_a_sequence() {
    on_a_gpu(|| {
        if let Some(dir) = folders::zoo("qwen3") {
            compare_chosen(&dir, LoadFormat::Auto, 15, 30);
        }
    });
}

/// Two layers of Qwen3 0.6B, and fewer tokens.
const QWEN3: &str = r#"{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 4000,
    "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0}"#;

#[test]
fn heads_of_128_in_long_contexts() {
    compare_shape(QWEN3, &[250, 511, 4090, 7], 20);
}

#[test]
fn eight_heads_a_key_head_and_rows_in_parts() {
    compare_shape(
        r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 3000, "hidden_size": 1032,
            "intermediate_size": 8200, "num_hidden_layers": 2, "num_attention_heads": 16, "num_key_value_heads": 2,
            "head_dim": 64,
            "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-05, "rope_theta": 10000.0}"#,
        &[2000, 90],
        20,
    );
}
