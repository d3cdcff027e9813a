//! The smallest engine that can run a model in every way a scheduler might: chunks, ragged batches, scattered blocks.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use collectives::Collective;
use kernels::cpu::{CpuBackend, CpuOptions, Isa};
use kernels::ops::{Backend, Batch, DType, Sequence};
use kernels_cuda::{AllReduce, CudaOptions};
use models::{
    ActivationRounding, Device, LoadError, LoadFormat, LoadOptions, Memory, Model, NetworkHead, Placement, Runner,
    StateOptions,
};

use crate::gpu;

pub const BLOCK_SIZE: usize = 8;
const NUM_BLOCKS: usize = 512;
const MAX_ROWS: usize = 256;
pub const MEMORY: Memory = Memory { num_blocks: NUM_BLOCKS, block_size: BLOCK_SIZE, max_sequences: 8 };

/// How prompts are run.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// All prompts in one batch, or one after the other.
    pub together: bool,
    /// Most rows of a sequence in a step.
    pub chunk: usize,
    /// Blocks in a scattered order.
    pub scattered: bool,
    /// Logits of all rows, or only of those that a next token comes from.
    pub wanted: Wanted,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    All,
    Last,
}

/// Each prompt alone, in one piece.
pub const PLAIN: Way = Way { together: false, chunk: MAX_ROWS, scattered: false, wanted: Wanted::All };

/// What to run: a prompt, then either given tokens (teacher forcing) or `steps` greedy ones.
#[derive(Clone)]
pub struct Script {
    pub prompt: Vec<u32>,
    pub forced: Option<Vec<u32>>,
    pub steps: usize,
}

/// What came out.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Of each position that was wanted, in order; the last `steps` are those that the output came from.
    pub logits: Vec<Vec<f32>>,
    /// The likeliest token of each step.
    pub greedy: Vec<u32>,
}

/// On what a model runs.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub dtype: DType,
    /// Rank and ranks.
    pub rank: (usize, usize),
    /// Longest sequence served.
    pub max_len: Option<usize>,
    pub activations: ActivationRounding,
    pub states: StateOptions,
    pub on: On,
}

/// A device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum On {
    Cpu(CpuOptions),
    Cuda,
}

impl On {
    /// One thread with each instruction set, worst first; and the GPU where there is one.
    pub fn all() -> Vec<Self> {
        let only = only();
        let mut all = Vec::new();
        if only.as_deref() != Some("cuda") {
            all.extend(Isa::available().into_iter().map(|isa| Self::Cpu(CpuOptions { threads: 1, isa: Some(isa) })));
        }
        if only.as_deref() != Some("cpu") && gpu::backend(only.is_some()).is_some() {
            all.push(Self::Cuda);
        }
        all
    }

    /// Ranks have a GPU each where there are enough; else they share the first, and the host carries what they
    /// exchange.
    pub fn backend(self, (rank, size): (usize, usize)) -> Box<dyn Backend> {
        match self {
            Self::Cpu(options) => Box::new(CpuBackend::new(options)),
            Self::Cuda if size > 1 && kernels_cuda::gpus().is_ok_and(|gpus| gpus as usize >= size) => {
                let ranks = Some(AllReduce::Auto);
                gpu::open(&CudaOptions { ordinal: rank as u32, ranks, ..gpu::options() })
            }
            Self::Cuda => gpu::backend(true).expect("a GPU"),
        }
    }
}

/// Holds up other groups of ranks. A kernel that waits for another rank holds up what other tests of this process do on
/// its GPU, and so perhaps that rank: two groups on the same two GPUs may wait for each other for ever.
pub fn one_group_at_a_time() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn only() -> Option<String> {
    std::env::var("QUIRE_TEST_DEVICE").ok()
}

