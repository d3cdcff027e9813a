//! Adapters with tokens of their own, as PEFT saves them: they give what was recorded, and rows beside them never see
//! these tokens.

use std::path::{Path, PathBuf};
use std::thread;

use collectives::{Collective, Solo, Threads};
use kernels::ops::DType;
use models::{LoadOptions, LoraOptions, Runner};

use crate::adapters::{load, put, run};
use crate::checks::greedy_scripts;
use crate::engine::{self, On, Outcome, PLAIN, Script, Setup, Wanted, Way};
use crate::reference::{self, Reference};
use crate::tensors::{Tensor, Tensors, read, write};
use crate::{adapters, folders};

/// Tokens of the models.
const VOCAB: usize = 64;
const ROOM: LoraOptions = LoraOptions { saved_modules: true, extra_vocab: 5, ..adapters::ROOM };
const MIXED: Way = Way { together: true, chunk: 5, scattered: true, wanted: Wanted::Last };
/// Embedding and head in place of the model's; low-rank ones beside matrices that were given more rows.
const UNTIED: (&str, &[&str]) = ("rope_yarn", &["lora-vocab-saved", "lora-vocab-low-rank"]);
/// Matrices that were given more rows alone.
const TIED: (&str, &[&str]) = ("rope_linear", &["lora-vocab-tied"]);

/// A base and its adapters, each in the slot of its number: the base's runs come first.
struct Family {
    base: PathBuf,
    adapters: Vec<PathBuf>,
    references: Vec<Reference>,
    scripts: Vec<Script>,
    slots: Vec<Option<u32>>,
}

impl Family {
    fn read((base, adapters): (&str, &[&str])) -> Self {
        let folder = |name: &str| folders::zoo(name).expect("made for this repository");
        let (base, adapters) = (folder(base), adapters.iter().map(|name| folder(name)).collect::<Vec<_>>());
        let references: Vec<Reference> = adapters.iter().map(|dir| reference::read(dir)).collect();
        let of_base = greedy_scripts(&reference::read(&base)).remove(1);
        let (mut scripts, mut slots) = (vec![of_base], vec![None]);
        for (slot, reference) in (0..).zip(&references) {
            scripts.extend(greedy_scripts(reference));
            slots.resize(scripts.len(), Some(slot));
        }
        Self { base, adapters, references, scripts, slots }
    }

    fn load(&self, setup: Setup, room: LoraOptions) -> Box<dyn Runner> {
        let mut runner = load(&self.base, setup, room);
        // A slot that another one had before.
        put(&mut *runner, 0, &self.adapters[self.adapters.len() - 1]);
        (0..).zip(&self.adapters).for_each(|(slot, dir)| put(&mut *runner, slot, dir));
        runner
    }

    fn run(&self, setup: Setup, group: &mut dyn Collective, way: Way) -> Vec<Outcome> {
        run(&mut *self.load(setup, ROOM), group, &self.scripts, &self.slots, way)
    }

    /// What was recorded, of the tokens that an adapter knows.
    fn check(&self, outcomes: &[Outcome], what: &str) {
        let mut outcomes = outcomes[1..].iter();
        for reference in &self.references {
            for prompt in &reference.prompts {
                let Outcome { logits, greedy } = outcomes.next().expect("an outcome for each prompt");
                assert_eq!(*greedy, prompt.greedy_tokens, "{what}");
                let last = &logits[logits.len() - greedy.len()];
                assert_eq!(last.len(), prompt.last_logits.len(), "{what}: tokens that it knows");
                let differences = last.iter().zip(&prompt.last_logits).map(|(one, other)| (one - other).abs());
                let worst = differences.fold(0.0, f32::max);
                assert!(worst < reference.float32, "{what}: logits differ by {worst}");
            }
        }
    }
}

#[test]
fn adapters_give_what_was_recorded() {
    for family in [UNTIED, TIED].map(Family::read) {
        for on in On::all() {
            let setup = Setup::new(DType::F32).on(on);
            let alone = family.run(setup, &mut Solo, PLAIN);
            family.check(&alone, &format!("{}, {on:?}", family.base.display()));
            let mixed = family.run(setup, &mut Solo, MIXED);
            for (one, other) in alone.iter().zip(&mixed) {
                let from = one.logits.len() - other.logits.len();
                assert!(one.logits[from..] == other.logits, "{on:?}: other bits in a batch");
            }
        }
    }
}

