//! Chooses between a recorded step's graph and one kernel for all of it.

use std::time::{Duration, Instant};

use super::WholeStep;
use crate::CudaBackend;
use crate::graph::Graph;
use crate::options::WholeSteps;
use crate::recordings::Recorded;
use kernels::ops::{Batch, Sequence};

/// Lengths of the sequences that both are timed on, and how often. What they do beside attention depends on none.
const LENGTHS: [usize; 3] = [256, 4096, 32_768];
const RUNS: u32 = 4;

impl CudaBackend {
    /// What to replay the step from that was just recorded, and whose operations were collected.
    pub(crate) fn whole_step(&mut self, graph: Graph) -> Recorded {
        let Some(ops) = self.collected.take().filter(|_| self.whole_steps != WholeSteps::Never) else {
            return Recorded::Graph(graph);
        };
        self.batch.turn_to(0);
        let (batch, last) = (self.batch.pointers, self.slots.last_tokens());
        let Ok(step) = WholeStep::new(&mut self.device, &mut self.staging, &ops, batch, last) else {
            return Recorded::Graph(graph);
        };
        let both = |up_to| Recorded::Either { step: Box::new(step), graph, up_to };
        if self.whole_steps == WholeSteps::Always {
            return both(usize::MAX);
        }
        let mut both = both(0);
        let faster = self.faster_up_to(&both);
        if let Recorded::Either { up_to, .. } = &mut both {
            *up_to = faster;
        }
        both
    }

    /// The tokens of the longest sequence whose step is faster as one kernel, by a thirtieth or more.
    fn faster_up_to(&mut self, both: &Recorded) -> usize {
        let room = self.caches.first().map_or(0, |kv| kv.shape.num_blocks * kv.shape.block_size);
        let mut won = 0;
        for length in LENGTHS.into_iter().filter(|length| *length <= room) {
            self.pretend(length);
            if !both.is_current() {
                return won;
            }
            let [alone, many] = [0, usize::MAX].map(|length| self.time(both, length));
            if alone * 31 > many * 30 {
                return won;
            }
            won = length;
        }
        // Faster on all of them, it is so on longer ones.
        usize::MAX
    }

    /// Begins a step of a sequence of so many tokens, whoever's they are. Its own key and value go to a block that is nobody's.
    fn pretend(&mut self, length: usize) {
        let Some(shape) = self.caches.first().map(|kv| kv.shape) else { return };
        let mut blocks: Vec<u32> =
            (0..length.div_ceil(shape.block_size)).map(|block| (block % shape.num_blocks) as u32).collect();
        if let Some(last) = blocks.last_mut() {
            *last = shape.num_blocks as u32;
        }
        let tables = vec![blocks; self.batch.most_tables()];
        let sequence = Sequence { first_row: 0, num_rows: 1, start: length - 1, tables: &tables, slot: 0 };
        let position = [length as u32 - 1];
        self.start(Batch { tokens: &[0], positions: &position, sequences: &[sequence] }, Some(1));
    }

    fn time(&mut self, recorded: &Recorded, length: usize) -> Duration {
        recorded.launch(&mut self.device, length);
        self.device.synchronize();
        let start = Instant::now();
        (0..RUNS).for_each(|_| recorded.launch(&mut self.device, length));
        self.device.synchronize();
        start.elapsed() / RUNS
    }
}
