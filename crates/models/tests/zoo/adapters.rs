//! Adapters against what was recorded with them: alone, all in one batch with their base, and split over ranks.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use collectives::{Collective, Solo, Threads};
use kernels::ops::{DType, Taken};
use models::{Adapter, AdapterError, AdapterWrite, LoadOptions, LoraOptions, Runner};

use crate::checks::{as_recorded, greedy_scripts};
use crate::engine::{On, Outcome, PLAIN, Script, Setup, Wanted, Way, options, start, step};
use crate::reference::{self, Reference};
use crate::{engine, folders};

const LLAMA: [&str; 5] =
    ["lora-llama-r16-all", "lora-llama-r16-rslora", "lora-llama-r4-partial", "lora-llama-r8-all", "lora-llama-r8-qv"];
const QWEN2: [&str; 2] = ["lora-qwen2-r16-qv", "lora-qwen2-r8-all"];
/// Two are loaded into one slot after the other.
pub const ROOM: LoraOptions =
    LoraOptions { slots: 4, max_rank: 16, dtype: None, experts: true, saved_modules: false, extra_vocab: 0 };

/// A base and adapters of it, with what was recorded of each.
struct Family {
    base: PathBuf,
    adapters: Vec<PathBuf>,
    references: Vec<Reference>,
}

impl Family {
    fn read(base: &str, adapters: &[&str]) -> Option<Self> {
        let base = folders::zoo(base)?;
        let adapters: Vec<PathBuf> = adapters.iter().map(|name| folders::zoo(name)).collect::<Option<_>>()?;
        let references = adapters.iter().map(|dir| reference::read(dir)).collect();
        Some(Self { base, adapters, references })
    }

    /// Runs of one prompt of the base, without an adapter, and of every adapter, with the slot of each.
    fn mixed(&self) -> (Vec<Script>, Vec<Option<u32>>, Vec<Reference>) {
        let first = |mut reference: Reference| {
            reference.prompts.truncate(2);
            reference.prompts.remove(0);
            reference
        };
        let with_base = std::iter::once(&self.base).chain(self.adapters.iter().take(ROOM.slots));
        let references: Vec<Reference> = with_base.map(|dir| first(reference::read(dir))).collect();
        let scripts = references.iter().flat_map(greedy_scripts).collect();
        let slots = (0..references.len() as u32).map(|index| index.checked_sub(1)).collect();
        (scripts, slots, references)
    }
}

pub fn load(dir: &Path, setup: Setup, lora: LoraOptions) -> Box<dyn Runner> {
    let options = LoadOptions { lora: Some(lora), ..options(setup) };
    models::load(dir, &options, setup.on.backend(setup.rank), &mut |_| {}).expect("a model").runner
}

pub fn put(runner: &mut dyn Runner, slot: u32, dir: &Path) {
    let adapter = runner.adapter_layout().expect("room for adapters").read(dir).expect("an adapter");
    assert!(adapter.bytes() > 0);
    write(runner, slot, adapter);
}

fn write(runner: &mut dyn Runner, slot: u32, adapter: Adapter) {
    let mut write = AdapterWrite::new(Arc::new(adapter), slot);
    runner.begin_adapter_writes();
    while runner.write_adapter(&mut write) != Taken::All {}
}

/// Runs scripts, each with the adapter of its slot.
pub fn run(
    runner: &mut dyn Runner,
    group: &mut dyn Collective,
    scripts: &[Script],
    slots: &[Option<u32>],
    way: Way,
) -> Vec<Outcome> {
    runner.join(group).expect("ranks that meet");
    let mut runs = start(runner, scripts, way);
    runs.iter_mut().zip(slots).for_each(|(run, slot)| run.adapter = *slot);
    match way.together {
        true => while step(runner, group, &mut runs, way) {},
        false => runs.chunks_mut(1).for_each(|alone| while step(runner, group, alone, way) {}),
    }
    runs.into_iter().map(|run| run.outcome).collect()
}

