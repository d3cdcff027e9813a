//! Passes of a stage that is not the last: rows go to the next stage, and nothing is sampled.

use proto::StepPlan;

use super::{Engine, PendingSamples, Progress, forward_pass::Chunk, input_batch::InputBatch};
use crate::error::StepError;

impl Engine<'_> {
    /// Starts a pass whose rows the next stage goes on with. No token of it is asked for; taking it says that it is
    /// over.
    pub(super) fn pass_on(&mut self, chunks: &[Chunk], plan: &StepPlan) -> Result<PendingSamples, StepError> {
        let mut input = InputBatch::new(chunks, plan, &self.slots, &mut self.memory);
        input.ask_nothing();
        self.model.set_adapters(&input.adapters);
        let ticket = self.model.submit(input.batch(), &[], &[], &mut *self.group)?;
        Ok(PendingSamples { progress: Progress::Sampling(ticket), targets: input.into_targets(&mut self.memory) })
    }
}
