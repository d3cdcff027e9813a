//! Chooses between a captured step's graph and one kernel for all of it.

use super::{Planned, WholeStep};
use crate::CudaBackend;
use crate::autotune::measure;
use crate::fusion::op::Op;
use crate::graph::captures::CapturedStep;
use crate::graph::cuda_graph::Graph;
use crate::options::WholeSteps;
use crate::runtime::device::{Device, MOMENT};
use kernels::ops::{Batch, KvShape, Sequence};

/// Lengths of the sequences that both are timed on: attention is what depends on them.
const LENGTHS: [usize; 8] = [256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];

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
        let last = self.slots.last_tokens();
        let Ok(step) = WholeStep::new(&mut self.device, &mut self.staging, planned, last) else {
            return CapturedStep::Graph { graph, awaits: None };
        };
        let up_to = match self.whole_steps {
            WholeSteps::Always => usize::MAX,
            _ => cache.map_or(0, |cache| self.faster_up_to(cache, &step, &graph)),
        };
        CapturedStep::Either { step: Box::new(step), graph, up_to }
    }

    /// The tokens of the longest sequence whose step is faster as one kernel: on longer ones it loses once it has lost.
    fn faster_up_to(&mut self, cache: KvShape, step: &WholeStep, graph: &Graph) -> usize {
        let room = cache.num_blocks * cache.block_size;
        let lengths = &LENGTHS[..LENGTHS.partition_point(|length| *length <= room)];
        match lengths.partition_point(|length| self.is_faster(cache, *length, step, graph)) {
            all if all == lengths.len() => usize::MAX,
            some => lengths[..some].last().copied().unwrap_or(0),
        }
    }

    /// Whether it is faster by half a hundredth or more, which a device that does not tell the time cannot say.
    fn is_faster(&mut self, cache: KvShape, length: usize, step: &WholeStep, graph: &Graph) -> bool {
        self.pretend(cache, length);
        if !step.is_current() || !graph.is_current() {
            return false;
        }
        let (batch, last) = (&self.batch, self.slots.last_tokens());
        let alone = |device: &mut Device| step.launch(device, batch.as_sent(), None);
        let many = |device: &mut Device| {
            batch.place(device, last);
            device.launch_graph(graph);
        };
        measure::shortest(&mut self.device, [&alone, &many]).is_some_and(|[alone, many]| alone * 1.005 <= many)
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