/// Each adapter alone, in a slot that another one had before.
fn alone(family: &Family) {
    for on in On::all() {
        for (dir, reference) in family.adapters.iter().zip(&family.references) {
            let mut runner = load(&family.base, Setup::new(DType::F32).on(on), ROOM);
            put(&mut *runner, 1, &family.adapters[0]);
            put(&mut *runner, 1, dir);
            let scripts = greedy_scripts(reference);
            let slots = vec![Some(1); scripts.len()];
            let outcomes = run(&mut *runner, &mut Solo, &scripts, &slots, PLAIN);
            as_recorded(reference, &outcomes).unwrap_or_else(|error| panic!("{}, {on:?}: {error}", dir.display()));
        }
    }
}

/// The adapters and the base in one batch: the same bits as each alone, and what was recorded.
fn together(family: &Family) {
    let (scripts, slots, references) = family.mixed();
    for on in On::all() {
        let outcomes = |way| {
            let mut runner = load(&family.base, Setup::new(DType::F32).on(on), ROOM);
            (0..).zip(family.adapters.iter().take(ROOM.slots)).for_each(|(slot, dir)| put(&mut *runner, slot, dir));
            run(&mut *runner, &mut Solo, &scripts, &slots, way)
        };
        let plain = outcomes(PLAIN);
        for (reference, outcome) in references.iter().zip(&plain) {
            as_recorded(reference, std::slice::from_ref(outcome)).unwrap_or_else(|error| panic!("{on:?}: {error}"));
        }
        for wanted in [Wanted::All, Wanted::Last] {
            let mixed = outcomes(Way { together: true, chunk: 16, scattered: true, wanted });
            for (one, other) in plain.iter().zip(&mixed) {
                assert_eq!(one.greedy, other.greedy, "{on:?}");
                let from = one.logits.len() - other.logits.len();
                assert!(one.logits[from..] == other.logits, "{on:?}: other bits in a batch");
            }
        }
    }
}

/// Over two ranks: each has its slices of both matrices.
fn split(family: &Family) {
    let (scripts, slots, references) = family.mixed();
    let way = Way { together: true, chunk: 16, scattered: true, wanted: Wanted::All };
    let _alone = engine::one_group_at_a_time();
    let outcomes: Vec<Vec<Outcome>> = thread::scope(|scope| {
        let (scripts, slots) = (&scripts, &slots);
        let rank = |(rank, mut channels)| {
            scope.spawn(move || {
                let setup = Setup { rank: (rank, 2), ..Setup::new(DType::F32) };
                let mut runner = load(&family.base, setup, ROOM);
                (0..).zip(family.adapters.iter().take(ROOM.slots)).for_each(|(slot, dir)| put(&mut *runner, slot, dir));
                run(&mut *runner, &mut channels, scripts, slots, way)
            })
        };
        let ranks: Vec<_> = Threads::group(2).into_iter().enumerate().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
    });
    for (reference, outcome) in references.iter().zip(&outcomes[0]) {
        as_recorded(reference, std::slice::from_ref(outcome)).unwrap_or_else(|error| panic!("{error}"));
    }
    assert!(outcomes[0] == outcomes[1], "ranks differ");
}

macro_rules! families {
    ($($name:ident: $base:literal, $adapters:expr;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn each_adapter_gives_what_was_recorded() {
                Family::read($base, &$adapters).iter().for_each(alone);
            }

            #[test]
            fn adapters_and_base_share_a_batch() {
                Family::read($base, &$adapters).iter().for_each(together);
            }

        }
    )*};
}

families! {
    llama: "llama", LLAMA;
    qwen2: "qwen2", QWEN2;
}

#[test]
fn ranks_have_their_slices() {
    Family::read("llama", &LLAMA).iter().for_each(split);
}

const QUANTIZED: [&str; 22] = [
    "gpt-oss-mxfp4",
    "llama-awq-int4-g128",
    "llama-bnb-nf4",
    "llama-bnb-nf4-double",
    "llama-fp8-block",
    "llama-fp8-dynamic",
    "llama-fp8-native",
    "llama-fp8-static",
    "llama-gguf-f16",
    "llama-gguf-q4_0",
    "llama-gguf-q4_k",
    "llama-gguf-q5_k",
    "llama-gguf-q6_k",
    "llama-gguf-q8_0",
    "llama-gptq-int4-g128",
    "llama-gptq-int4-g128-desc-act",
    "llama-gptq-int4-g32-asym",
    "llama-gptq-int8",
    "llama-squeezellm-int4",
    "llama-w4a16-g128",
    "llama-w8a8-int8-dynamic",
    "llama-w8a8-int8-static",
];

