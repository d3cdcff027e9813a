//! Adapters of mixtures of experts: what one gives is what the model gives that it was merged into, in mixed batches
//! and over ranks, whether PEFT has a module for each expert or a parameter for all; and what is wrong is refused by
//! name.

use std::path::{Path, PathBuf};
use std::thread;

use collectives::{Solo, Threads};
use kernels::ops::DType;
use models::LoraOptions;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::adapters::{ROOM, load, put, run};
use crate::engine::{self, On, Outcome, PLAIN, Script, Setup, Wanted, Way};
use crate::merged_adapters::{ALPHA, RANK, base, distance, numbers};
use crate::networks::staged_adapter;
use crate::tensors::{Tensor, Tensors, read, write};
use crate::{folders, reference};

/// Two adapters of a base, and the models that they are merged into.
struct Merged {
    dir: PathBuf,
    adapters: [TempDir; 2],
    merged: [TempDir; 2],
}

/// Writes an adapter of a base, and the model that it is merged into; numbers follow from the last argument.
type Write<'a> = &'a dyn Fn(&Path, &Path, &Path, usize);

impl Merged {
    fn new(folder: &str, write: Write<'_>) -> Option<Self> {
        let dir = folders::zoo(folder)?;
        let folders = || [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let (adapters, merged) = (folders(), folders());
        for (index, (adapter, merged)) in adapters.iter().zip(&merged).enumerate() {
            write(&dir, adapter.path(), merged.path(), 1000 * index);
        }
        Some(Self { dir, adapters, merged })
    }

    /// One prompt, for the base and each adapter.
    fn scripts(&self) -> Vec<Script> {
        let prompt = reference::read(&self.dir).prompts.remove(1).ids;
        (0..3).map(|_| Script { prompt: prompt.clone(), forced: None, steps: 3 }).collect()
    }

    /// A runner with both adapters.
    fn load(&self, setup: Setup) -> Box<dyn models::Runner> {
        let mut runner = load(&self.dir, setup, ROOM);
        (0..).zip(&self.adapters).for_each(|(slot, adapter)| put(&mut *runner, slot, adapter.path()));
        runner
    }

    /// What the base and the merged models give.
    fn alone(&self) -> Vec<Outcome> {
        let scripts = self.scripts();
        let alone = |dir: &Path| {
            let mut model = engine::load(dir, Setup::new(DType::F32)).expect("a model");
            engine::run(&mut *model, &mut Solo, &scripts[..1], PLAIN).remove(0)
        };
        [&*self.dir].into_iter().chain(self.merged.iter().map(TempDir::path)).map(alone).collect()
    }

    /// Each sequence gives what its own model gives, up to the order of sums, and far from what the others do.
    fn check(&self, what: &str, given: &[Outcome], alone: &[Outcome]) {
        for (index, given) in given.iter().enumerate() {
            let far = |other: &usize| *other != index;
            let [near, far] = [distance(given, &alone[index]), {
                (0..alone.len()).filter(far).map(|other| distance(given, &alone[other])).fold(f32::MAX, f32::min)
            }];
            assert!(near < 2e-3 && far > 20.0 * near, "{what}, {index}: {near} from its own, {far} from others");
        }
    }

    /// On every device, in one batch with the base and each other, and with other chunks.
    fn together(&self, what: &str) {
        let (scripts, slots, alone) = (self.scripts(), [None, Some(0), Some(1)], self.alone());
        for on in On::all() {
            let setup = Setup::new(DType::F32).on(on);
            let outcomes = |way| run(&mut *self.load(setup), &mut Solo, &scripts, &slots, way);
            let plain = outcomes(PLAIN);
            self.check(&format!("{what}, {on:?}"), &plain, &alone);
            for wanted in [Wanted::All, Wanted::Last] {
                let mixed = outcomes(Way { together: true, chunk: 16, scattered: true, wanted });
                for (one, other) in plain.iter().zip(&mixed) {
                    assert_eq!(one.greedy, other.greedy, "{what}, {on:?}");
                    let from = one.logits.len() - other.logits.len();
                    assert!(one.logits[from..] == other.logits, "{what}, {on:?}: other bits in a batch");
                }
            }
        }
    }

    /// Over two ranks, each with its slices of both matrices.
    fn split(&self, what: &str) {
        let (scripts, slots) = (self.scripts(), [None, Some(0), Some(1)]);
        let way = Way { together: true, chunk: 16, scattered: true, wanted: Wanted::All };
        let alone = self.alone();
        let _alone = engine::one_group_at_a_time();
        let outcomes: Vec<Vec<Outcome>> = thread::scope(|scope| {
            let (scripts, slots) = (&scripts, &slots);
            let rank = |(rank, mut channels)| {
                scope.spawn(move || {
                    let mut runner = self.load(Setup { rank: (rank, 2), ..Setup::new(DType::F32) });
                    run(&mut *runner, &mut channels, scripts, slots, way)
                })
            };
            let ranks: Vec<_> = Threads::group(2).into_iter().enumerate().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
        });
        self.check(what, &outcomes[0], &alone);
        assert!(outcomes[0] == outcomes[1], "{what}: ranks differ");
    }
}

/// Families that store each expert's matrices, some with shared experts, gated or not.
const EACH: [&str; 7] = ["mixtral", "qwen2-moe", "qwen3-moe", "qwen3-next", "deepseek-v2", "deepseek-v3", "olmoe"];

#[test]
fn experts_and_base_share_a_batch() {
    for folder in EACH {
        let write = |dir: &Path, adapter: &Path, merged: &Path, salt| base(folder).write(dir, adapter, merged, salt);
        Merged::new(folder, &write).iter().for_each(|merged| merged.together(folder));
    }
}

#[test]
fn ranks_have_their_slices_of_experts() {
    for folder in ["mixtral", "qwen2-moe", "deepseek-v3"] {
        let write = |dir: &Path, adapter: &Path, merged: &Path, salt| base(folder).write(dir, adapter, merged, salt);
        Merged::new(folder, &write).iter().for_each(|merged| merged.split(folder));
    }
}

/// Experts that PEFT adapts by `target_parameters`.
#[derive(Clone, Copy)]
struct Family {
    folder: &'static str,
    /// What PEFT calls the module with the parameters: one, or one for each parameter.
    modules: [&'static str; 2],
    /// The parameters of gate and up, and of down.
    parameters: [&'static str; 2],
    stored: Stored,
}

/// How the files have them.
#[derive(Clone, Copy)]
enum Stored {
    /// Each expert's matrices `{prefix}.{expert}.{piece}.weight`.
    Each { prefix: &'static str, pieces: [&'static str; 3] },
    /// All in one tensor: `[experts, outputs, inputs]`, or transposed.
    Stacked { transposed: bool },
}

const FAMILIES: [Family; 4] = [
    Family {
        folder: "mixtral",
        modules: ["mlp.experts"; 2],
        parameters: ["gate_up_proj", "down_proj"],
        stored: Stored::Each { prefix: "block_sparse_moe.experts", pieces: ["w1", "w3", "w2"] },
    },
    Family {
        folder: "qwen3-moe",
        modules: ["mlp.experts"; 2],
        parameters: ["gate_up_proj", "down_proj"],
        stored: Stored::Each { prefix: "mlp.experts", pieces: ["gate_proj", "up_proj", "down_proj"] },
    },
    Family {
        folder: "gpt-oss",
        modules: ["mlp.experts"; 2],
        parameters: ["gate_up_proj", "down_proj"],
        stored: Stored::Stacked { transposed: true },
    },
    Family {
        folder: "granite-moe",
        modules: ["block_sparse_moe.input_linear", "block_sparse_moe.output_linear"],
        parameters: ["weight"; 2],
        stored: Stored::Stacked { transposed: false },
    },
];

impl Family {
    /// Layers with experts.
    fn layers(&self, tensors: &Tensors) -> Vec<usize> {
        let inside = match self.stored {
            Stored::Each { prefix, .. } => prefix,
            Stored::Stacked { .. } => self.modules[0],
        };
        (0..8).filter(|layer| tensors.keys().any(|name| name.contains(&format!("layers.{layer}.{inside}")))).collect()
    }

