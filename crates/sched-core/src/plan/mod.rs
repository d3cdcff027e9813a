//! What the next step runs: decodes, then chunks of prompts that run already, then newcomers.
//!
//! # Blocks
//!
//! A sequence starts only when all blocks that the tokens it knows will ever need are free, and takes them at once (in
//! groups with a window, those of its first chunk). So without windows a prompt in chunks never runs out half-way, and only
//! decodes (one block every `block_size` tokens) have to ask again. When one of them asks in vain, the sequence of the worst
//! rank gives everything up and is computed anew later; that may be the asking one itself. (`room.rs` has the details.) `running` is sorted by rank, so the victim is its last entry, which no row names yet: decodes
//! are planned from the front. The best-ranked sequence can take everything from everybody, so something always ends.
//! The victim does not bounce back in the same plan: it needs as many blocks as it gave, and the asking one took one.
//!
//! # Parallel samples
//!
//! Choice 0 computes the prompt and the others wait for it outside of the queue. Once a plan has covered the prompt's
//! end, they enter the queue, and from the next plan on (workers run plans in order) each *forks*: it shares all of the
//! prompt's blocks, with the last one copied before its first write, and computes the prompt's last token again as a row
//! of one token, which gives it the logits that its first token is sampled from. Should no sibling be running when a
//! choice's turn comes, it starts like any other sequence: prefix cache, then computation.
//!
//! # Latency
//!
//! Decodes always fit (`max_num_batched_tokens >= max_num_seqs`) and go first. What prompts may add to a step that also
//! decodes is bounded ([`BesideDecodes`]), since all rows of a step wait for its longest part.

pub(crate) mod allocate;
pub(crate) mod prefill_budget;
pub(crate) mod scratch;
pub(crate) mod start;

use crate::{
    BesideDecodes,
    flight::{Flight, FlightRow},
    requests::sequence::Place,
    scheduler::Scheduler,
};
use ids::{BlockId, SlotId};
use proto::{StepPlan, Want};

/// Tokens that a step computes of a prompt beyond its pace where they are the prompt's last, at most.
const LAST_TOKENS: u32 = 64;

/// A plan in the making.
pub(crate) struct Draft {
    pub plan: StepPlan,
    flight: Flight,
    /// Tokens that the step may still compute.
    left: u32,
    /// Tokens beyond these that may be a prompt's last.
    spare: u32,
    /// Bytes that further newcomers may add to the plan.
    newcomer_bytes: usize,
    /// Block tables of a sequence; with one, the plan need not say which.
    groups: usize,
}

impl Draft {
    /// The next entry of a group's table in `slot`.
    pub fn new_block(&mut self, slot: SlotId, group: u32, block: BlockId) {
        self.plan.new_block_slot.push(slot.0);
        self.plan.new_block.push(block.0);
        if self.groups > 1 {
            self.plan.new_block_group.push(group);
        }
    }

    /// Entry `at` of a group's table in `slot` becomes a copy of the block that it was.
    pub fn replace(&mut self, slot: SlotId, group: u32, at: u32, (from, to): (BlockId, BlockId)) {
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
        if self.flights.len() >= self.config.pipeline.depth() {
            return None;
        }
        self.sweep_running();
        let mut draft = self.new_draft();
        self.plan_decodes(&mut draft);
        if !draft.flight.rows.is_empty() {
            self.pace_prompts(&mut draft);
        }
        self.plan_chunks(&mut draft);
        self.start_waiting(&mut draft, now_us);
        draft.plan.epoch = epoch.0;
        self.seal(draft)
    }

