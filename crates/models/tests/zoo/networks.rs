//! Several networks on one device, and one model's layers on several devices: the same bits as a model alone on one.

mod test_runners;

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;

use collectives::{Collective, CollectiveError, Solo, Threads};
use kernels::ops::{Batch, DType, Sequence};
use kernels::sample::{SampleParams, SampleRow, last_token};
use models::{Device, ForwardError, LoadError, LoadOptions, Network, NetworkHead, Placement, Stage, load_network};

use crate::engine::{
    BLOCK_SIZE, MEMORY, On, Outcome, PLAIN, Script, Setup, Wanted, Way, device, load, options, run, start, step,
};
use crate::reference;
use crate::{adapters, engine, folders};
use test_runners::{Pipeline, Shared};

/// Ways of running that exercise caches: chunks, ragged batches, scattered blocks.
const WAYS: [Way; 3] = [
    PLAIN,
    Way { together: true, chunk: 16, scattered: true, wanted: Wanted::All },
    Way { together: true, chunk: 16, scattered: true, wanted: Wanted::Last },
];

fn greedy_scripts(dir: &Path, steps: usize) -> Vec<Script> {
    let prompts = reference::read(dir).prompts.into_iter();
    prompts.map(|prompt| Script { prompt: prompt.ids, forced: None, steps }).collect()
}

fn load_part(dir: &Path, options: &LoadOptions, device: &mut Device) -> Result<Network, LoadError> {
    let mut last = None;
    let network = load_network(dir, options, device, &mut |progress| last = Some(progress))?;
    let last = last.expect("progress");
    assert_eq!(last.bytes_done, last.bytes_total, "progress ends at the total");
    Ok(network)
}

/// The stages of a model, cut before each of these layers, on a device each.
fn pipeline(dir: &Path, setup: Setup, cuts: &[usize], layers: usize) -> Pipeline {
    pipeline_with(dir, setup, &options(setup), cuts, layers)
}

fn pipeline_with(dir: &Path, setup: Setup, all: &LoadOptions, cuts: &[usize], layers: usize) -> Pipeline {
    let bounds: Vec<usize> = [0].into_iter().chain(cuts.iter().copied()).chain([layers]).collect();
    let count = bounds.len() - 1;
    let stages = bounds.windows(2).enumerate().map(|(index, bounds)| {
        let stage = Stage { index, count, layers: Some(bounds[0]..bounds[1]) };
        let placement = Placement { stage, ..all.placement.clone() };
        let mut device = device(setup);
        let network = load_part(dir, &LoadOptions { placement, ..all.clone() }, &mut device).expect("a stage");
        (device, network)
    });
    Pipeline::new(stages.collect())
}

fn same(what: &str, whole: &[Outcome], other: &[Outcome]) {
    for (prompt, (whole, other)) in whole.iter().zip(other).enumerate() {
        assert_eq!(whole.greedy, other.greedy, "{what}, prompt {prompt}");
        assert!(whole.logits == other.logits, "{what}, prompt {prompt}: logits differ");
    }
}

/// Runs a model whole and cut in two before every layer, and in as many stages as it has layers.
fn staged(folder: &str) {
    let Some(dir) = folders::zoo(folder) else { return };
    let layers = models::read_spec(&dir).expect("a model").layers.len();
    let scripts = greedy_scripts(&dir, 8);
    let cpu = Setup::new(DType::F32);
    let dtypes: &[DType] = if cpu.on == On::Cuda { &[DType::F32] } else { &[DType::F32, DType::Bf16] };
    for (&dtype, way) in dtypes.iter().flat_map(|dtype| WAYS.map(|way| (dtype, way))) {
        let setup = Setup::new(dtype);
        let whole = run(&mut *load(&dir, setup).expect("a model"), &mut Solo, &scripts, way);
        let in_two = (1..layers).map(|cut| vec![cut]);
        for cuts in in_two.chain((layers > 2).then(|| (1..layers).collect())) {
            let stages = run(&mut pipeline(&dir, setup, &cuts, layers), &mut Solo, &scripts, way);
            same(&format!("{folder} in {dtype:?} cut at {cuts:?}, {way:?}"), &whole, &stages);
        }
    }
}