    /// Experts, outputs and inputs of a parameter.
    fn shape(&self, tensors: &Tensors, layer: usize, which: usize) -> [usize; 3] {
        match self.stored {
            Stored::Each { prefix, pieces } => {
                let name = |expert: usize, piece| format!("model.layers.{layer}.{prefix}.{expert}.{piece}.weight");
                let experts = (0..).take_while(|expert| tensors.contains_key(&name(*expert, pieces[0]))).count();
                let one = &tensors[&name(0, pieces[2 * which])].shape;
                [experts, (2 - which) * one[0], one[1]]
            }
            Stored::Stacked { transposed } => {
                let [experts, rows, columns] = tensors[&self.stacked(layer, which)].shape[..] else { unreachable!() };
                if transposed { [experts, columns, rows] } else { [experts, rows, columns] }
            }
        }
    }

    fn stacked(&self, layer: usize, which: usize) -> String {
        format!("model.layers.{layer}.{}.{}", self.modules[which], self.parameters[which])
    }

    /// Adds to an element of a parameter.
    fn add(&self, tensors: &mut Tensors, [layer, which]: [usize; 2], [expert, output, input]: [usize; 3], delta: f32) {
        let [_, outputs, inputs] = self.shape(tensors, layer, which);
        let (name, at) = match self.stored {
            Stored::Each { prefix, pieces } => {
                let half = if which == 0 { outputs / 2 } else { outputs };
                let piece = if which == 0 { pieces[output / half] } else { pieces[2] };
                let name = format!("model.layers.{layer}.{prefix}.{expert}.{piece}.weight");
                (name, output % half * inputs + input)
            }
            Stored::Stacked { transposed } => {
                let at = if transposed { input * outputs + output } else { output * inputs + input };
                (self.stacked(layer, which), expert * outputs * inputs + at)
            }
        };
        tensors.get_mut(&name).expect("a tensor").values[at] += delta;
    }