    fn new_draft(&mut self) -> Draft {
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
        Draft {
            plan,
            flight,
            left: self.config.max_num_batched_tokens,
            spare: 0,
            newcomer_bytes: self.config.max_newcomer_bytes,
            groups: self.groups.count(),
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

    fn plan_decodes(&mut self, draft: &mut Draft) {
        self.scratch.prefills.clear();
        let mut at = 0;
        // `running` may shrink from behind while this goes on.
        while let Some(entry) = self.running.get(at) {
            at += 1;
            let index = entry.index;
            let sequence = &self.sequences[index];
            let planned = sequence.planned_len();
            if sequence.computed + 1 < planned {
                self.scratch.prefills.push(index);
                continue;
            }
            if planned >= sequence.limit {
                continue; // All its tokens are on their way.
            }
            if sequence.computed == sequence.room && !self.grow(index, draft) {
                continue;
            }
            self.push_row(draft, index, 1);
        }
    }

    /// Back to the queue, to be computed anew from its tokens. What is in flight for it will be dropped and sampled
    /// again, with the same result: seed and position are the same.
    pub(crate) fn preempt(&mut self, index: u32) {
        self.free_worker_state(index);
        self.sequences[index].times.preemptions += 1;
        self.totals.preemptions += 1;
        self.enqueue(index);
    }

    fn plan_chunks(&mut self, draft: &mut Draft) {
        let prefills = std::mem::take(&mut self.scratch.prefills);
        for index in &prefills {
            let sequence = &self.sequences[*index];
            if sequence.place != Place::Running {
                continue; // It made room for another chunk.
            }
            let computed = sequence.computed;
            let chunk = self.chunk(sequence.planned_len() - computed, draft);
            if chunk > 0 && self.make_room(*index, computed + chunk, draft) {
                self.push_row(draft, *index, chunk);
            }
        }
        self.scratch.prefills = prefills;
    }

    /// Bounds the prompt tokens beside the decodes that are planned. Where a prompt's last few tokens are beyond what there is time for, they
    /// would cost its request a whole step.
    fn pace_prompts(&self, draft: &mut Draft) {
        let most = self.most_beside(draft.flight.rows.len() as u32);
        // What a flag says is meant to the token.
        if matches!(self.config.beside_decodes, BesideDecodes::Paced(_)) {
            draft.spare = draft.left.saturating_sub(most).min(LAST_TOKENS);
        }
        draft.left = draft.left.min(most);
    }

    /// Prompt tokens that a step may compute beside so many decodes.
    fn most_beside(&self, decodes: u32) -> u32 {
        match self.config.beside_decodes {
            BesideDecodes::AtMost(tokens) if self.config.enable_chunked_prefill => tokens,
            BesideDecodes::Paced(pacing) if self.config.enable_chunked_prefill => {
                self.pace.tokens_beside(decodes, pacing)
            }
            _ => u32::MAX,
        }
    }

    /// How many of `remaining` tokens run in this step.
    fn chunk(&self, remaining: u32, draft: &Draft) -> u32 {
        let left = if remaining <= draft.left + draft.spare { remaining } else { draft.left };
        if !self.config.enable_chunked_prefill {
            return if remaining <= left { remaining } else { 0 };
        }
        match self.config.long_prefill_token_threshold {
            0 => remaining.min(left),
            threshold => remaining.min(left).min(threshold),
        }
    }

    fn start_waiting(&mut self, draft: &mut Draft, now_us: u64) {
        // Strictly in order: overtaking would starve whoever needs the most.
        while let Some(index) = self.waiting.first() {
            if draft.left == 0 || self.free_slots.is_empty() || !self.try_start(index, draft, now_us) {
                return;
            }
        }
    }

    fn try_start(&mut self, index: u32, draft: &mut Draft, now_us: u64) -> bool {
        let here = (self.sequences[index].rank, self.pool.releases());
        let alone = self.running.is_empty();
        if !alone && self.scratch.blocked == Some(here) {
            return false;
        }
        let bytes = self.newcomer_bytes(index);
        if bytes > draft.newcomer_bytes && !draft.plan.added.is_empty() {
            return false;
        }
        let start = self.find_start(index);
        // Alone, a sequence may take everything; admission made sure that it fits.
        let reserve = if alone { 0 } else { self.watermark_blocks() };
        if start.needs + reserve > self.pool.available() {
            self.scratch.blocked = Some(here);
            return false;
        }
        let chunk = self.chunk(self.sequences[index].known_len() - start.computed, draft);
        if chunk == 0 {
            return false;
        }
        self.start(index, &start, start.computed + chunk, draft, now_us);
        draft.newcomer_bytes = draft.newcomer_bytes.saturating_sub(bytes);
        self.push_row(draft, index, chunk);
        true
    }

    fn watermark_blocks(&self) -> u32 {
        (f64::from(self.config.watermark) * f64::from(self.pool.num_blocks())) as u32
    }

    /// A row of `num_tokens` more tokens; it samples when it reaches the last one.
    fn push_row(&mut self, draft: &mut Draft, index: u32, num_tokens: u32) {
        let sequence = &mut self.sequences[index];
        let start = sequence.computed;
        let end = start + num_tokens;
        let sample = end == sequence.planned_len();
        sequence.computed = end;
        sequence.row_in = self.next_step.0;
        sequence.in_flight += u32::from(sample);
        if sequence.prompt_done_in == 0 && end >= sequence.prompt_len {
            sequence.prompt_done_in = self.next_step.0;
            self.scratch.prompts_done.push(sequence.request);
        }
        draft.spare = draft.spare.saturating_sub(num_tokens.saturating_sub(draft.left));
        draft.left = draft.left.saturating_sub(num_tokens);
        draft.flight.prompt_tokens += if num_tokens > 1 { num_tokens } else { 0 };
        let plan = &mut draft.plan;
        plan.slot.push(sequence.slot.0);
        plan.start.push(start);
        plan.num_tokens.push(num_tokens);
        plan.want.push(if sample { Want::Sample } else { Want::None }.into());
        draft.flight.push(FlightRow { index, slot: sequence.slot.0, end, sample, incarnation: sequence.incarnation });
    }

    fn seal(&mut self, mut draft: Draft) -> Option<StepPlan> {
        // When work ends, a last plan without rows lets the workers drop what ended.
        let tidies_up = self.flights.is_empty() && !self.removed.is_empty();
        if draft.flight.rows.is_empty() && !tidies_up {
            self.spare_flights.push(draft.flight);
            return None;
        }
        while let Some(request) = self.scratch.prompts_done.pop() {
            self.release_siblings(request);
        }
        draft.plan.removed = std::mem::take(&mut self.removed);
        self.iteration_tokens = draft.plan.num_tokens.iter().sum();
        self.totals.steps += 1;
        self.totals.scheduled_tokens += u64::from(self.iteration_tokens);
        self.next_step.0 += 1;
        self.flights.push_back(draft.flight);
        Some(draft.plan)
    }

    /// Lets the choices that waited for a sibling into the queue.
    pub(crate) fn release_siblings(&mut self, request: u32) {
        for choice in 0..self.requests[request].choices.len() {
            if let Some(index) = self.requests[request].choices[choice]
                && self.sequences[index].place == Place::Deferred
            {
                self.enqueue(index);
            }
        }
    }
}
