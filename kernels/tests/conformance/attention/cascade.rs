//! Decoding sequences that share the first blocks of their tables, which a device may read once for all of them
//! (cascade attention): the same results, whichever of them share, and however many tokens.

use super::{Case, Extras, Part, Query, World, check_sharing, reference, rounded_row, tolerance};
use crate::{backends, begin_rows, check, gpu};
use kernels::ops::{
    Act, Attention, Backend, Batch, CaptureOwner, CaptureSize, DType, Heads, KvDType, KvScales, Sequence,
};
use kernels_cuda::{CascadeAttention, CudaOptions};

/// The first GPU, if there is one, that attends in a cascade as it is told.
fn gpu_with(cascade: CascadeAttention) -> Option<Box<dyn Backend>> {
    let has_gpu = backends().iter().any(|backend| backend.memory().is_some());
    has_gpu.then(|| gpu::open(&CudaOptions { cascade, ..gpu::options() }))
}

/// All backends, the GPU with cascades wherever they can be.
pub(super) fn cascading() -> Vec<Box<dyn Backend>> {
    let mut all = backends();
    all.retain(|backend| backend.memory().is_none());
    all.extend(gpu_with(CascadeAttention::Always));
    all
}

/// `count` sequences that share `shared` tokens and have some of their own, in turn, before their row.
pub(super) fn over_one_prefix(count: usize, shared: usize, own: &[usize]) -> (Vec<Part>, Vec<usize>) {
    let part = |sequence: usize| Part { sequence, start: shared + own[sequence % own.len()], rows: 1 };
    ((0..count).map(part).collect(), vec![shared; count])
}

#[test]
fn sequences_over_one_prefix() {
    let mut backends = cascading();
    let shapes = [(8, 2, 64), (3, 3, 32), (7, 1, 32), (8, 2, 128), (4, 2, 96), (2, 1, 256), (12, 2, 80), (20, 1, 112)];
    // Prefixes of one tile of keys, of several, and of some that do not end a tile; rows of one unit and of several.
    let prefixes = [(2, 16, [0, 1, 40]), (3, 64, [0, 0, 0]), (5, 320, [17, 0, 90]), (9, 208, [1, 15, 16])];
    for (index, (q, kv, dim)) in shapes.into_iter().enumerate() {
        let heads = Heads { q, kv, dim, v_dim: dim };
        for (count, shared, own) in prefixes {
            let (parts, shared) = over_one_prefix(count, shared, &own);
            let (acts, extras) = ([DType::Bf16, DType::F16][index % 2], &Extras::default());
            let case = Case { heads, block_size: 16, dtype: acts.into(), acts, parts: &parts, extras };
            check_sharing(&mut backends, &case, &shared);
        }
    }
}

/// Units of many rows, parts of long prefixes, and blocks larger than a tile of keys.
#[test]
fn many_sequences_and_long_prefixes() {
    let mut backends = cascading();
    for (count, shared, block_size, (q, kv)) in
        [(64, 256, 16, (4, 1)), (33, 512, 32, (9, 1)), (2, 2048, 16, (2, 2)), (6, 1280, 256, (4, 2))]
    {
        let heads = Heads { q, kv, dim: 32, v_dim: 32 };
        let (parts, shared) = over_one_prefix(count, shared, &[3, 0, 33, 1]);
        let (dtype, acts) = (DType::Bf16.into(), DType::Bf16);
        let case = Case { heads, block_size, dtype, acts, parts: &parts, extras: &Extras::default() };
        check_sharing(&mut backends, &case, &shared);
    }
}

/// Members that share more than all do, strangers, and prompts beside them.
#[test]
fn groups_among_other_sequences() {
    let mut backends = cascading();
    let (starts, rows) = ([400, 33, 350, 390, 200, 0, 370, 401], [1, 1, 1, 1, 9, 1, 1, 2]);
    let shared = [320, 0, 320, 384, 160, 0, 336, 320];
    let parts: Vec<Part> =
        starts.iter().zip(rows).enumerate().map(|(sequence, (&start, rows))| Part { sequence, start, rows }).collect();
    for heads in [Heads { q: 8, kv: 2, dim: 64, v_dim: 64 }, Heads { q: 4, kv: 4, dim: 32, v_dim: 48 }] {
        for (cache, acts) in [(KvDType::E4m3, DType::F16), (DType::Bf16.into(), DType::Bf16)] {
            let extras = &Extras::default();
            let case = Case { heads, block_size: 16, dtype: cache, acts, parts: &parts, extras };
            check_sharing(&mut backends, &case, &shared);
        }
    }
}