impl Setup {
    /// One rank on one thread with the best instructions there are, or on the GPU if only that is to be tested.
    pub fn new(dtype: DType) -> Self {
        let cpu = On::Cpu(CpuOptions { threads: 1, isa: Some(Isa::detect()) });
        let activations = ActivationRounding::None;
        Self {
            dtype,
            rank: (0, 1),
            max_len: None,
            activations,
            states: StateOptions::default(),
            on: if only().as_deref() == Some("cuda") { On::Cuda } else { cpu },
        }
    }

    pub fn on(self, on: On) -> Self {
        Self { on, ..self }
    }
}

/// How models are loaded.
pub fn options(setup: Setup) -> LoadOptions {
    LoadOptions {
        dtype: Some(setup.dtype),
        kv_cache_dtype: None,
        states: setup.states,
        placement: Placement::rank(setup.rank.0, setup.rank.1),
        head: NetworkHead::Stored,
        format: LoadFormat::Auto,
        quantization: None,
        activations: setup.activations,
        seed: 0,
        max_len: setup.max_len,
        block_size: 16,
        max_rows: MAX_ROWS,
        max_logit_rows: MAX_ROWS,
        threads: 2,
        lora: None,
    }
}

/// A device without networks.
pub fn device(setup: Setup) -> Device {
    Device::new(setup.on.backend(setup.rank), Placement::rank(setup.rank.0, setup.rank.1).tp).expect("a device")
}

/// What runs a model, or a rank's part of it.
pub fn load(dir: &Path, setup: Setup) -> Result<Box<dyn Runner>, LoadError> {
    load_model(dir, setup).map(|model| model.runner)
}

/// Loads a model, or a rank's part of it.
pub fn load_model(dir: &Path, setup: Setup) -> Result<Model, LoadError> {
    let mut progress = Vec::new();
    let model = models::load(dir, &options(setup), setup.on.backend(setup.rank), &mut |p| progress.push(p))?;
    assert!(progress.windows(2).all(|pair| pair[0].bytes_done <= pair[1].bytes_done), "progress goes back");
    let last = progress.last().expect("progress");
    assert_eq!(last.bytes_done, last.bytes_total, "progress ends at the total");
    Ok(model)
}

/// Runs all scripts.
pub fn run(model: &mut dyn Runner, group: &mut dyn Collective, scripts: &[Script], way: Way) -> Vec<Outcome> {
    model.join(group).expect("ranks that meet");
    let mut runs = start(model, scripts, way);
    match way.together {
        true => while step(model, group, &mut runs, way) {},
        false => runs.chunks_mut(1).for_each(|alone| while step(model, group, alone, way) {}),
    }
    runs.into_iter().map(|run| run.outcome).collect()
}

/// Gives a model its memory, and each script its blocks.
pub fn start<'a>(model: &mut dyn Runner, scripts: &'a [Script], way: Way) -> Vec<Run<'a>> {
    model.allocate(MEMORY);
    let mut blocks: Vec<u32> = (0..NUM_BLOCKS as u32).collect();
    if way.scattered {
        // 37 and 512 have no common factor, so this is a permutation without neighbours.
        blocks.iter_mut().for_each(|block| *block = *block * 37 % NUM_BLOCKS as u32);
    }
    let groups = model.cache().groups.len();
    let need = |script: &Script| (script.prompt.len() + script.steps).div_ceil(BLOCK_SIZE);
    let mut tables = |script: &Script| -> Vec<Vec<u32>> {
        (0..groups).map(|_| blocks.split_off(blocks.len() - need(script))).collect()
    };
    scripts.iter().map(|script| Run::new(script, tables(script))).collect()
}

/// A script under way.
pub struct Run<'a> {
    script: &'a Script,
    tokens: Vec<u32>,
    computed: usize,
    /// By group of layers.
    tables: Vec<Vec<u32>>,
    /// Slot of its adapter.
    pub adapter: Option<u32>,
    pub outcome: Outcome,
}

impl<'a> Run<'a> {
    fn new(script: &'a Script, tables: Vec<Vec<u32>>) -> Self {
        let outcome = Outcome { logits: Vec::new(), greedy: Vec::new() };
        Self { script, tokens: script.prompt.clone(), computed: 0, tables, adapter: None, outcome }
    }