/// The bits of a model without room for such tokens, and no others behind them.
#[test]
fn the_base_beside_them_never_sees_their_tokens() {
    for family in [UNTIED, TIED].map(Family::read) {
        for on in On::all() {
            let setup = Setup::new(DType::F32).on(on);
            let beside = family.run(setup, &mut Solo, MIXED);
            let mut without = load(&family.base, setup, LoraOptions { extra_vocab: 0, ..ROOM });
            let alone = run(&mut *without, &mut Solo, &family.scripts[..1], &[None], Way { together: false, ..MIXED });
            assert_eq!(beside[0].greedy, alone[0].greedy);
            assert_eq!(beside[0].logits[0].len(), VOCAB, "what is behind them is masked");
            assert!(beside[0].logits == alone[0].logits, "{on:?}: other bits");
        }
    }
}

#[test]
fn ranks_have_their_slices() {
    for family in [UNTIED, TIED].map(Family::read) {
        let _alone = engine::one_group_at_a_time();
        let outcomes: Vec<Vec<Outcome>> = thread::scope(|scope| {
            let family = &family;
            let rank = |(rank, mut channels)| {
                scope.spawn(move || {
                    let setup = Setup { rank: (rank, 2), ..Setup::new(DType::F32) };
                    family.run(setup, &mut channels, MIXED)
                })
            };
            let ranks: Vec<_> = Threads::group(2).into_iter().enumerate().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
        });
        family.check(&outcomes[0], "two ranks");
        assert!(outcomes[0] == outcomes[1], "ranks differ");
        assert_eq!(outcomes[0][0].logits[0].len(), VOCAB, "what is behind them is masked");
    }
}

/// An embedding with fewer rows than the model's, of which the second of two ranks has none.
#[test]
fn adapters_may_know_fewer_tokens() {
    const KNOWN: usize = 30;
    let Family { base, adapters, .. } = Family::read(UNTIED);
    let from = &adapters[1];
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::copy(from.join("adapter_config.json"), dir.path().join("adapter_config.json")).expect("copied");
    let mut tensors = read(&from.join("adapter_model.safetensors"));
    for Tensor { shape, values } in tensors.values_mut() {
        match shape[..] {
            [67, width] => values.truncate(KNOWN * width),
            [_, 67] => *values = values.chunks(67).flat_map(|row| &row[..KNOWN]).copied().collect(),
            _ => {}
        }
        shape.iter_mut().filter(|size| **size == 67).for_each(|size| *size = KNOWN);
    }
    write(&tensors, &dir.path().join("adapter_model.safetensors"));
    let scripts = [Script { prompt: (0..KNOWN as u32).collect(), forced: None, steps: 8 }];
    let outcome = |rank: (usize, usize), group: &mut dyn Collective| {
        let mut runner = load(&base, Setup { rank, ..Setup::new(DType::F32) }, ROOM);
        put(&mut *runner, 0, dir.path());
        run(&mut *runner, group, &scripts, &[Some(0)], MIXED).remove(0)
    };
    let alone = outcome((0, 1), &mut Solo);
    assert!(alone.greedy.iter().all(|token| (*token as usize) < KNOWN), "{:?}", alone.greedy);
    assert_eq!(alone.logits[0][KNOWN..], [f32::NEG_INFINITY; VOCAB - KNOWN]);
    let _alone = engine::one_group_at_a_time();
    let outcome = &outcome;
    let over_ranks = thread::scope(|scope| {
        let rank = |(rank, mut channels)| scope.spawn(move || outcome((rank, 2), &mut channels));
        let ranks: Vec<_> = Threads::group(2).into_iter().enumerate().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank").greedy).collect::<Vec<_>>()
    });
    assert_eq!(over_ranks, [alone.greedy.clone(), alone.greedy]);
}

#[test]
fn how_many_tokens_an_adapter_knows_is_told() {
    let Family { base, adapters, .. } = Family::read(UNTIED);
    let layout = load(&base, Setup::new(DType::F32), ROOM).adapter_layout().expect("room");
    let known = adapters.iter().map(|dir| layout.read(dir).expect("an adapter").vocab_size());
    assert_eq!(known.collect::<Vec<_>>(), [Some(67), Some(67)]);
}

