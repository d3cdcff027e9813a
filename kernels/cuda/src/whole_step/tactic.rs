//! Chooses between a captured step's graph and one kernel for all of it.

use super::{Planned, WholeStep};
use crate::CudaBackend;
use crate::autotune::measure;
use crate::autotune::tactics::TacticCache;
use crate::fusion::op::Op;
use crate::graph::captures::CapturedStep;
use crate::graph::cuda_graph::Graph;
use crate::jit::cache::digest;
use crate::jit::sources::Source;
use crate::jit::specialization::Special;
use crate::options::WholeSteps;
use crate::runtime::device::{Device, MOMENT};
use kernels::ops::{Batch, KvShape, Sequence};

/// Lengths of the sequences that both are timed on: attention is what depends on them.
const LENGTHS: [usize; 8] = [256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];

/// How often both are timed on a length: what other programs do makes single runs longer.
const TURNS: usize = 4;
const NEVER: [f64; 2] = [f64::INFINITY; 2];

/// Up to which length of its sequence a step is one kernel. On longer ones that loses once it has lost, so lengths are
/// tried by halves; until all is known, it is one kernel where that is known to be faster.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// What it is kept by, where it is measured.
    title: String,
    /// The cache that steps are timed on.
    cache: Option<KvShape>,
    /// Of the lengths that the cache has room for: those on which it wins, and the first on which it is known to lose.
    wins: usize,
    loses: usize,
    /// How many there are.
    count: usize,
    /// Turns taken on the length between them, and the least microseconds of one kernel and of the graph.
    turns: usize,
    least: [f64; 2],
}

impl Choice {
    /// One kernel for all lengths, or for none.
    fn fixed(always: bool) -> Self {
        let wins = if always { LENGTHS.len() } else { 0 };
        let (title, count) = (String::new(), LENGTHS.len());
        Self { title, cache: None, wins, loses: wins, count, turns: 0, least: NEVER }
    }

    /// To be measured on a cache, unless it was before.
    fn open(step: &str, cache: KvShape, tactics: &TacticCache) -> Self {
        let room = cache.num_blocks * cache.block_size;
        let count = LENGTHS.partition_point(|length| *length <= room);
        let title = format!("{step}; {count} lengths");
        let known = tactics.step(&title).filter(|wins| *wins <= count);
        let (wins, loses) = known.map_or((0, count), |wins| (wins, wins));
        Self { title, cache: Some(cache), wins, loses, count, turns: 0, least: NEVER }
    }

    /// The tokens of the longest sequence whose step is to be one kernel.
    pub(crate) fn up_to(&self) -> usize {
        match self.wins {
            all if all == self.count => usize::MAX,
            0 => 0,
            some => LENGTHS[some - 1],
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.wins < self.loses
    }

    /// The length to time next.
    fn next(&self) -> Option<(KvShape, usize)> {
        self.cache.filter(|_| self.is_open()).map(|cache| (cache, LENGTHS[self.middle()]))
    }

    fn middle(&self) -> usize {
        self.wins.midpoint(self.loses)
    }

    /// What one kernel and the graph took on that length, in one turn of several; none: the device cannot say. One
    /// kernel has to be faster by half a hundredth or more.
    fn took(&mut self, micros: Option<[f64; 2]>, tactics: &TacticCache) {
        let [alone, many] = micros.unwrap_or(NEVER);
        self.turns += 1;
        self.least = [self.least[0].min(alone), self.least[1].min(many)];
        if micros.is_some() && self.turns < TURNS {
            return;
        }
        let middle = self.middle();
        let is_faster = self.least[0].is_finite() && self.least[0] * 1.005 <= self.least[1];
        if is_faster {
            self.wins = middle + 1
        } else {
            self.loses = middle
        }
        (self.turns, self.least) = (0, NEVER);
        if !self.is_open() && micros.is_some() {
            tactics.keep_step(&self.title, self.wins);
        }
    }
}

impl CudaBackend {
    /// What to replay the step from that was just captured, and whose operations were collected. Nobody waits for the
    /// kernel to be compiled: the step is captured again once it is.
    pub(crate) fn whole_step(&mut self, graph: Graph) -> CapturedStep {
        let Some(ops) = self.pass.take_step().filter(|_| self.whole_steps != WholeSteps::Never) else {
            return CapturedStep::Graph { graph, awaits: None };
        };
        // The caches of a network have as many blocks each.
        let cache = ops.iter().find_map(|op| if let Op::Attention(op) = op { Some(op.cache.shape) } else { None });
        let Ok(planned) = Planned::new(&self.device.context, &ops) else {
            return CapturedStep::Graph { graph, awaits: None };
        };
        if !self.device.is_compiled(planned.special, MOMENT) {
            return CapturedStep::Graph { graph, awaits: Some(planned.special) };
        }
        let (last, title) = (self.slots.last_tokens(), title(&ops, planned.special));
        let Ok(step) = WholeStep::new(&mut self.device, &mut self.staging, planned, last) else {
            return CapturedStep::Graph { graph, awaits: None };
        };
        let choice = match self.whole_steps {
            WholeSteps::Always => Choice::fixed(true),
            _ => cache.map_or(Choice::fixed(false), |cache| Choice::open(&title, cache, &self.matmul.tactics)),
        };
        CapturedStep::Either { step: Box::new(step), graph, choice }
    }