    fn done(&self) -> bool {
        self.outcome.greedy.len() == self.script.steps
    }

    /// Takes the logits of the row at `position`.
    fn take(&mut self, position: usize, logits: &[f32]) {
        self.outcome.logits.push(logits.to_vec());
        if position + 1 < self.tokens.len() {
            return;
        }
        let best = argmax(logits);
        let step = self.outcome.greedy.len();
        self.outcome.greedy.push(best);
        self.tokens.push(self.script.forced.as_ref().map_or(best, |forced| forced[step]));
    }
}

/// One step of all that are not done; false, and nothing happens, where all are.
pub fn step(model: &mut dyn Runner, group: &mut dyn Collective, runs: &mut [Run<'_>], way: Way) -> bool {
    if runs.iter().all(Run::done) {
        return false;
    }
    let (mut tokens, mut positions, mut sequences, mut wanted) = (vec![], vec![], vec![], vec![]);
    let mut takers = Vec::new();
    let mut adapters = Vec::new();
    let tables: Vec<Vec<Vec<u32>>> = runs.iter().map(|run| run.tables.clone()).collect();
    for (index, run) in runs.iter().enumerate().filter(|(_, run)| !run.done()) {
        let end = run.tokens.len().min(run.computed + way.chunk);
        let first_row = tokens.len();
        tokens.extend(&run.tokens[run.computed..end]);
        positions.extend(run.computed as u32..end as u32);
        sequences.push(Sequence {
            first_row,
            num_rows: end - run.computed,
            start: run.computed,
            tables: &tables[index],
            slot: index,
        });
        adapters.push(run.adapter);
        let takes = (run.computed..end).filter(|p| way.wanted == Wanted::All || p + 1 == run.tokens.len());
        for position in takes {
            wanted.push((first_row + position - run.computed) as u32);
            takers.push((index, position));
        }
    }
    let rows: Vec<usize> = sequences.iter().map(|sequence| sequence.num_rows).collect();
    let batch = Batch { tokens: &tokens, positions: &positions, sequences: &sequences };
    model.set_adapters(&adapters);
    let logits = model.forward(batch, &wanted, group).expect("a step");
    assert_eq!(logits.rows, wanted.len());
    let unfinished = runs.iter_mut().filter(|run| !run.done());
    unfinished.zip(rows).for_each(|(run, rows)| run.computed += rows);
    for (row, (index, position)) in takers.into_iter().enumerate() {
        runs[index].take(position, logits.row(row));
    }
    true
}

/// The first of the largest.
pub fn argmax(logits: &[f32]) -> u32 {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best }) as u32
}

/// Log-probability of `token`.
pub fn logprob(logits: &[f32], token: u32) -> f32 {
    let max = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = logits.iter().map(|&x| (f64::from(x) - max).exp()).sum();
    (f64::from(logits[token as usize]) - max - sum.ln()) as f32
}

/// The residual stream of a prompt, by layer.
pub fn hidden(model: &mut dyn Runner, group: &mut dyn Collective, prompt: &[u32]) -> Vec<Vec<f32>> {
    model.allocate(MEMORY);
    let positions: Vec<u32> = (0..prompt.len() as u32).collect();
    let groups = model.cache().groups.len();
    let blocks: Vec<u32> = (0..NUM_BLOCKS as u32).collect();
    let tables: Vec<Vec<u32>> = blocks.chunks(NUM_BLOCKS / groups).take(groups).map(<[u32]>::to_vec).collect();
    let sequence = Sequence { first_row: 0, num_rows: prompt.len(), start: 0, tables: &tables, slot: 0 };
    let batch = Batch { tokens: prompt, positions: &positions, sequences: &[sequence] };
    let mut layers = Vec::new();
    model.forward_observed(batch, &[], group, &mut |_, x| layers.push(x.to_vec())).expect("a step");
    layers
}