/// What an adapter is refused with, after a change to its tensors.
fn refusal(adapter: &str, room: LoraOptions, change: impl Fn(&mut Tensors)) -> String {
    let Family { base, .. } = Family::read(UNTIED);
    let from = folders::zoo(adapter).expect("made for this repository");
    let dir = tempfile::tempdir().expect("a folder");
    let config = Path::new("adapter_config.json");
    std::fs::copy(from.join(config), dir.path().join(config)).expect("copied");
    let mut tensors = read(&from.join("adapter_model.safetensors"));
    change(&mut tensors);
    write(&tensors, &dir.path().join("adapter_model.safetensors"));
    let layout = load(&base, Setup::new(DType::F32), room).adapter_layout().expect("room");
    layout.read(dir.path()).expect_err("a refusal").to_string()
}

#[test]
fn damaged_adapters_are_refused_by_name() {
    let check = |adapter: &str, room: LoraOptions, change: &dyn Fn(&mut Tensors), words: &[&str]| {
        let refusal = refusal(adapter, room, change);
        assert!(words.iter().all(|word| refusal.contains(word)), "{refusal}");
    };
    let [saved, low_rank] = [UNTIED.1[0], UNTIED.1[1]];
    let few = LoraOptions { extra_vocab: 2, ..ROOM };
    check(saved, few, &|_| {}, &["weight", "[67, 24]", "[64, 24]", "66 tokens", "--lora-extra-vocab-size 2"]);
    check(saved, LoraOptions { extra_vocab: 0, ..ROOM }, &|_| {}, &["[67, 24]", "--lora-extra-vocab-size"]);
    let without = |word: &'static str| move |tensors: &mut Tensors| tensors.retain(|name, _| !name.contains(word));
    let cut = |tensors: &mut Tensors| {
        for (name, Tensor { shape, values }) in tensors.iter_mut() {
            if name.contains("embed_tokens") {
                shape[0] = VOCAB;
                values.truncate(VOCAB * shape[1]);
            }
        }
    };
    check(saved, ROOM, &cut, &["lm_head", "the head gives 67 tokens", "the embedding knows 64"]);
    let shrunk = |tensors: &mut Tensors| {
        tensors.retain(|name, _| !name.contains("lm_head"));
        tensors.values_mut().filter(|one| one.shape == [67, 24]).for_each(|Tensor { shape, values }| {
            shape[0] = 60;
            values.truncate(60 * 24);
        });
    };
    let fewer = |tensors: &mut Tensors| {
        without("embed_tokens.lora")(tensors);
        shrunk(tensors);
    };
    check(low_rank, ROOM, &fewer, &["embed_tokens.base_layer", "the head gives 64", "the embedding knows 60"]);
    check(low_rank, ROOM, &without("embed_tokens"), &["lm_head.base_layer.weight", "67 tokens", "knows 64"]);
    // What they were before is not to be seen from low-rank matrices.
    check(low_rank, ROOM, &without("base_layer"), &["lm_head.lora_B.weight", "[67, 4]", "[64, 4]"]);
}

/// What a model is refused with that adapters may bring tokens to.
fn refused(base: &str, room: LoraOptions) -> Option<String> {
    let setup = Setup::new(DType::F32);
    let options = LoadOptions { lora: Some(room), ..engine::options(setup) };
    let loaded = models::load(&folders::zoo(base)?, &options, setup.on.backend(setup.rank), &mut |_| {});
    Some(loaded.err().expect("a refusal").to_string())
}

#[test]
fn models_without_room_for_other_tokens_are_refused() {
    let check = |base: &str, room: LoraOptions, words: &[&str]| {
        let Some(refused) = refused(base, room) else { return };
        assert!(words.iter().all(|word| refused.contains(word)), "{refused}");
    };
    let flag = "--lora-extra-vocab-size is 5";
    check("rope_yarn", LoraOptions { saved_modules: false, ..ROOM }, &[flag, "--enable-lora-modules-to-save"]);
    check("phi", ROOM, &[flag, "heads with a bias"]);
}