#[test]
fn stages_have_their_part_of_adapters() {
    let [Some(dir), Some(adapter)] = ["llama", "lora-llama-r8-all"].map(folders::zoo) else { return };
    staged_adapter(&dir, &adapter);
}

/// Each stage has its layers' part of an adapter: the bits of one stage, in one batch with the base.
pub fn staged_adapter(dir: &Path, adapter: &Path) {
    let layers = models::read_spec(dir).expect("a model").layers.len();
    let setup = Setup::new(DType::F32);
    let scripts: Vec<Script> = (0..2).flat_map(|_| greedy_scripts(dir, 8)).collect();
    let slots: Vec<Option<u32>> = (0..scripts.len()).map(|at| (at < scripts.len() / 2).then_some(1)).collect();
    let options = LoadOptions { lora: Some(adapters::ROOM), ..options(setup) };
    for way in WAYS {
        let mut alone = adapters::load(dir, setup, adapters::ROOM);
        adapters::put(&mut *alone, 1, adapter);
        let whole = adapters::run(&mut *alone, &mut Solo, &scripts, &slots, way);
        let mut stages = pipeline_with(dir, setup, &options, &[1], layers);
        stages.put_adapter(1, adapter);
        let staged = adapters::run(&mut stages, &mut Solo, &scripts, &slots, way);
        same(&format!("{way:?}"), &whole, &staged);
        assert_ne!(whole[0].logits, whole[scripts.len() / 2].logits, "the adapter changes what is computed");
    }
}

/// A stage leaves the tensors of others' layers to them, and knows those of no stage.
#[test]
fn stages_refuse_what_no_stage_has() {
    let [Some(dir), Some(adapter)] = ["llama", "lora-llama-r8-all"].map(folders::zoo) else { return };
    let setup = Setup::new(DType::F32);
    let layers = models::read_spec(&dir).expect("a model").layers.len();
    let options = LoadOptions { lora: Some(adapters::ROOM), ..options(setup) };
    let stages = pipeline_with(&dir, setup, &options, &[1], layers);
    let copy = tempfile::tempdir().expect("a folder");
    std::fs::copy(adapter.join("adapter_config.json"), copy.path().join("adapter_config.json")).expect("copied");
    let mut bytes = std::fs::read(adapter.join("adapter_model.safetensors")).expect("weights");
    let (known, unknown) = (b"layers.0.self_attn.q_proj", b"layers.7.self_attn.q_proj");
    for at in 0..bytes.len() - known.len() {
        if bytes[at..].starts_with(known) {
            bytes[at..at + known.len()].copy_from_slice(unknown);
        }
    }
    std::fs::write(copy.path().join("adapter_model.safetensors"), bytes).expect("written");
    for refusal in stages.refusals(copy.path()) {
        assert!(refusal.contains("layers.7.self_attn.q_proj") && refusal.contains("no linear layer"), "{refusal}");
    }
}

macro_rules! staged {
    ($($test:ident: $folder:expr;)*) => {$(
        #[test]
        fn $test() {
            staged($folder);
        }
    )*};
}

staged! {
    stages_of_cohere2: "cohere2";
    stages_of_deepseek_v3: "deepseek-v3";
    stages_of_falcon: "falcon-40b";
    stages_of_gemma3: "gemma3";
    stages_of_gpt2: "gpt2";
    stages_of_gpt_oss: "gpt-oss";
    stages_of_llama: "llama";
    stages_of_mamba2: "mamba2";
    stages_of_opt_350m: "opt-350m";
    stages_of_qwen3_moe: "qwen3-moe";
    stages_of_qwen3_next: "qwen3-next";
}

