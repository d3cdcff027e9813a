//! Adapters of embeddings and heads, low-rank or whole: what an adapter gives is what the model gives that it was
//! merged into. Of a tied model, either is adapted without the other, as PEFT does, so the merged model's are not tied.

use std::path::{Path, PathBuf};
use std::thread;

use collectives::{Solo, Threads};
use kernels::ops::DType;
use models::{LoraOptions, Runner};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::adapters::{ROOM, load, put, run};
use crate::engine::{self, On, Outcome, PLAIN, Script, Setup, Wanted, Way};
use crate::merged_adapters::{distance, numbers};
use crate::tensors::{Tensor, Tensors, read, write};
use crate::{folders, reference};

const RANK: usize = 3;
const ALPHA: f32 = 6.0;
const SAVES: LoraOptions = LoraOptions { saved_modules: true, ..ROOM };

/// How a model's files name its embedding and its head.
#[derive(Clone, Copy)]
struct Base {
    folder: &'static str,
    embedding: &'static str,
    head: &'static str,
    /// What PEFT has before the names of all modules but the head, where files leave it out.
    prefix: &'static str,
}

const fn base(folder: &'static str) -> Base {
    Base { folder, embedding: "model.embed_tokens", head: "lm_head", prefix: "" }
}

const LLAMA: Base = base("llama");
/// Tied, with scaled embeddings.
const GEMMA: Base = base("gemma");

/// What an adapter changes, and how.
#[derive(Clone, Copy, Debug)]
struct Kind {
    embedding: bool,
    head: bool,
    /// In place of the model's; else low-rank.
    saved: bool,
}

const ALL: [Kind; 6] = [
    Kind { embedding: true, head: false, saved: false },
    Kind { embedding: false, head: true, saved: false },
    Kind { embedding: true, head: true, saved: false },
    Kind { embedding: true, head: false, saved: true },
    Kind { embedding: false, head: true, saved: true },
    Kind { embedding: true, head: true, saved: true },
];

/// A base with an adapter of it, and the model that this is merged into.
struct Case {
    base: PathBuf,
    adapter: TempDir,
    merged: TempDir,
}

/// The embedding's or the head's delta, `[vocab, width]`, and its two matrices.
fn delta(seed: usize, [vocab, width]: [usize; 2]) -> (Vec<f32>, [Vec<f32>; 2]) {
    let (tokens, features) = (numbers(seed, vocab * RANK), numbers(seed + 1, RANK * width));
    let of =
        |at: usize| (0..RANK).map(|j| tokens[at / width * RANK + j] * features[j * width + at % width]).sum::<f32>();
    ((0..vocab * width).map(|at| ALPHA / RANK as f32 * of(at)).collect(), [tokens, features])
}

fn turned(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns).copied()).collect()
}

