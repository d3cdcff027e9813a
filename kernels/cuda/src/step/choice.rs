//! Chooses between a recorded step's graph and one kernel for all of it.

use std::time::{Duration, Instant};

use super::WholeStep;
use crate::CudaBackend;
use crate::graph::Graph;
use crate::recordings::Recorded;
use kernels::ops::Batch;

/// When a decode step of one row is one kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum WholeSteps {
    /// Nowhere.
    #[default]
    Never,
    /// Where that is faster, by some runs of both.
    Faster,
    /// Wherever it can be.
    Always,
}

/// Runs that are timed.
const RUNS: u32 = 8;

impl CudaBackend {
    /// What to replay the step from that was just recorded, and whose operations were collected.
    pub(crate) fn whole_step(&mut self, graph: Graph) -> Recorded {
        let Some(ops) = self.collected.take().filter(|_| self.whole_steps != WholeSteps::Never) else {
            return Recorded::Graph(graph);
        };
        self.batch.turn_to(0);
        let (batch, last) = (self.batch.pointers, self.slots.last_tokens());
        let made = WholeStep::new(&mut self.device, &mut self.staging, &ops, batch, last);
        let step = match made {
            Ok(step) => Recorded::Whole(Box::new(step)),
            Err(_) => return Recorded::Graph(graph),
        };
        let graph = Recorded::Graph(graph);
        if self.whole_steps == WholeSteps::Always { step } else { self.faster(step, graph) }
    }

    /// The faster one, on a row of no sequence. What hardly differs stays a graph.
    fn faster(&mut self, step: Recorded, graph: Recorded) -> Recorded {
        self.start(Batch { tokens: &[0], positions: &[0], sequences: &[] }, Some(1));
        let [alone, many] = [&step, &graph].map(|recorded| self.time(recorded));
        if alone * 32 < many * 31 {
            return step;
        }
        // Freeing its memory would make the graph stale.
        self.beaten = Some(step);
        self.whole_steps = WholeSteps::Never;
        graph
    }

    fn time(&mut self, recorded: &Recorded) -> Duration {
        recorded.launch(&mut self.device);
        self.device.synchronize();
        let start = Instant::now();
        (0..RUNS).for_each(|_| recorded.launch(&mut self.device));
        self.device.synchronize();
        start.elapsed() / RUNS
    }
}