/// Two stages of two ranks each.
#[test]
fn stages_are_split_over_ranks_like_the_whole() {
    let Some(dir) = folders::zoo("qwen3-next") else { return };
    let scripts = greedy_scripts(&dir, 6);
    let way = WAYS[1];
    let _alone = engine::one_group_at_a_time();
    let on_ranks = |cuts: &'static [usize]| -> Vec<Vec<Outcome>> {
        thread::scope(|scope| {
            let (dir, scripts) = (&dir, &scripts);
            let ranks = Threads::group(2).into_iter().enumerate().map(|(rank, mut channels)| {
                scope.spawn(move || {
                    let setup = Setup { rank: (rank, 2), ..Setup::new(DType::F32) };
                    let layers = models::read_spec(dir).expect("a model").layers.len();
                    match cuts {
                        [] => run(&mut *load(dir, setup).expect("a rank"), &mut channels, scripts, way),
                        cuts => run(&mut pipeline(dir, setup, cuts, layers), &mut channels, scripts, way),
                    }
                })
            });
            let ranks: Vec<_> = ranks.collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
        })
    };
    let (whole, stages) = (on_ranks(&[]), on_ranks(&[2]));
    assert_eq!(stages[0], stages[1], "ranks differ");
    same("qwen3-next over two stages of two ranks", &whole[0], &stages[0]);
}

/// A stage has the weights and the memory of its layers, and the groups of the whole.
#[test]
fn stages_take_their_layers_share() {
    let Some(dir) = folders::zoo("gemma3") else { return };
    let setup = Setup::new(DType::F32);
    let part = |index, layers: Range<usize>| {
        let placement = Placement { stage: Stage { index, count: 2, layers: Some(layers) }, ..Placement::WHOLE };
        let mut device = device(setup);
        let network = load_part(&dir, &LoadOptions { placement, ..options(setup) }, &mut device).expect("a stage");
        (network.weight_bytes(), network.cache(), network.generates())
    };
    let mut alone = device(setup);
    let whole = load_part(&dir, &options(setup), &mut alone).expect("a model");
    let (first, last) = (part(0, 0..1), part(1, 1..4));
    assert!(first.0 < last.0 && last.0 < whole.weight_bytes());
    assert!(!first.2 && !last.2 && whole.generates());
    let cache = whole.cache();
    let kept = |index: usize| first.1.groups[index].layers + last.1.groups[index].layers;
    for (index, group) in cache.groups.iter().enumerate() {
        assert_eq!((first.1.groups[index].window, last.1.groups[index].window), (group.window, group.window));
        assert_eq!(kept(index), group.layers);
    }
    // Four groups share one memory, of which each stage has its own.
    assert_eq!((first.1.place_bytes, last.1.place_bytes), (cache.place_bytes, cache.place_bytes));
}

#[test]
fn what_stages_are_given_is_checked() {
    let Some(dir) = folders::zoo("llama") else { return };
    let setup = Setup::new(DType::F32);
    let stage = |index, count, layers| Placement { stage: Stage { index, count, layers }, ..Placement::WHOLE };
    let attempt = |placement| load_part(&dir, &LoadOptions { placement, ..options(setup) }, &mut device(setup));
    for refused in [stage(1, 1, None), stage(0, 3, None), stage(1, 2, Some(0..2)), stage(0, 2, Some(0..2))] {
        assert!(matches!(attempt(refused.clone()), Err(LoadError::Option { .. })), "{refused:?}");
    }
    let other = LoadOptions { placement: Placement::rank(1, 2), ..options(setup) };
    assert!(matches!(load_part(&dir, &other, &mut device(setup)), Err(LoadError::Option { .. })));
    let mut device = device(setup);
    let last = LoadOptions { placement: stage(1, 2, None), ..options(setup) };
    let mut network = load_part(&dir, &last, &mut device).expect("a stage");
    network.allocate(&mut device, MEMORY);
    let tables = [vec![0]];
    let sequence = Sequence { first_row: 0, num_rows: 1, start: 0, tables: &tables, slot: 0 };
    let batch = Batch { tokens: &[1], positions: &[0], sequences: &[sequence] };
    let hidden = network.spec().hidden_size;
    for received in [None, Some(&vec![0.0; hidden + 1][..])] {
        let step = models::Step { batch, received, output_rows: &[0], means: &[], token_types: &[] };
        let refused = network.forward(&mut device, step, &mut Solo).err();
        assert!(matches!(refused, Some(ForwardError::Received { expected, .. }) if expected == hidden), "{refused:?}");
    }
    // A runner of it has no stage to take rows from.
    let backend = setup.on.backend(setup.rank);
    let mut alone = models::load(&dir, &last, backend, &mut |_| {}).expect("a stage");
    alone.runner.allocate(MEMORY);
    let refused = alone.runner.forward(batch, &[0], &mut Solo).err();
    assert!(matches!(refused, Some(ForwardError::Collective(CollectiveError::NoStage { .. }))), "{refused:?}");
}