/// What layers do beside plain attention: some of it rules a cascade out, and results are the same.
#[test]
fn extras_over_one_prefix() {
    let mut backends = cascading();
    let (sinks, slopes) = (vec![0.5, -2.0, 3.0, 0.0], vec![0.5, 0.25, 0.125, 0.0625]);
    let scales = KvScales { key: 0.013, value: 0.3 };
    let head_scales = Some([vec![0.7, 1.9], vec![1.2, 0.6]]);
    let heads = Heads { q: 4, kv: 2, dim: 64, v_dim: 64 };
    let (parts, shared) = over_one_prefix(5, 272, &[30, 0, 7]);
    for extras in &[
        Extras { sinks: Some(sinks), ..Extras::default() },
        Extras { alibi: Some(slopes), ..Extras::default() },
        Extras { soft_cap: Some(2.0), ..Extras::default() },
        Extras { window: Some(100), ..Extras::default() },
        Extras { scales, head_scales, ..Extras::default() },
    ] {
        for (dtype, acts) in [(KvDType::E4m3, DType::Bf16), (DType::Bf16.into(), DType::Bf16)] {
            if extras.head_scales.is_some() && dtype != KvDType::E4m3 {
                continue;
            }
            check_sharing(&mut backends, &Case { heads, block_size: 16, dtype, acts, parts: &parts, extras }, &shared);
        }
    }
}

const HEADS: Heads = Heads { q: 8, kv: 2, dim: 64, v_dim: 64 };
const BLOCK: usize = 16;
const TYPE: DType = DType::Bf16;
/// Sequences of the steps that are looked at, and tokens of the longest.
const SEQUENCES: usize = 8;
const TOKENS: usize = 448;

/// Sequences whose tables can share any number of blocks of the first one's, and buffers for a row of each.
struct Sharing {
    backend: Box<dyn Backend>,
    world: World,
    qkv: Act,
    out: Act,
}

/// Rows of a step: of how many sequences, which share how many tokens.
#[derive(Clone, Copy, Debug)]
struct Step {
    rows: usize,
    shared: usize,
}

impl Sharing {
    fn new(mut backend: Box<dyn Backend>) -> Self {
        let world = World::new(&mut *backend, HEADS, BLOCK, TYPE, &[TOKENS; SEQUENCES]);
        let world = World { acts: TYPE, ..world };
        let width = world.width();
        let parts: Vec<Part> =
            (0..SEQUENCES).map(|sequence| Part { sequence, start: 0, rows: Self::start(sequence) }).collect();
        world.step(&mut *backend, &parts, |sequence, at| rounded_row(width, sequence, at, TYPE));
        let qkv = backend.new_rounded_act(SEQUENCES, width, TYPE);
        let out = backend.new_rounded_act(SEQUENCES, HEADS.q * HEADS.v_dim, TYPE);
        backend.set_slots(SEQUENCES, 64);
        Self { backend, world, qkv, out }
    }

    /// Tokens of a sequence before its row.
    fn start(sequence: usize) -> usize {
        TOKENS - 1 - 3 * sequence
    }

