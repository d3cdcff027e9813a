//! The reference models: logits, log-probabilities and greedy tokens against recorded ones, for every way of running a step.
//!
//! They run on the CPU and, where there is one, on a GPU; `QUIRE_TEST_DEVICE` says `cpu` or `cuda` for one of the two.
//! Folders come from `QUIRE_ZOO`, else `../shared/zoo` beside the repository, else the fixtures in it.

mod checks;
mod engine;
mod folders;
#[path = "../../../../kernels/tests/conformance/gpu.rs"]
mod gpu;
mod group;
mod reference;

use checks::{bfloat16, float32, shipped, tensor_parallel, tensor_parallel_refused};
use kernels::ops::DType;

/// One test a reference model: exact in float32, close in 16 bits, and split over `$ranks`.
macro_rules! zoo {
    ($($test:ident: $folder:literal, $low:expr, ranks: $ranks:expr, refused: $refused:expr;)*) => {$(
        mod $test {
            use super::*;

            #[test]
            fn exact() {
                float32($folder);
            }

            #[test]
            fn close_in_16_bits() {
                $low.iter().for_each(|dtype| bfloat16($folder, *dtype));
            }

            #[test]
            fn split() {
                let (ranks, refused): (&[usize], &[(usize, &str)]) = (&$ranks, &$refused);
                ranks.iter().for_each(|ranks| tensor_parallel($folder, *ranks));
                refused.iter().for_each(|(ranks, what)| tensor_parallel_refused($folder, *ranks, what));
            }
        }
    )*};
}

const BF16: [DType; 1] = [DType::Bf16];
const BOTH: [DType; 2] = [DType::Bf16, DType::F16];

zoo! {
    cohere: "cohere", BOTH, ranks: [2], refused: [];
    gemma: "gemma", BF16, ranks: [2, 4], refused: [];
    gemma2: "gemma2", BF16, ranks: [2], refused: [];
    granite: "granite", BF16, ranks: [2], refused: [];
    internlm: "internlm", BOTH, ranks: [2], refused: [(4, "num_attention_heads")];
    llama: "llama", BOTH, ranks: [2, 4], refused: [(3, "num_attention_heads")];
    llama_rope_dynamic: "llama-rope-dynamic", BF16, ranks: [2], refused: [];
    llama_rope_linear: "llama-rope-linear", BF16, ranks: [], refused: [(2, "num_attention_heads"), (3, "intermediate_size")];
    llama_rope_llama3: "llama-rope-llama3", BF16, ranks: [2], refused: [];
    llama_rope_yarn: "llama-rope-yarn", BF16, ranks: [2], refused: [];
    gguf_f16: "llama-gguf-f16", BOTH, ranks: [2], refused: [];
    gguf_q4_0: "llama-gguf-q4_0", BOTH, ranks: [2], refused: [];
    gguf_q4_k: "llama-gguf-q4_k", BOTH, ranks: [2], refused: [];
    gguf_q5_k: "llama-gguf-q5_k", BOTH, ranks: [2], refused: [];
    gguf_q6_k: "llama-gguf-q6_k", BOTH, ranks: [2], refused: [];
    gguf_q8_0: "llama-gguf-q8_0", BOTH, ranks: [2], refused: [];
    mistral: "mistral", BF16, ranks: [2], refused: [];
    phi: "phi", BOTH, ranks: [2], refused: [];
    qwen2: "qwen2", BF16, ranks: [3], refused: [(2, "num_attention_heads")];
    qwen3: "qwen3", BF16, ranks: [2, 4], refused: [];
}

#[test]
fn the_model_that_ships() {
    shipped("model", "main");
}

#[test]
fn the_draft_that_ships() {
    shipped("draft", "draft");
}
