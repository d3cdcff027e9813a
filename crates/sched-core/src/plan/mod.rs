//! What the next step runs: decodes, then chunks of prompts that run already, then new requests.
//!
//! # Blocks
//!
//! A sequence starts only when all blocks that the tokens it knows will ever need are free, and takes them at once (in
//! groups with a window, those of its first chunk). So without windows a prompt in chunks never runs out half-way, and
//! only decodes (one block every `block_size` tokens) have to ask again. When one of them asks in vain, the sequence
//! that is last in the queue's order gives everything up and is computed anew later; that may be the asking one itself
//! (`allocate.rs` has the details). `running` is in that order, so the victim is its last entry, which has no row in
//! this plan yet: decodes are planned from the front. The first sequence can take everything from all others, so
//! something always ends. The victim does not bounce back in the same plan: it needs as many blocks as it gave, and the
//! asking one took one.
//!
//! # Rows ahead of results
//!
//! Up to `pipeline_depth` plans are in flight. A row that samples gives exactly one token, so the next one's position
//! is known before its token is, and the sequence is planned again at once. What a verified draft gives is not known:
//! such a sequence is *in order*, and has no row while tokens of its own are in flight; other sequences' rows keep the
//! workers busy. A draft takes free blocks only, and preempts no sequence. Where workers are in stages, every text is
//! in order (`stages.rs`).
//!
//! A token that a grammar forces others behind comes with them; the row behind it is then *silent* (`jump.rs`).
//!
//! # Parallel samples
//!
//! Choice 0 computes the prompt and the others wait for it outside of the queue. Once a plan has covered the prompt's
//! end, they enter the queue, and from the next plan on (workers run plans in order) each *forks*: it shares all of the
//! prompt's blocks, with the last one copied before its first write, and computes the prompt's last token again as a
//! row of one token, which gives it the logits that its first token is sampled from. Should no sibling be running when
//! a choice's turn comes, it starts like any other sequence: prefix cache, then computation.
//!
//! # Latency
//!
//! Decodes always fit (`max_num_batched_tokens` has room for a token and a draft of each) and go first. What prompts
//! may add to a mixed step is bounded ([`MixedPrefill`]), since all rows of a step wait for its longest part.

pub(crate) mod adapters;
pub(crate) mod allocate;
pub(crate) mod beams;
pub(crate) mod prefill_budget;
pub(crate) mod scratch;
mod stages;
pub(crate) mod start;

use crate::{
    MixedPrefill,
    flight::{Flight, FlightRow, Want},
    plan::adapters::MOST_PASSED,
    requests::sequence::Status,
    scheduler::Scheduler,
};
use ids::{BlockId, SlotId};
use proto::StepPlan;

/// Tokens of a prompt that a mixed step computes beyond its budget where they are the prompt's last, at most.
const LAST_TOKENS: u32 = 64;

/// A plan in the making.
pub(crate) struct PlanBuilder {
    pub plan: StepPlan,
    flight: Flight,
    /// Tokens that the step may still compute.
    left: u32,
    /// Tokens beyond these that may be a prompt's last.
    spare: u32,
    /// Bytes that further new requests may add to the plan.
    new_request_bytes: usize,
    /// Block tables of a sequence; with one, the plan need not say which.
    groups: usize,
    /// When it is made.
    pub now_us: u64,
}

/// Tokens of a row: known ones (or in flight), then drafted ones.
#[derive(Clone, Copy)]
pub(crate) struct RowTokens {
    pub known: u32,
    pub drafted: u32,
}

/// A block whose content becomes another's, too.
pub(crate) struct CopiedBlock {
    pub from: BlockId,
    pub to: BlockId,
}

impl PlanBuilder {
    /// The next entry of a group's table in `slot`.
    pub fn new_block(&mut self, slot: SlotId, group: u32, block: BlockId) {
        self.plan.new_block_slot.push(slot.0);
        self.plan.new_block.push(block.0);
        if self.groups > 1 {
            self.plan.new_block_group.push(group);
        }
    }