/// The model that ships and its draft on one device, a step of one after a step of the other: what each gives alone.
#[test]
fn a_target_and_its_draft_share_a_device() {
    let setup = Setup::new(DType::F32);
    let dirs = ["model", "draft"].map(folders::shipped);
    let prompt = |seed: u32, len: u32| (0..len).map(|i| (i * i + 31 * seed + 7) % 4000).collect();
    let script = |seed: u32, len: u32| Script { prompt: prompt(seed, len), forced: None, steps: 12 };
    let scripts = [vec![script(1, 5), script(2, 40)], vec![script(3, 33), script(1, 5)]];
    for way in [WAYS[1], WAYS[2]] {
        let alone =
            |index: usize| run(&mut *load(&dirs[index], setup).expect("a model"), &mut Solo, &scripts[index], way);
        let alone = [alone(0), alone(1)];
        let device = Arc::new(Mutex::new(device(setup)));
        let mut runners = [0, 1].map(|index| {
            let network = load_part(&dirs[index], &options(setup), &mut device.lock().unwrap()).expect("a network");
            Shared::new(device.clone(), network)
        });
        let mut runs = [start(&mut runners[0], &scripts[0], way), start(&mut runners[1], &scripts[1], way)];
        let mut one_more = |index: usize| step(&mut runners[index], &mut Solo, &mut runs[index], way);
        while [one_more(0), one_more(1)].contains(&true) {}
        for (index, runs) in runs.into_iter().enumerate() {
            let outcomes: Vec<Outcome> = runs.into_iter().map(|run| run.outcome).collect();
            same(["the model", "its draft"][index], &alone[index], &outcomes);
        }
    }
}

/// A greedy sequence whose tokens the device samples, each step submitted before the token of the one before is known.
struct Decoding {
    network: Network,
    slot: u32,
    tables: Vec<Vec<u32>>,
    prompt: Vec<u32>,
    submitted: usize,
}

impl Decoding {
    fn new(device: &mut Device, mut network: Network, slot: u32, prompt: &[u32]) -> Self {
        network.allocate(device, MEMORY);
        let blocks = (prompt.len() + 32).div_ceil(BLOCK_SIZE) as u32;
        let tables =
            (0..network.cache().groups.len() as u32).map(|group| (group * blocks..(group + 1) * blocks).collect());
        Self { tables: tables.collect(), network, slot, prompt: prompt.to_vec(), submitted: 0 }
    }

    fn submit(&mut self, device: &mut Device) -> kernels::sample::Ticket {
        let last = [last_token(self.slot)];
        let (tokens, start) = match self.submitted {
            0 => (&self.prompt[..], 0),
            step => (&last[..], self.prompt.len() + step - 1),
        };
        self.submitted += 1;
        let positions: Vec<u32> = (start as u32..).take(tokens.len()).collect();
        let rows = Sequence { first_row: 0, num_rows: tokens.len(), start, tables: &self.tables, slot: 0 };
        let batch = Batch { tokens, positions: &positions, sequences: &[rows] };
        let step = models::Step {
            batch,
            received: None,
            output_rows: &[tokens.len() as u32 - 1],
            means: &[],
            token_types: &[],
        };
        let row = SampleRow { row: 0, slot: self.slot, uniform: 0.0, hold_stops: false };
        self.network.submit(device, step, &[row], &mut Solo).expect("a step")
    }
}

fn take(device: &mut Device, ticket: kernels::sample::Ticket) -> u32 {
    let mut sampled = Vec::new();
    device.take(ticket, &mut sampled).expect("tokens");
    sampled.pop().expect("a token").token
}