impl Base {
    /// `None` where the zoo lacks it.
    fn case(&self, kind: Kind) -> Option<Case> {
        let base = folders::zoo(self.folder)?;
        let [adapter, merged] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
        let mut tensors = read(&base.join("model.safetensors"));
        let [embedding, head] = [self.embedding, self.head].map(|name| format!("{name}.weight"));
        let own = tensors[&embedding].clone();
        tensors.entry(head.clone()).or_insert(own);
        let mut deltas = Tensors::new();
        if kind.embedding {
            self.adapt(
                kind,
                11,
                (&format!("{}{}", self.prefix, self.embedding), &embedding),
                &mut tensors,
                &mut deltas,
            );
        }
        if kind.head {
            self.adapt(kind, 22, (self.head, &head), &mut tensors, &mut deltas);
        }
        write(&deltas, &adapter.path().join("adapter_model.safetensors"));
        let modules = if kind.saved { "modules_to_save" } else { "target_modules" };
        let last = |name: &&'static str| name.rsplit('.').next().expect("a name");
        let named = [(kind.embedding, &self.embedding), (kind.head, &self.head)].into_iter();
        let named: Vec<&str> = named.filter(|(is_adapted, _)| *is_adapted).map(|(_, name)| last(name)).collect();
        let config = json!({"peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, modules: named});
        std::fs::write(adapter.path().join("adapter_config.json"), config.to_string()).expect("written");
        let config = std::fs::read(base.join("config.json")).expect("a configuration");
        let mut config: Value = serde_json::from_slice(&config).expect("JSON");
        config["tie_word_embeddings"] = json!(false);
        std::fs::write(merged.path().join("config.json"), config.to_string()).expect("written");
        write(&tensors, &merged.path().join("model.safetensors"));
        Some(Case { base, adapter, merged })
    }

    /// Changes a matrix of the merged model, and writes down how.
    fn adapt(
        &self,
        kind: Kind,
        seed: usize,
        (module, tensor): (&str, &str),
        tensors: &mut Tensors,
        deltas: &mut Tensors,
    ) {
        let module = format!("base_model.model.{module}");
        let found = tensors.get_mut(tensor).expect("the matrix");
        let [vocab, width] = found.shape[..] else { unreachable!("a matrix") };
        let frozen = found.clone();
        let (delta, [tokens, features]) = delta(seed, [vocab, width]);
        found.values.iter_mut().zip(delta).for_each(|(value, delta)| *value += delta);
        let mut add = |name: String, shape: [usize; 2], values| {
            deltas.insert(name, Tensor { shape: shape.to_vec(), values });
        };
        if kind.saved {
            return add(format!("{module}.weight"), [vocab, width], found.values.clone());
        }
        // PEFT writes the model's own beside them.
        add(format!("{module}.base_layer.weight"), [vocab, width], frozen.values);
        if tensor == format!("{}.weight", self.embedding) {
            add(format!("{module}.lora_embedding_A"), [RANK, vocab], turned(&tokens, RANK));
            add(format!("{module}.lora_embedding_B"), [width, RANK], turned(&features, width));
        } else {
            add(format!("{module}.lora_A.weight"), [RANK, width], features);
            add(format!("{module}.lora_B.weight"), [vocab, RANK], tokens);
        }
    }

    fn check(&self, kind: Kind) {
        let Some(case) = self.case(kind) else { return };
        let (scripts, setup) = ([case.script()], Setup::new(DType::F32));
        let mut with = load(&case.base, setup, SAVES);
        put(&mut *with, 0, case.adapter.path());
        let with = run(&mut *with, &mut Solo, &scripts, &[Some(0)], PLAIN);
        let [merged, plain] = [case.merged.path(), &case.base].map(|dir| alone(dir, &scripts));
        let [near, far] = [&merged, &plain].map(|other| distance(&with[0], &other[0]));
        let name = self.folder;
        assert!(near < 2e-3 && far > 20.0 * near, "{name}, {kind:?}: {near} from merged, {far} from the base");
    }
}

impl Case {
    fn script(&self) -> Script {
        let prompt = reference::read(&self.base).prompts.remove(1).ids;
        Script { prompt, forced: None, steps: 4 }
    }
}

fn alone(dir: &Path, scripts: &[Script]) -> Vec<Outcome> {
    let mut model = engine::load(dir, Setup::new(DType::F32)).expect("a model");
    engine::run(&mut *model, &mut Solo, scripts, PLAIN)
}

/// Tied and untied, scaled, of another width than the residual stream, named in other ways.
#[test]
fn an_adapter_gives_what_the_merged_model_gives() {
    let named = [
        Base { embedding: "wte", prefix: "transformer.", ..base("gpt2") },
        Base { embedding: "gpt_neox.embed_in", head: "embed_out", ..base("gpt-neox") },
        Base { embedding: "model.decoder.embed_tokens", ..base("opt-350m") },
        Base {
            embedding: "transformer.embedding.word_embeddings",
            head: "transformer.output_layer",
            ..base("chatglm3")
        },
        Base { embedding: "backbone.embeddings", ..base("mamba") },
    ];
    for base in [LLAMA, GEMMA, base("qwen2"), base("cohere"), base("granite"), base("minicpm")].iter().chain(&named) {
        ALL.into_iter().for_each(|kind| base.check(kind));
    }
}

/// Adapters of all kinds and the base in one batch: the bits of each alone; over two ranks, the merged models' tokens.
#[test]
fn kinds_of_adapters_share_a_batch() {
    for base in [LLAMA, GEMMA] {
        let kinds = [ALL[2], ALL[5], ALL[3], ALL[1]];
        let Some(cases) = kinds.into_iter().map(|kind| base.case(kind)).collect::<Option<Vec<Case>>>() else { return };
        let scripts = vec![cases[0].script(); cases.len() + 1];
        let slots: Vec<Option<u32>> = (0..scripts.len() as u32).map(|index| index.checked_sub(1)).collect();
        let dirs: Vec<&Path> = cases.iter().map(|case| case.adapter.path()).collect();
        let fill = |runner: &mut dyn Runner| (0..).zip(&dirs).for_each(|(slot, dir)| put(runner, slot, dir));
        let mixed = Way { together: true, chunk: 5, scattered: true, wanted: Wanted::Last };
        let mut outcomes = Vec::new();
        for on in On::all() {
            let [plain, together] = [PLAIN, mixed].map(|way| {
                let mut runner = load(&cases[0].base, Setup::new(DType::F32).on(on), SAVES);
                fill(&mut *runner);
                run(&mut *runner, &mut Solo, &scripts, &slots, way)
            });
            for (one, other) in plain.iter().zip(&together) {
                let from = one.logits.len() - other.logits.len();
                assert!(one.logits[from..] == other.logits, "{}, {on:?}: other bits in a batch", base.folder);
            }
            outcomes = plain;
        }
        for (outcome, case) in outcomes[1..].iter().zip(&cases) {
            let merged = alone(case.merged.path(), &scripts[..1]);
            assert_eq!(outcome.greedy, merged[0].greedy, "{}", base.folder);
        }
        for ranks in over_two_ranks(&cases[0].base, &fill, &scripts, &slots, mixed) {
            for (one, other) in outcomes.iter().zip(&ranks) {
                assert_eq!(one.greedy, other.greedy, "{}: other tokens over two ranks", base.folder);
            }
        }
    }
}

fn over_two_ranks(
    base: &Path,
    fill: &(dyn Fn(&mut dyn Runner) + Sync),
    scripts: &[Script],
    slots: &[Option<u32>],
    way: Way,
) -> Vec<Vec<Outcome>> {
    let _alone = engine::one_group_at_a_time();
    thread::scope(|scope| {
        let rank = |(rank, mut channels)| {
            scope.spawn(move || {
                let setup = Setup { rank: (rank, 2), ..Setup::new(DType::F32) };
                let mut runner = load(base, setup, SAVES);
                fill(&mut *runner);
                run(&mut *runner, &mut channels, scripts, slots, way)
            })
        };
        let ranks: Vec<_> = Threads::group(2).into_iter().enumerate().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    })
}

/// A slot that had one kind of adapter is another's: nothing of the one before is left.
#[test]
fn a_slot_forgets_what_it_had() {
    let Some(cases) = [ALL[5], ALL[2]].into_iter().map(|kind| GEMMA.case(kind)).collect::<Option<Vec<Case>>>() else {
        return;
    };
    let scripts = [cases[0].script()];
    let outcomes = |dirs: &[&Path]| {
        let mut runner = load(&cases[0].base, Setup::new(DType::F32), SAVES);
        dirs.iter().for_each(|dir| put(&mut *runner, 1, dir));
        run(&mut *runner, &mut Solo, &scripts, &[Some(1)], PLAIN)
    };
    let [saved, low_rank] = [0, 1].map(|index| cases[index].adapter.path());
    assert!(outcomes(&[saved, low_rank]) == outcomes(&[low_rank]));
    assert!(outcomes(&[low_rank, saved]) == outcomes(&[saved]));
    assert!(outcomes(&[saved]) != outcomes(&[low_rank]));
}

/// What an adapter's folder is refused with, after a change to its tensors.
fn refusal(base: Base, kind: Kind, room: LoraOptions, change: impl Fn(&mut Tensors)) -> Option<String> {
    let case = base.case(kind)?;
    let file = case.adapter.path().join("adapter_model.safetensors");
    let mut tensors = read(&file);
    change(&mut tensors);
    write(&tensors, &file);
    let runner = load(&case.base, Setup::new(DType::F32), room);
    Some(runner.adapter_layout().expect("room").read(case.adapter.path()).expect_err("a refusal").to_string())
}

#[test]
fn what_cannot_be_served_is_refused_by_name() {
    let check = |base: Base, kind: Kind, room, change: &dyn Fn(&mut Tensors), words: &[&str]| {
        let Some(refusal) = refusal(base, kind, room, change) else { return };
        assert!(words.iter().all(|word| refusal.contains(word)), "{refusal}");
    };
    let phi = base("phi");
    check(LLAMA, ALL[3], ROOM, &|_| {}, &["embed_tokens.weight", "--enable-lora-modules-to-save"]);
    check(phi, ALL[4], SAVES, &|_| {}, &["lm_head.weight", "a head with a bias"]);
    let renamed = |from: &'static str, to: &'static str| {
        move |tensors: &mut Tensors| {
            *tensors = std::mem::take(tensors).into_iter().map(|(name, one)| (name.replace(from, to), one)).collect();
        }
    };
    check(
        LLAMA,
        ALL[4],
        SAVES,
        &renamed("lm_head", "score.dense.lm_head"),
        &["score.dense.lm_head", "no embedding and no head"],
    );
    check(
        LLAMA,
        ALL[4],
        ROOM,
        &renamed("lm_head", "score.dense.lm_head"),
        &["score.dense.lm_head", "no embedding and no head"],
    );
    check(LLAMA, ALL[4], SAVES, &renamed("lm_head", "score"), &["modules_to_save", "lm_head", "no tensor"]);
    check(LLAMA, ALL[1], ROOM, &renamed(".base_layer.weight", ".lora_magnitude_vector.weight"), &["magnitude"]);
    check(LLAMA, ALL[0], ROOM, &renamed("lora_embedding_A", "lora_embedding_C"), &["lora_embedding_C"]);
    // An embedding as a linear layer, and a layer as an embedding.
    check(LLAMA, ALL[0], ROOM, &renamed("model.embed_tokens", "lm_head"), &["lm_head", "no embedding of this model"]);
    check(LLAMA, ALL[1], ROOM, &renamed("lm_head", "model.embed_tokens"), &["embed_tokens", "no linear layer"]);
    // A vocabulary with three tokens more.
    for kind in ALL {
        let longer = |tensors: &mut Tensors| {
            for (name, Tensor { shape, values }) in tensors {
                if shape[0] == 512 {
                    values.extend(vec![0.0; 3 * shape[1]]);
                    shape[0] += 3;
                } else if name.ends_with("lora_embedding_A") {
                    values.extend(vec![0.0; 3 * RANK]);
                    shape[1] += 3;
                }
            }
        };
        check(LLAMA, kind, ROOM, &longer, &["515", "512", "tokens of its own", "--lora-extra-vocab-size"]);
    }
}

/// The matrices are kept on the host in the device's type.
#[test]
fn whole_matrices_count_as_memory() {
    let Some(case) = LLAMA.case(ALL[5]) else { return };
    let bytes = |dtype| {
        let runner = load(&case.base, Setup::new(DType::F32), LoraOptions { dtype: Some(dtype), ..SAVES });
        runner.adapter_layout().expect("room").read(case.adapter.path()).expect("an adapter").bytes()
    };
    assert_eq!(bytes(DType::F32), 2 * 512 * 128 * 4);
    assert_eq!(bytes(DType::Bf16), 2 * 512 * 128 * 2);
}