    /// Writes an adapter of these parameters, and the model that it is merged into.
    fn write(&self, dir: &Path, adapter: &Path, merged: &Path, salt: usize, which: &[usize]) {
        let (mut tensors, mut deltas) = (read(&dir.join("model.safetensors")), Tensors::new());
        let nested = which.len() == 2 && self.modules[0] == self.modules[1];
        for (layer, which) in
            self.layers(&tensors).into_iter().flat_map(|layer| which.iter().map(move |one| (layer, *one)))
        {
            let shape @ [experts, outputs, inputs] = self.shape(&tensors, layer, which);
            let seed = salt + 10 * layer + 2 * which;
            let ranks = experts * RANK;
            let (a, b) = (numbers(seed, ranks * inputs), numbers(seed + 1, outputs * ranks));
            for at in 0..shape.into_iter().product::<usize>() {
                let [expert, output, input] = [at / inputs / outputs, at / inputs % outputs, at % inputs];
                let term = |j| b[output * ranks + j * experts + expert] * a[(expert * RANK + j) * inputs + input];
                let delta = ALPHA / RANK as f32 * (0..RANK).map(term).sum::<f32>();
                self.add(&mut tensors, [layer, which], [expert, output, input], delta);
            }
            let wrapped = if nested && which == 0 { ".base_layer" } else { "" };
            let module = format!("base_model.model.model.layers.{layer}.{}{wrapped}", self.modules[which]);
            deltas.insert(format!("{module}.lora_A.weight"), Tensor { shape: vec![ranks, inputs], values: a });
            deltas.insert(format!("{module}.lora_B.weight"), Tensor { shape: vec![outputs, ranks], values: b });
        }
        assert!(deltas.len() >= 4, "{}: {} matrices", self.folder, deltas.len());
        let names: Vec<String> =
            which.iter().map(|which| format!("{}.{}", self.modules[*which], self.parameters[*which])).collect();
        write_config(
            adapter,
            &json!({"r": RANK, "lora_alpha": ALPHA, "target_modules": [], "target_parameters": names}),
        );
        write(&deltas, &adapter.join("adapter_model.safetensors"));
        std::fs::copy(dir.join("config.json"), merged.join("config.json")).expect("copied");
        write(&tensors, &merged.join("model.safetensors"));
    }
}

fn write_config(adapter: &Path, config: &Value) {
    std::fs::write(adapter.join("adapter_config.json"), config.to_string()).expect("written");
}

#[test]
fn parameters_with_all_experts_take_adapters() {
    for family in FAMILIES {
        for which in [&[0, 1][..], &[0], &[1]] {
            let write = |dir: &Path, adapter: &Path, merged: &Path, salt| {
                family.write(dir, adapter, merged, salt, which);
            };
            let Some(merged) = Merged::new(family.folder, &write) else { continue };
            merged.together(&format!("{} {which:?}", family.folder));
        }
    }
}

#[test]
fn ranks_have_their_slices_of_parameters() {
    for family in FAMILIES {
        let write = |dir: &Path, adapter: &Path, merged: &Path, salt| family.write(dir, adapter, merged, salt, &[0, 1]);
        Merged::new(family.folder, &write).iter().for_each(|merged| merged.split(family.folder));
    }
}

/// A stage has its layers' experts, and knows the others' by either name.
#[test]
fn stages_have_their_part_of_experts() {
    let each = |dir: &Path, adapter: &Path, merged: &Path, salt| base("mixtral").write(dir, adapter, merged, salt);
    let all = |dir: &Path, adapter: &Path, merged: &Path, salt| FAMILIES[0].write(dir, adapter, merged, salt, &[0, 1]);
    for write in [&each as Write<'_>, &all] {
        let Some(merged) = Merged::new("mixtral", write) else { continue };
        staged_adapter(&merged.dir, merged.adapters[0].path());
    }
}

/// An adapter that is being spoilt.
struct Spoilt {
    tensors: Tensors,
    config: Value,
}

impl Spoilt {
    /// What it is refused with.
    fn refusal(&self, dir: &Path, room: LoraOptions) -> String {
        let adapter = tempfile::tempdir().expect("a folder");
        write_config(adapter.path(), &self.config);
        write(&self.tensors, &adapter.path().join("adapter_model.safetensors"));
        let runner = load(dir, Setup::new(DType::F32), room);
        runner.adapter_layout().expect("room").read(adapter.path()).expect_err("a refusal").to_string()
    }
}

/// Spoils an adapter of each expert's matrices, or of parameters.
fn check_refusal(by_parameters: bool, room: LoraOptions, spoil: impl Fn(&mut Spoilt), words: &[&str]) {
    let Some(dir) = folders::zoo("mixtral") else { return };
    let [adapter, merged] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    match by_parameters {
        true => FAMILIES[0].write(&dir, adapter.path(), merged.path(), 0, &[0, 1]),
        false => base("mixtral").write(&dir, adapter.path(), merged.path(), 0),
    }
    let config = std::fs::read(adapter.path().join("adapter_config.json")).expect("a configuration");
    let config = serde_json::from_slice(&config).expect("JSON");
    let mut spoilt = Spoilt { tensors: read(&adapter.path().join("adapter_model.safetensors")), config };
    spoil(&mut spoilt);
    let refusal = spoilt.refusal(&dir, room);
    assert!(words.iter().all(|word| refusal.contains(word)), "{words:?}: {refusal}");
}

const EXPERT: &str = "base_model.model.model.layers.0.block_sparse_moe.experts.1.w3";

#[test]
fn refusals_name_the_experts_tensor() {
    let a = format!("{EXPERT}.lora_A.weight");
    let renamed = |from: &'static str, to: &'static str| {
        move |spoilt: &mut Spoilt| {
            let all = std::mem::take(&mut spoilt.tensors);
            spoilt.tensors = all.into_iter().map(|(name, tensor)| (name.replace(from, to), tensor)).collect();
        }
    };
    let check = |spoil: &dyn Fn(&mut Spoilt), words: &[&str]| check_refusal(false, ROOM, spoil, words);
    check(&renamed("experts.1.w3", "experts.99.w3"), &["experts.99.w3.lora_A.weight", "no linear layer"]);
    check(&renamed("experts.1.w3", "experts.1.w4"), &["experts.1.w4.lora_A.weight", "no linear layer"]);
    check(&|spoilt| drop(spoilt.tensors.remove(&a)), &["experts.1.w3.lora_B.weight", "but not the other"]);
    let b = format!("{EXPERT}.lora_B.weight");
    check(&|spoilt| drop(spoilt.tensors.remove(&b)), &[&a, "but not the other"]);
    let narrow = |spoilt: &mut Spoilt| {
        let tensor = spoilt.tensors.get_mut(&a).expect("A");
        tensor.shape[1] -= 1;
        tensor.values.truncate(RANK * tensor.shape[1]);
    };
    check(&narrow, &[&a, "shape", "this model needs"]);
    check_refusal(false, LoraOptions { max_rank: 2, ..ROOM }, |_| {}, &["lora_A.weight", "--max-lora-rank 2"]);
    let only_experts = |spoilt: &mut Spoilt| spoilt.tensors.retain(|name, _| name.contains("experts"));
    let without = LoraOptions { experts: false, ..ROOM };
    check_refusal(false, without, only_experts, &["experts.0.w1.lora_A.weight", "--no-enable-lora-experts"]);
}

#[test]
fn refusals_name_the_parameters_tensor() {
    let check = |spoil: &dyn Fn(&mut Spoilt), words: &[&str]| check_refusal(true, ROOM, spoil, words);
    let targets = |value: Value| move |spoilt: &mut Spoilt| spoilt.config["target_parameters"] = value.clone();
    check(&targets(Value::Null), &["experts.lora_A.weight", "target_parameters"]);
    check(&targets(json!(["experts.down_proj"])), &["experts.base_layer.lora_A.weight", "target_parameters"]);
    check(&targets(json!(["experts.gate_up_proj_bias"])), &["experts.gate_up_proj_bias", "not supported"]);
    let inner = |spoilt: &mut Spoilt| spoilt.tensors.retain(|name, _| !name.contains("base_layer"));
    check(&inner, &["experts.lora_A.weight", "gate_up_proj"]);
    let ranks = |spoilt: &mut Spoilt| {
        let tensor = spoilt.tensors.iter_mut().find(|(name, _)| name.contains("lora_A")).expect("A").1;
        tensor.shape[0] -= 1;
        tensor.values.truncate(tensor.shape[0] * tensor.shape[1]);
    };
    check(&ranks, &["lora_A.weight", "shape", "this model needs"]);
    check_refusal(true, LoraOptions { max_rank: 2, ..ROOM }, |_| {}, &["lora_A.weight", "--max-lora-rank 2"]);
    let without = LoraOptions { experts: false, ..ROOM };
    check_refusal(true, without, |_| {}, &["experts", "--no-enable-lora-experts"]);
}

/// A slot has room for each expert, unless that is turned off.
#[test]
fn slots_have_room_for_experts() {
    let Some(dir) = folders::zoo("mixtral") else { return };
    let bytes = |experts| {
        let runner = load(&dir, Setup::new(DType::F32), LoraOptions { experts, ..ROOM });
        runner.adapter_layout().expect("room").slot_bytes()
    };
    let (with, without) = (bytes(true), bytes(false));
    let layers_and_experts = 2 * 4;
    assert_eq!(with.experts, (layers_and_experts * 3 * (64 + 96) * ROOM.max_rank * 4) as u64);
    assert_eq!((without.experts, without.all), (0, with.all - with.experts));
}