    /// Entry `at` of a group's table in `slot` becomes a copy of the block that it was.
    pub fn replace(&mut self, slot: SlotId, group: u32, at: u32, CopiedBlock { from, to }: CopiedBlock) {
        self.plan.copy_from.push(from.0);
        self.plan.copy_to.push(to.0);
        self.plan.replace_slot.push(slot.0);
        self.plan.replace_index.push(at);
        self.plan.replace_block.push(to.0);
        if self.groups > 1 {
            self.plan.replace_group.push(group);
        }
    }
}

impl Scheduler {
    /// The next step for all ranks; `None` when there is nothing to run or tidy up, or the pipeline is full.
    ///
    /// To be called after every event until it returns `None`. A request that appears in its first plan is reported as
    /// started, so take the output after planning too.
    pub fn plan(&mut self, now_us: u64) -> Option<StepPlan> {
        let epoch = self.epoch?;
        if self.flights.len() >= self.config.pipeline_depth as usize {
            return None;
        }
        self.sweep_running();
        let mut builder = self.new_builder(now_us);
        self.plan_decodes(&mut builder);
        if !builder.flight.rows.is_empty() {
            self.limit_prefill(&mut builder);
        }
        if self.config.stages > 1 {
            self.level_prefill(&mut builder);
        }
        self.plan_chunks(&mut builder);
        self.start_waiting(&mut builder);
        builder.plan.epoch = epoch.0;
        self.seal(builder)
    }

    fn new_builder(&mut self, now_us: u64) -> PlanBuilder {
        let mut flight = self.spare_flights.pop().unwrap_or_default();
        flight.clear(self.next_step);
        let rows = self.running.len() + 8;
        let plan = StepPlan {
            step: self.next_step.0,
            slot: Vec::with_capacity(rows),
            start: Vec::with_capacity(rows),
            num_tokens: Vec::with_capacity(rows),
            want: Vec::with_capacity(rows),
            ..StepPlan::default()
        };
        PlanBuilder {
            plan,
            flight,
            left: self.config.max_num_batched_tokens,
            spare: 0,
            new_request_bytes: self.config.max_new_request_bytes,
            groups: self.groups.count(),
            now_us,
        }
    }

    /// Drops the entries of sequences that ended since the last plan, all in one pass.
    fn sweep_running(&mut self) {
        if self.swept_out == 0 {
            return;
        }
        let sequences = &self.sequences;
        self.running.retain(|entry| sequences.get(entry.index).is_some_and(|s| s.incarnation == entry.incarnation));
        self.swept_out = 0;
    }

    fn plan_decodes(&mut self, builder: &mut PlanBuilder) {
        self.scratch.prefills.clear();
        let share = self.decode_share();
        let mut at = 0;
        // `running` may shrink from behind while this goes on.
        while let Some(entry) = self.running.get(at) {
            at += 1;
            let index = entry.index;
            let sequence = &self.sequences[index];
            let planned = sequence.planned_len();
            if sequence.scheduled + 1 < planned {
                self.scratch.prefills.push(index);
                continue;
            }
            if planned >= sequence.limit {
                continue; // All its tokens are on their way.
            }
            if sequence.in_order {
                if builder.flight.rows.len() < share {
                    self.plan_in_order(index, builder);
                }
                continue;
            }
            if sequence.scheduled == sequence.allocated && !self.allocate_decode(index, builder) {
                continue;
            }
            self.push_row(builder, index, RowTokens { known: 1, drafted: 0 });
        }
    }

    /// A decode that waits for its last row's tokens, and verifies what is drafted.
    fn plan_in_order(&mut self, index: u32, builder: &mut PlanBuilder) {
        let sequence = &self.sequences[index];
        if sequence.in_flight > 0 {
            return;
        }
        if sequence.wants == Want::Candidates {
            match sequence.scheduled < sequence.known_len() {
                // It came back from the queue, and is not where it was yet.
                true => self.scratch.prefills.push(index),
                false => self.plan_beams(index, builder),
            }
            return;
        }
        let mut drafted = sequence.draft_len();
        if drafted > 0 && !self.allocate_draft(index, drafted, builder) {
            drafted = 0;
        }
        let sequence = &self.sequences[index];
        if sequence.scheduled == sequence.allocated && !self.allocate_decode(index, builder) {
            return;
        }
        if self.config.stages > 1 {
            self.tell_tokens(index, builder);
        }
        self.push_row(builder, index, RowTokens { known: 1, drafted });
    }

