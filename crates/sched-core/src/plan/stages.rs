//! Workers in stages: plans that keep every stage busy, and tell all of them what the last one sampled.
//!
//! A stage computes some of the layers, and works on one plan while the stage behind it works on the plan before. So as
//! many plans are in flight as there are stages, each with other sequences: a sequence's next row waits for its last
//! one's token, which comes from the last stage and goes to the first. It goes there in the plan that has the row, so
//! that stages need no way back of their own. Running decodes are spread evenly over the plans in flight; a step's
//! prompt tokens are, too.

use super::PlanBuilder;
use crate::scheduler::Scheduler;

impl Scheduler {
    /// Decodes that a plan takes at most.
    pub(super) fn decode_share(&self) -> usize {
        if self.config.stages <= 1 {
            return usize::MAX;
        }
        let decodes = |index| {
            let sequence = &self.sequences[index];
            sequence.scheduled + 1 >= sequence.planned_len()
        };
        let count = self.running.iter().filter(|entry| decodes(entry.index)).count();
        count.div_ceil(self.concurrent_plans() as usize)
    }

    /// Bounds the prompt tokens of a plan to an even share of a step's, so that a long prompt fills all stages.
    pub(super) fn level_prefill(&self, builder: &mut PlanBuilder) {
        if self.config.enable_chunked_prefill {
            builder.left = builder.left.min(self.config.max_num_batched_tokens.div_ceil(self.concurrent_plans()));
            builder.spare = 0;
        }
    }

    /// Plans that stages work on at the same time.
    fn concurrent_plans(&self) -> u32 {
        self.config.stages.min(self.config.pipeline_depth)
    }

    /// Tells the workers a sequence's tokens that they have not been told: those that results brought.
    pub(super) fn tell_tokens(&mut self, index: u32, builder: &mut PlanBuilder) {
        let sequence = &mut self.sequences[index];
        let from = sequence.told.saturating_sub(sequence.prompt_len) as usize;
        for token in &sequence.output[from..] {
            builder.plan.told_slot.push(sequence.slot.0);
            builder.plan.told_token.push(*token);
        }
        sequence.told = sequence.known_len();
    }
}