/// What devices sample: both networks' steps in flight at once, a slot each. Where the device captures steps, those of
/// both are captured, at sizes of their own, and neither takes the other's.
#[test]
fn networks_of_a_device_sample_in_slots_of_their_own() {
    let (setup, prompt, steps) = (Setup::new(DType::F32), [5, 9, 2, 77, 1033], 10);
    let dirs = ["model", "draft"].map(folders::shipped);
    let alone = |dir: &Path| {
        let script = Script { prompt: prompt.to_vec(), forced: None, steps };
        run(&mut *load(dir, setup).expect("a model"), &mut Solo, &[script], PLAIN).remove(0).greedy
    };
    let mut device = device(setup);
    let networks = dirs.each_ref().map(|dir| load_part(dir, &options(setup), &mut device).expect("a network"));
    let vocab = networks[0].spec().vocab_size;
    device.set_slots(4, vocab);
    networks[0].set_capture_sizes(&mut device, &[1, 2]);
    networks[1].set_capture_sizes(&mut device, &[1, 4]);
    let params = SampleParams::default();
    assert!(networks.iter().all(|network| network.can_sample(&device, &params)));
    let mut slots = [1, 2].into_iter();
    let mut both = networks.map(|network| {
        let slot = slots.next().expect("a slot");
        device.set_slot(slot, &params, &[]);
        Decoding::new(&mut device, network, slot, &prompt)
    });
    let mut tokens = [Vec::new(), Vec::new()];
    for step in 0..steps {
        let tickets = both.each_mut().map(|decoding| decoding.submit(&mut device));
        // The draft's step came last.
        assert!(matches!(both[0].network.outputs(&mut device), Err(ForwardError::OutputsGone)));
        assert_eq!(both[1].network.outputs(&mut device).expect("logits").rows, 1);
        for (tokens, ticket) in tokens.iter_mut().zip(tickets) {
            tokens.push(take(&mut device, ticket));
        }
        if step == 4 {
            both.iter_mut().for_each(|decoding| capture(&mut device, &mut decoding.network));
            assert!(both.iter().all(|decoding| decoding.network.next_capture(&device).is_none()));
        }
    }
    assert_eq!(tokens, dirs.each_ref().map(|dir| alone(dir)));
    // Slots of logits of another width are nobody's to sample in.
    device.set_slots(4, vocab + 1);
    assert!(!both[0].network.can_sample(&device, &params));
}

/// Captures whatever steps the device captures.
fn capture(device: &mut Device, network: &mut Network) {
    let group: &mut dyn Collective = &mut Solo;
    while let Some(size) = network.next_capture(device) {
        if size.has_run || size.is_ready {
            network.capture(device, size, group).expect("a step").expect("a capture");
        }
        while device.warm_up() {}
    }
}

/// An encoder's hidden states and a decoder's logits from one device.
#[test]
fn a_network_without_head_runs_beside_one_with() {
    let Some(dir) = folders::zoo("llama") else { return };
    let setup = Setup::new(DType::F32);
    let mut device = device(setup);
    let mut decoder = load_part(&dir, &options(setup), &mut device).expect("a network");
    let hidden = LoadOptions { head: NetworkHead::Hidden, ..options(setup) };
    let mut encoder = load_part(&dir, &hidden, &mut device).expect("a network");
    [&mut decoder, &mut encoder].into_iter().for_each(|network| network.allocate(&mut device, MEMORY));
    let tables = [vec![3, 1]];
    let sequence = Sequence { first_row: 0, num_rows: 4, start: 0, tables: &tables, slot: 0 };
    let batch = Batch { tokens: &[9, 4, 7, 7], positions: &[0, 1, 2, 3], sequences: &[sequence] };
    let step = models::Step { batch, received: None, output_rows: &[1, 3], means: &[], token_types: &[] };
    let logits = decoder.forward(&mut device, step, &mut Solo).expect("a step").data.to_vec();
    let states = encoder.forward(&mut device, step, &mut Solo).expect("a step");
    assert_eq!((states.rows, states.width), (2, encoder.spec().hidden_size));
    let mut observed = Vec::new();
    let observer = &mut |_: usize, x: &[f32]| observed = x.to_vec();
    decoder.forward_observed(&mut device, step, &mut Solo, observer).expect("a step");
    let width = encoder.spec().hidden_size;
    let states = encoder.forward(&mut device, step, &mut Solo).expect("a step");
    assert_eq!((states.row(0), states.row(1)), (&observed[width..2 * width], &observed[3 * width..]));
    assert!(!encoder.generates() && encoder.weight_bytes() < decoder.weight_bytes());
    assert_eq!(decoder.forward(&mut device, step, &mut Solo).expect("a step").data, logits);
}