    /// Back to the queue, to be computed anew from its tokens. What is in flight for it will be dropped and sampled
    /// again, with the same result: seed and position are the same.
    pub(crate) fn preempt(&mut self, index: u32) {
        self.free_worker_state(index);
        self.sequences[index].times.preemptions += 1;
        self.totals.preemptions += 1;
        self.enqueue(index);
    }

    fn plan_chunks(&mut self, builder: &mut PlanBuilder) {
        let prefills = std::mem::take(&mut self.scratch.prefills);
        for index in &prefills {
            let sequence = &self.sequences[*index];
            if sequence.status != Status::Running {
                continue; // It made room for another chunk.
            }
            let scheduled = sequence.scheduled;
            let chunk = self.chunk(sequence.planned_len() - scheduled, builder);
            if chunk > 0 && self.allocate_chunk(*index, scheduled + chunk, builder) {
                self.push_row(builder, *index, RowTokens { known: chunk, drafted: 0 });
            }
        }
        self.scratch.prefills = prefills;
    }

    /// Bounds the prompt tokens beside the decodes that are planned. Where a prompt's last few tokens are beyond what
    /// there is time for, they would cost its request a whole step.
    fn limit_prefill(&self, builder: &mut PlanBuilder) {
        let most = self.prefill_limit(self.config.max_num_batched_tokens - builder.left);
        // What a flag says is meant to the token.
        if matches!(self.config.mixed_prefill, MixedPrefill::Timed(_)) {
            builder.spare = builder.left.saturating_sub(most).min(LAST_TOKENS);
        }
        builder.left = builder.left.min(most);
    }

    /// Prompt tokens of a step with this many tokens of decodes.
    fn prefill_limit(&self, decodes: u32) -> u32 {
        match self.config.mixed_prefill {
            MixedPrefill::AtMost(tokens) if self.config.enable_chunked_prefill => tokens,
            MixedPrefill::Timed(budget) if self.config.enable_chunked_prefill => {
                self.prefill_rate.tokens_with(decodes, budget)
            }
            _ => u32::MAX,
        }
    }

    /// How many of `remaining` tokens run in this step.
    pub(crate) fn chunk(&self, remaining: u32, builder: &PlanBuilder) -> u32 {
        let left = if remaining <= builder.left + builder.spare { remaining } else { builder.left };
        if !self.config.enable_chunked_prefill {
            return if remaining <= left { remaining } else { 0 };
        }
        match self.config.long_prefill_token_threshold {
            0 => remaining.min(left),
            threshold => remaining.min(left).min(threshold),
        }
    }

    fn start_waiting(&mut self, builder: &mut PlanBuilder) {
        if self.waiting.len() > 0 {
            self.count_adapters();
        }
        let (mut passed, mut after) = (0, None);
        // Strictly in order: overtaking would starve a request that needs many blocks. What waits for its adapter waits
        // for nothing else.
        while let Some((key, index)) = self.waiting.first_after(after) {
            if builder.left == 0 || self.free_slots.is_empty() || passed > MOST_PASSED {
                return;
            }
            if !self.has_adapter(index, builder) {
                (passed, after) = (passed + 1, Some(key));
            } else if !self.try_start(index, builder) {
                return;
            }
        }
    }