/// Over quantized matrices: in one batch the base gives what was recorded of it, and each random adapter the bits that
/// it gives alone, which are others than the base's.
#[test]
fn quantized_bases_take_adapters() {
    for name in QUANTIZED {
        let Some(base) = folders::zoo(name) else { continue };
        let of_base = reference::read(&base);
        let script = greedy_scripts(&of_base).remove(2);
        let (scripts, slots) = (vec![script; 3], [None, Some(0), Some(1)]);
        let outcomes = |way| {
            let mut runner = load(&base, Setup::new(DType::F32), ROOM);
            for slot in 0..2 {
                let adapter = runner.adapter_layout().expect("room for adapters").dummy("random", u64::from(slot));
                write(&mut *runner, slot, adapter);
            }
            run(&mut *runner, &mut Solo, &scripts, &slots, way)
        };
        let (plain, mixed) = (outcomes(PLAIN), outcomes(Way { together: true, ..PLAIN }));
        assert_eq!(plain[0].greedy, of_base.prompts[2].greedy_tokens, "{name}");
        assert!(plain == mixed, "{name}: other bits in a batch");
        assert!(plain[1].logits != plain[0].logits && plain[2].logits != plain[0].logits, "{name}: no delta");
        assert!(plain[1].logits != plain[2].logits, "{name}: one delta");
    }
}

/// On the host as on the device, adapters are kept in one type.
#[test]
fn the_host_keeps_the_devices_type() {
    let (Some(base), Some(adapter)) = (folders::zoo("llama"), folders::zoo("lora-llama-r8-all")) else { return };
    let bytes = |computed, kept| {
        let runner = load(&base, Setup::new(computed), LoraOptions { dtype: kept, ..ROOM });
        runner.adapter_layout().expect("room").read(&adapter).expect("an adapter").bytes()
    };
    let whole = bytes(DType::F32, None);
    assert_eq!(bytes(DType::F32, Some(DType::F16)), whole / 2);
    assert_eq!(bytes(DType::Bf16, None), whole / 2);
    assert_eq!(bytes(DType::Bf16, Some(DType::F32)), whole);
}

/// What an adapter's folder is refused with.
fn refusal(base: &str, room: LoraOptions, dir: &Path) -> Option<String> {
    let runner = load(&folders::zoo(base)?, Setup::new(DType::F32), room);
    let error: AdapterError = runner.adapter_layout().expect("room").read(dir).expect_err("a refusal");
    Some(error.to_string())
}

#[test]
fn refusals_name_the_tensor() {
    let Some(all) = folders::zoo("lora-llama-r16-all") else { return };
    let check = |base: &str, room, dir: &Path, words: &[&str]| {
        let Some(error) = refusal(base, room, dir) else { return };
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    check("llama", LoraOptions { max_rank: 8, ..ROOM }, &all, &["lora_A.weight", "rank 16", "--max-lora-rank 8"]);
    check("qwen2", ROOM, &all, &["layers.0.mlp.down_proj", "shape", "this model needs"]);
    check("gpt2", ROOM, &all, &["layers.0.mlp.down_proj", "no linear layer of this model"]);
    let dir = tempfile::tempdir().expect("a folder");
    check("llama", ROOM, dir.path(), &["adapter_config.json"]);
    std::fs::copy(all.join("adapter_config.json"), dir.path().join("adapter_config.json")).expect("copied");
    check("llama", ROOM, dir.path(), &["adapter_model.safetensors"]);
    let bytes = std::fs::read(all.join("adapter_model.safetensors")).expect("weights");
    let file = dir.path().join("adapter_model.safetensors");
    std::fs::write(&file, &bytes[..bytes.len() - 7]).expect("written");
    check("llama", ROOM, dir.path(), &["adapter_model.safetensors"]);
    let mut broken = bytes.clone();
    let end = broken.len() - 2;
    broken[end..].copy_from_slice(&[0x80, 0x7f]);
    std::fs::write(&file, &broken).expect("written");
    check("llama", ROOM, dir.path(), &["not finite", "lora_"]);
}