    /// Begins a step, after the rows of its sequences were left where it looks for them.
    fn with_batch<T>(&mut self, step: Step, run: impl FnOnce(&mut Self, Batch<'_>) -> T) -> T {
        let Step { rows, shared } = step;
        let width = self.world.width();
        begin_rows(&mut *self.backend, SEQUENCES);
        let values: Vec<f32> =
            (0..SEQUENCES).flat_map(|sequence| rounded_row(width, sequence, Self::start(sequence), TYPE)).collect();
        self.backend.host_mut(self.qkv).copy_from_slice(&values);
        self.backend.host_mut(self.out).fill(f32::NAN);
        let blocks = &self.world.blocks;
        let table = |sequence: usize| {
            let (head, own) = (&blocks[0][..shared / BLOCK], &blocks[sequence][shared / BLOCK..]);
            [[head, own].concat()]
        };
        let tables: Vec<[Vec<u32>; 1]> = (0..rows).map(table).collect();
        let sequence = |slot: usize| Sequence {
            first_row: slot,
            num_rows: 1,
            start: Self::start(slot),
            tables: &tables[slot],
            slot,
        };
        let sequences: Vec<Sequence<'_>> = (0..rows).map(sequence).collect();
        let positions: Vec<u32> = (0..rows).map(|sequence| Self::start(sequence) as u32).collect();
        run(self, Batch { tokens: &positions, positions: &positions, sequences: &sequences })
    }

    fn attend(&mut self, window: Option<usize>) {
        let layer = Attention { window, ..Attention::causal(HEADS, 0.125) };
        self.backend.rope_and_cache(self.qkv, HEADS, None, self.world.kv);
        self.backend.attention(self.qkv, layer, self.world.kv, None, self.out);
    }

    fn end(&mut self) {
        let ticket = self.backend.end_step(self.out);
        self.backend.take(ticket, &mut Vec::new());
    }

    /// The kernels of a step.
    fn kernels(&mut self, step: Step, window: Option<usize>) -> Vec<String> {
        self.with_batch(step, |this, batch| {
            this.backend.begin(batch);
            this.backend.start_profile();
            this.attend(window);
            this.end();
            this.backend.end_profile().into_iter().map(|timing| timing.name).collect()
        })
    }

    /// Captures every step that is to be, as often as it is.
    fn capture(&mut self) {
        while let Some(CaptureSize { rows, has_run, is_ready }) = self.backend.next_capture(OWNER) {
            if !has_run && is_ready {
                self.dummy_run(rows);
                self.end();
            }
            if has_run || is_ready {
                self.backend.begin_capture();
                self.dummy_run(rows);
                self.backend.end_step(self.out);
                self.backend.end_capture().expect("a step that can be captured");
            }
            while self.backend.warm_up() {}
        }
    }

    fn dummy_run(&mut self, rows: usize) {
        let zeros = vec![0; rows];
        self.backend.begin_padded(OWNER, Batch { tokens: &zeros, positions: &zeros, sequences: &[] });
        self.attend(None);
    }

    /// Runs a step and checks all of it; whether it was replayed.
    fn check(&mut self, step: Step) -> bool {
        let replayed = self.with_batch(step, |this, batch| {
            let replayed = this.backend.replay_pass(OWNER, batch);
            if !replayed {
                this.backend.begin_padded(OWNER, batch);
                this.attend(None);
            }
            this.end();
            replayed
        });
        let got = self.backend.read(self.out);
        let width = self.world.width();
        for sequence in 0..step.rows {
            let own = |at: usize| if at < step.shared { 0 } else { sequence };
            let rows: Vec<Vec<f32>> =
                (0..=Self::start(sequence)).map(|at| rounded_row(width, own(at), at, TYPE)).collect();
            for head in 0..HEADS.q {
                let query = Query { position: Self::start(sequence), heads: HEADS, head };
                let want = reference(&rows, query, 0.125, &Extras::default());
                let at = (sequence * HEADS.q + head) * HEADS.v_dim;
                let allowed = |index: usize| tolerance(TYPE.into(), TYPE) * want[index].abs().max(1.0);
                let what = format!("{step:?}, replayed: {replayed}, sequence {sequence}, head {head}");
                check(&what, &got[at..at + HEADS.v_dim], &want, allowed);
            }
        }
        replayed
    }
}

const OWNER: CaptureOwner = CaptureOwner(0);

/// A captured step reads who shares what from the batch: another prefix each time, and none between them.
#[test]
fn captured_steps_follow_the_prefix() {
    let Some(backend) = gpu_with(CascadeAttention::Always) else { return };
    let mut sharing = Sharing::new(backend);
    sharing.backend.set_capture_sizes(OWNER, &[4, SEQUENCES], 1);
    let steps = [(4, 320), (4, 0), (3, 160), (8, 416), (7, 32), (8, 0), (4, 320), (2, 400), (4, 64)];
    let steps = steps.map(|(rows, shared)| Step { rows, shared });
    for step in steps {
        assert!(!sharing.check(step), "{step:?} was captured before it ran");
    }
    sharing.capture();
    for step in steps.into_iter().chain(steps.into_iter().rev()) {
        assert!(sharing.check(step), "{step:?} was not captured");
    }
}

#[test]
fn only_steps_that_share_attend_in_a_cascade() {
    const STEP: Step = Step { rows: 4, shared: 320 };
    for (cascade, step, window, expected) in [
        (CascadeAttention::Always, STEP, None, true),
        (CascadeAttention::Always, STEP, Some(100), false),
        (CascadeAttention::Always, Step { shared: 0, ..STEP }, None, false),
        (CascadeAttention::Always, Step { rows: 1, ..STEP }, None, false),
        // A megabyte read again and again is no reason.
        (CascadeAttention::Paying, STEP, None, false),
        (CascadeAttention::Never, STEP, None, false),
    ] {
        let Some(backend) = gpu_with(cascade) else { return };
        let kernels = Sharing::new(backend).kernels(step, window);
        let found = kernels.iter().any(|name| name.starts_with("attention_cascade"));
        // A device that does not tell the time names none.
        assert!(kernels.is_empty() || found == expected, "{cascade:?} {step:?} window {window:?}: {kernels:?}");
    }
}
