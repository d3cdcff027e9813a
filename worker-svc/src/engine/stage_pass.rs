//! Passes of a stage that is not the last: rows go to the next stage, and nothing is sampled.

use proto::StepPlan;

use super::{Engine, forward_pass::Chunk, input_batch::InputBatch};
use crate::error::StepError;

impl Engine<'_> {
    /// Runs a pass whose rows the next stage goes on with.
    pub(super) fn pass_on(&mut self, chunks: &[Chunk], plan: &StepPlan) -> Result<(), StepError> {
        let mut input = InputBatch::new(chunks, plan, &self.slots, &mut self.memory);
        input.ask_nothing();
        self.model.set_adapters(&input.adapters);
        let ticket = self.model.submit(input.batch(), &[], &[], &mut *self.group)?;
        let targets = input.into_targets(&mut self.memory);
        self.memory.targets.push(targets);
        // Its rows were read when they were given on, so there is nothing to wait for.
        Ok(self.model.take(ticket, &mut self.sampled)?)
    }
}