    /// Times a step with a choice that is open, once on a sequence of one length; whether there was one.
    pub(crate) fn choose_whole_step(&mut self) -> bool {
        if !measure::is_possible(&self.device) {
            return false;
        }
        let Some((owner, mut captured)) = self.captures.take_undecided() else { return false };
        self.padded_for = Some(owner);
        if let CapturedStep::Either { step, graph, choice } = &mut captured
            && let Some((cache, length)) = choice.next()
        {
            let micros = self.time_both(cache, length, step, graph);
            choice.took(micros, &self.matmul.tactics);
        }
        self.captures.put_back(owner, captured);
        true
    }

    /// Microseconds of one kernel and of the graph.
    fn time_both(&mut self, cache: KvShape, length: usize, step: &WholeStep, graph: &Graph) -> Option<[f64; 2]> {
        self.pretend(cache, length);
        if !step.is_current() || !graph.is_current() {
            return None;
        }
        let (batch, last) = (&self.batch, self.slots.last_tokens());
        let alone = |device: &mut Device| step.launch(device, batch.as_sent(), None);
        let many = |device: &mut Device| {
            batch.place(device, last);
            device.launch_graph(graph);
        };
        measure::in_turn(&mut self.device, [&alone, &many])
    }

    /// Begins a step of a sequence of `length` tokens, whichever they are. Its own key and value go to a block that is
    /// no sequence's.
    fn pretend(&mut self, shape: KvShape, length: usize) {
        let mut blocks: Vec<u32> =
            (0..length.div_ceil(shape.block_size)).map(|block| (block % shape.num_blocks) as u32).collect();
        if let Some(last) = blocks.last_mut() {
            *last = shape.num_blocks as u32;
        }
        let tables = vec![blocks; self.batch.most_tables()];
        let sequence = Sequence { first_row: 0, num_rows: 1, start: length - 1, tables: &tables, slot: 0 };
        let position = [length as u32 - 1];
        self.start(Batch { tokens: &[0], positions: &position, sequences: &[sequence] }, self.padded_for);
    }
}

/// What tells a step from others: its kernel, and its matrices.
fn title(ops: &[Op], special: Special) -> String {
    let matrices = ops.iter().filter_map(|op| match op {
        Op::Gemm(gemm) => Some(format!("{}x{}", gemm.weights.rows, gemm.weights.cols)),
        _ => None,
    });
    let parts: Vec<String> = matrices.collect();
    format!("{}, matrices {}", Source::of(special).title(), digest(parts.iter().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::ops::DType;

    fn open(num_blocks: usize, tactics: &TacticCache) -> Choice {
        let (kv_heads, head_dim, v_head_dim, block_size) = (1, 64, 64, 16);
        let dtype = DType::Bf16.into();
        let shape = KvShape { num_blocks, block_size, kv_heads, head_dim, v_head_dim, shared: false, dtype };
        Choice::open("a step", shape, tactics)
    }

    /// What a choice comes to where one kernel is the faster one up to this length, after how many tries.
    fn chosen(num_blocks: usize, faster_up_to: usize) -> (usize, usize) {
        let folder = tempfile::tempdir().expect("a folder");
        let tactics = TacticCache::of_test(folder.path(), "one");
        let (mut choice, mut tries) = (open(num_blocks, &tactics), 0);
        while let Some((_, length)) = choice.next() {
            let alone = if length <= faster_up_to { 3870.0 } else { 4000.0 };
            // One turn that nothing disturbs is enough for each.
            for turn in 0..TURNS {
                let late = |calm: usize| if turn == calm { 0.0 } else { 900.0 };
                choice.took(Some([alone + late(tries % TURNS), 4000.0 + late(1)]), &tactics);
            }
            tries += 1;
        }
        // The next process knows it, where anything was tried.
        assert!(!open(num_blocks, &tactics).is_open());
        assert_eq!(open(num_blocks, &tactics).up_to(), choice.up_to());
        assert_eq!(open(num_blocks, &TacticCache::of_test(folder.path(), "another")).is_open(), tries > 0);
        (choice.up_to(), tries)
    }

    #[test]
    fn the_longest_sequence_on_which_one_kernel_wins_is_found_by_halves() {
        let large = 1 << 20;
        assert_eq!([0, 256, 700, 8192].map(|up_to| chosen(large, up_to).0), [0, 256, 512, 8192]);
        assert_eq!(chosen(large, 32_768).0, usize::MAX);
        assert!(LENGTHS.iter().all(|length| chosen(large, *length).1 <= 4));
        // A cache that holds no longer ones.
        assert_eq!((chosen(64, 1024).0, chosen(64, 512).0), (usize::MAX, 512));
        assert_eq!(chosen(1, 1024), (usize::MAX, 0));
        assert_eq!([true, false].map(|always| Choice::fixed(always).up_to()), [usize::MAX, 0]);
        assert!([true, false].iter().all(|always| !Choice::fixed(*always).is_open()));
    }
}
