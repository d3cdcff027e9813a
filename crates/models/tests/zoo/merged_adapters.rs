//! Adapters on models whose files name and stack linear layers in other ways than Llama's: what an adapter gives is
//! what the model gives that it was merged into.

use std::path::Path;

use collectives::Solo;
use kernels::ops::DType;
use serde_json::json;

use crate::adapters::{ROOM, load, put, run};
use crate::engine::{self, Outcome, PLAIN, Script, Setup};
use crate::tensors::{Tensor, Tensors, read, write};
use crate::{folders, reference};

pub const RANK: usize = 3;
pub const ALPHA: f32 = 6.0;

/// Numbers between -0.1 and 0.1 that depend on `seed` alone.
pub fn numbers(seed: usize, count: usize) -> Vec<f32> {
    let number = |index: usize| {
        let mixed = (seed * 7919 + index + 1).wrapping_mul(2_654_435_761) >> 8;
        (mixed % 2001) as f32 / 10_000.0 - 0.1
    };
    (0..count).map(number).collect()
}

/// Whether a tensor is the matrix of a linear layer inside the model's layers, experts and routers among them. The
/// second halves of latent attention take no adapters.
fn is_adapted(name: &str, tensor: &Tensor) -> bool {
    let inside = name.split('.').any(|part| part.parse::<usize>().is_ok());
    tensor.shape.len() == 2 && inside && !["norm", "kv_b_proj"].iter().any(|word| name.contains(word))
}

/// How a model's files are to be read.
pub struct Base {
    pub folder: &'static str,
    /// What PEFT has before the files' names.
    prefix: &'static str,
    /// Matrices are stored as `[inputs, outputs]`, as GPT-2's.
    transposed: bool,
}

pub const fn base(folder: &'static str) -> Base {
    Base { folder, prefix: "", transposed: false }
}

impl Base {
    /// Writes an adapter of all linear layers, and the model that it is merged into. Numbers follow from `salt`.
    pub fn write(&self, dir: &Path, adapter: &Path, merged: &Path, salt: usize) {
        let (mut tensors, mut deltas) = (read(&dir.join("model.safetensors")), Tensors::new());
        for (seed, (name, tensor)) in tensors.iter_mut().enumerate().filter(|(_, (name, one))| is_adapted(name, one)) {
            let [rows, columns] = tensor.shape[..] else { unreachable!("a matrix") };
            let [outputs, inputs] = if self.transposed { [columns, rows] } else { [rows, columns] };
            let (a, b) = (numbers(salt + seed * 2, RANK * inputs), numbers(salt + seed * 2 + 1, outputs * RANK));
            for (at, value) in tensor.values.iter_mut().enumerate() {
                let [row, column] = [at / columns, at % columns];
                let [output, input] = if self.transposed { [column, row] } else { [row, column] };
                let delta: f32 = (0..RANK).map(|rank| b[output * RANK + rank] * a[rank * inputs + input]).sum();
                *value += ALPHA / RANK as f32 * delta;
            }
            let module = format!("base_model.model.{}{}", self.prefix, name.trim_end_matches(".weight"));
            deltas.insert(format!("{module}.lora_A.weight"), Tensor { shape: vec![RANK, inputs], values: a });
            deltas.insert(format!("{module}.lora_B.weight"), Tensor { shape: vec![outputs, RANK], values: b });
        }
        assert!(deltas.len() >= 4, "{}: {} matrices", self.folder, deltas.len());
        let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "target_modules": "all-linear",
            "fan_in_fan_out": self.transposed});
        std::fs::write(adapter.join("adapter_config.json"), config.to_string()).expect("written");
        write(&deltas, &adapter.join("adapter_model.safetensors"));
        std::fs::copy(dir.join("config.json"), merged.join("config.json")).expect("copied");
        write(&tensors, &merged.join("model.safetensors"));
    }

    /// The logits of a prompt are the merged model's up to the order of sums, and others than the base's.
    fn check(&self) {
        let Some(dir) = folders::zoo(self.folder) else { return };
        let [adapter, merged] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        self.write(&dir, adapter.path(), merged.path(), 0);
        let prompt = reference::read(&dir).prompts.remove(1).ids;
        let scripts = [Script { prompt, forced: None, steps: 1 }];
        let setup = Setup::new(DType::F32);
        let mut with = load(&dir, setup, ROOM);
        put(&mut *with, 0, adapter.path());
        let with = run(&mut *with, &mut Solo, &scripts, &[Some(0)], PLAIN);
        let alone = |dir: &Path| {
            let mut model = engine::load(dir, setup).expect("a model");
            engine::run(&mut *model, &mut Solo, &scripts, PLAIN)
        };
        let (merged, plain) = (alone(merged.path()), alone(&dir));
        let [near, far] = [&merged, &plain].map(|other| distance(&with[0], &other[0]));
        assert!(near < 2e-3 && far > 20.0 * near, "{}: {near} from merged, {far} from the base", self.folder);
    }
}

/// The largest difference of two models' logits, as a part of the largest logit.
pub fn distance(one: &Outcome, other: &Outcome) -> f32 {
    let pairs = || one.logits.iter().flatten().zip(other.logits.iter().flatten());
    let largest = pairs().map(|(x, _)| x.abs()).fold(0.0, f32::max);
    pairs().map(|(x, y)| (x - y).abs()).fold(0.0, f32::max) / largest
}

/// One matrix for queries, keys and values, in each order that there is; gate and up in one or two; transposed ones.
#[test]
fn an_adapter_gives_what_the_merged_model_gives() {
    let plain = ["chatglm3", "falcon-7b", "falcon-40b", "gpt-bigcode", "gpt-neox", "gptj", "internlm2", "mixtral"];
    let others = ["mpt", "phi3-longrope", "opt", "olmo2", "gemma2", "qwen3", "qwen3-moe"];
    let named = [
        Base { prefix: "transformer.", transposed: true, ..base("gpt2") },
        Base { prefix: "transformer.", ..base("bloom") },
    ];
    plain.into_iter().chain(others).map(base).chain(named).for_each(|base| base.check());
}