    fn try_start(&mut self, index: u32, builder: &mut PlanBuilder) -> bool {
        let here = (self.sequences[index].key, self.pool.releases());
        let alone = self.running.is_empty();
        if !alone && self.scratch.blocked == Some(here) {
            return false;
        }
        if self.is_beam(index) {
            return self.try_start_beams(self.sequences[index].request, builder);
        }
        let bytes = self.new_request_bytes(index);
        if bytes > builder.new_request_bytes && !builder.plan.added.is_empty() {
            return false;
        }
        let start = self.find_start(index);
        // Alone, a sequence may take everything; admission made sure that it fits.
        let reserve = if alone { 0 } else { self.watermark_blocks() };
        if start.needs + reserve > self.pool.available() {
            self.scratch.blocked = Some(here);
            return false;
        }
        let chunk = self.chunk(self.sequences[index].known_len() - start.computed, builder);
        if chunk == 0 {
            return false;
        }
        self.start(index, &start, start.computed + chunk, builder);
        builder.new_request_bytes = builder.new_request_bytes.saturating_sub(bytes);
        self.push_row(builder, index, RowTokens { known: chunk, drafted: 0 });
        true
    }

    pub(crate) fn watermark_blocks(&self) -> u32 {
        (f64::from(self.config.watermark) * f64::from(self.pool.num_blocks())) as u32
    }

    /// A row of a sequence's next tokens. It gives something when it reaches the last one that is known or in flight.
    #[inline(always)] // A decode's row is by far the most frequent, and worth a copy of its own.
    pub(crate) fn push_row(&mut self, builder: &mut PlanBuilder, index: u32, tokens: RowTokens) {
        let sequence = &mut self.sequences[index];
        let start = sequence.scheduled;
        let known_end = start + tokens.known;
        let want = match tokens.drafted {
            _ if known_end < sequence.planned_len() => Want::None,
            0 => sequence.wants,
            drafted => Want::Verify { drafted: drafted as u16 },
        };
        let num_tokens = tokens.known + tokens.drafted;
        let end = start + num_tokens;
        sequence.scheduled = end;
        sequence.row_in = self.next_step.0;
        sequence.in_flight += want.most();
        if sequence.prompt_done_in == 0 && known_end >= sequence.prompt_len {
            sequence.prompt_done_in = self.next_step.0;
            self.scratch.prompts_done.push(sequence.request);
        }
        builder.spare = builder.spare.saturating_sub(num_tokens.saturating_sub(builder.left));
        builder.left = builder.left.saturating_sub(num_tokens);
        builder.flight.prompt_tokens += if tokens.known > 1 { tokens.known } else { 0 };
        if tokens.drafted > 0 {
            let draft = &sequence.draft[..tokens.drafted as usize];
            builder.plan.num_draft.push(tokens.drafted);
            builder.plan.draft.extend_from_slice(draft);
            builder.flight.drafts.extend_from_slice(draft);
        }
        if sequence.in_order {
            sequence.draft.clear();
        }
        let plan = &mut builder.plan;
        plan.slot.push(sequence.slot.0);
        plan.start.push(start);
        plan.num_tokens.push(num_tokens);
        plan.want.push(want.number());
        builder.flight.push(FlightRow { index, slot: sequence.slot.0, end, want, incarnation: sequence.incarnation });
    }

    fn seal(&mut self, mut builder: PlanBuilder) -> Option<StepPlan> {
        // When work ends, a last plan without rows lets the workers drop what ended. When it begins with an adapter, a
        // first one lets them bring it.
        let tidies_up = self.flights.is_empty() && !self.removed.is_empty();
        if builder.flight.rows.is_empty() && !tidies_up && builder.plan.adapters.is_empty() {
            self.spare_flights.push(builder.flight);
            return None;
        }
        while let Some(request) = self.scratch.prompts_done.pop() {
            self.release_siblings(request);
        }
        builder.plan.removed = std::mem::take(&mut self.removed);
        self.iteration_tokens = builder.plan.num_tokens.iter().sum();
        self.totals.steps += 1;
        self.totals.scheduled_tokens += u64::from(self.iteration_tokens);
        self.next_step.0 += 1;
        self.flights.push_back(builder.flight);
        Some(builder.plan)
    }

    /// Lets the choices that waited for a sibling into the queue.
    pub(crate) fn release_siblings(&mut self, request: u32) {
        if self.requests[request].beams.is_some() {
            return; // Beams wait for the search.
        }
        for choice in 0..self.requests[request].choices.len() {
            if let Some(index) = self.requests[request].choices[choice]
                && self.sequences[index].status == Status::Deferred
            {
                self.enqueue(index);
            }
        }
    }
}
