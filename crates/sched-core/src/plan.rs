//! What the next step runs: decodes, then chunks of prompts that run already, then newcomers.
//!
//! # Blocks
//!
//! A sequence starts only when all blocks for the tokens it knows are free, and takes them at once. So a prompt in
//! chunks never runs out half-way, and only decodes (one block every `block_size` tokens) ever have to ask again. When
//! one of them asks in vain, the sequence of the worst rank gives everything up and is computed anew later; that may be
//! the asking one itself. `running` is sorted by rank, so the victim is its last entry, which no row names yet: decodes
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
//! decodes is bounded by `max_prefill_tokens_beside_decodes`, since all rows of a step wait for its longest part.

use crate::{
    complete::{Flight, FlightRow},
    queue::Rank,
    scheduler::{RunningEntry, Scheduler},
    sequence::Place,
};
use ids::BlockId;
use proto::{NewSequence, StepPlan};

/// Buffers and notes that live from plan to plan.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Running sequences with more than one token to compute.
    prefills: Vec<u32>,
    /// Blocks that a newcomer shares.
    shared: Vec<BlockId>,
    /// Requests whose prompt the current plan completes.
    prompts_done: Vec<u32>,
    /// The queue's head and the pool's release count when it last did not fit: until either changes, neither does the
    /// answer, and a long prompt's cache lookup is spared.
    blocked: Option<(Rank, u64)>,
}

/// A plan in the making.
struct Draft {
    plan: StepPlan,
    flight: Flight,
    /// Tokens that the step may still compute.
    left: u32,
}

/// How a waiting sequence would start.
struct Start {
    /// Positions that need not be computed; their blocks are `Scratch::shared`.
    computed: u32,
    /// Blocks to take beside those.
    fresh: u32,
    /// Shares a sibling's blocks, the last of which it will write to.
    fork: bool,
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
        let decodes = draft.flight.rows.len();
        if decodes > 0 && self.config.enable_chunked_prefill && self.config.max_prefill_tokens_beside_decodes > 0 {
            draft.left = draft.left.min(self.config.max_prefill_tokens_beside_decodes);
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
            sample: Vec::with_capacity(rows),
            ..StepPlan::default()
        };
        Draft { plan, flight, left: self.config.max_num_batched_tokens }
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
        let block_size = self.config.block_size;
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
            let needs_block = sequence.computed as usize == sequence.table.len() * block_size as usize;
            if needs_block && !self.grow(index, draft) {
                continue;
            }
            self.push_row(draft, index, 1);
        }
    }

    /// One more block for `index`, at the cost of worse-ranked sequences if need be. False: it was preempted itself.
    fn grow(&mut self, index: u32, draft: &mut Draft) -> bool {
        loop {
            if let Some(block) = self.pool.take() {
                let sequence = &mut self.sequences[index];
                sequence.table.push(block);
                draft.plan.new_block_slot.push(sequence.slot.0);
                draft.plan.new_block.push(block.0);
                return true;
            }
            let Some(victim) = self.running.pop() else { return false };
            self.preempt(victim.index);
            if victim.index == index {
                return false;
            }
        }
    }

    /// Back to the queue, to be computed anew from its tokens. What is in flight for it will be dropped and sampled
    /// again, with the same result: seed and position are the same.
    fn preempt(&mut self, index: u32) {
        self.free_worker_state(index);
        self.sequences[index].times.preemptions += 1;
        self.totals.preemptions += 1;
        self.enqueue(index);
    }

    fn plan_chunks(&mut self, draft: &mut Draft) {
        let prefills = std::mem::take(&mut self.scratch.prefills);
        for index in &prefills {
            let sequence = &self.sequences[*index];
            let chunk = self.chunk(sequence.planned_len() - sequence.computed, draft.left);
            if chunk > 0 {
                self.push_row(draft, *index, chunk);
            }
        }
        self.scratch.prefills = prefills;
    }

    /// How many of `remaining` tokens run in this step.
    fn chunk(&self, remaining: u32, left: u32) -> u32 {
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
        let start = self.find_start(index);
        let shared = &self.scratch.shared;
        let reclaimed = shared.iter().filter(|block| self.pool.is_unreferenced(**block)).count() as u32;
        // Alone, a sequence may take everything; admission made sure that it fits.
        let reserve = if alone { 0 } else { self.watermark_blocks() };
        if start.fresh + reserve + reclaimed > self.pool.available() {
            self.scratch.blocked = Some(here);
            return false;
        }
        let chunk = self.chunk(self.sequences[index].known_len() - start.computed, draft.left);
        if chunk == 0 {
            return false;
        }
        self.start(index, &start, draft, now_us);
        self.push_row(draft, index, chunk);
        true
    }

    fn watermark_blocks(&self) -> u32 {
        (f64::from(self.config.watermark) * f64::from(self.pool.num_blocks())) as u32
    }

    /// Finds what a waiting sequence can share; fills `Scratch::shared`.
    fn find_start(&mut self, index: u32) -> Start {
        let block_size = self.config.block_size;
        let sequence = &self.sequences[index];
        let request = &self.requests[sequence.request];
        let shared = &mut self.scratch.shared;
        shared.clear();
        let wants_logprobs = sequence.wants_prompt_logprobs(&request.sampling);
        if request.n > 1 && sequence.output.is_empty() && !wants_logprobs {
            let step = self.next_step.0;
            let mut siblings = request.choices.iter().flatten().map(|sibling| &self.sequences[*sibling]);
            // Only prompts that an earlier plan completed: copies of a plan run before its rows.
            if let Some(source) = siblings.find(|s| s.prompt_done_in != 0 && s.prompt_done_in < step) {
                shared.extend(&source.table[..sequence.prompt_len.div_ceil(block_size) as usize]);
                return Start { computed: sequence.prompt_len - 1, fresh: 1, fork: true };
            }
        }
        let known = sequence.known_len();
        if self.config.enable_prefix_caching && !wants_logprobs {
            // At least the last token is computed: its logits are what the next token is sampled from.
            let most = ((known - 1) / block_size) as usize;
            shared.extend(self.pool.find(request.prompt_hashes.iter().chain(&sequence.output_hashes).take(most)));
        }
        let hits = shared.len() as u32;
        Start { computed: hits * block_size, fresh: known.div_ceil(block_size) - hits, fork: false }
    }

    /// Gives a waiting sequence its slot and blocks and tells the workers.
    fn start(&mut self, index: u32, start: &Start, draft: &mut Draft, now_us: u64) {
        self.count_start(index, start, now_us);
        for block in &self.scratch.shared {
            self.pool.hold(*block);
        }
        let sequence = &mut self.sequences[index];
        self.waiting.remove(sequence.rank);
        sequence.place = Place::Running;
        sequence.slot = self.free_slots.pop().expect("a free slot was seen");
        sequence.incarnation = self.next_incarnation;
        self.next_incarnation += 1;
        sequence.cacheable = true;
        sequence.computed = start.computed;
        sequence.table.extend(&self.scratch.shared);
        if !start.fork {
            sequence.named = sequence.table.len() as u32;
            for _ in 0..start.fresh {
                sequence.table.push(self.pool.take().expect("availability was checked"));
            }
        }
        let entry = RunningEntry { rank: sequence.rank, index, incarnation: sequence.incarnation };
        let at = self.running.partition_point(|other| other.rank < entry.rank);
        self.running.insert(at, entry);
        let added = self.new_sequence(index);
        draft.plan.added.push(added);
        if start.fork {
            self.copy_before_write(index, draft);
        }
    }

    /// First start only: timestamps, cache counters, and `Started` for the request.
    fn count_start(&mut self, index: u32, start: &Start, now_us: u64) {
        let sequence = &mut self.sequences[index];
        if sequence.times.scheduled_us.is_some() {
            return;
        }
        sequence.times.scheduled_us = Some(now_us);
        let request = sequence.request;
        if self.config.enable_prefix_caching && !start.fork {
            self.totals.prefix_cache_queries += u64::from(sequence.prompt_len);
            self.totals.prefix_cache_hits += u64::from(start.computed);
        }
        self.report_started(request, start.computed);
    }

    fn new_sequence(&self, index: u32) -> NewSequence {
        let sequence = &self.sequences[index];
        let request = &self.requests[sequence.request];
        let mut tokens = Vec::with_capacity(sequence.known_len() as usize);
        tokens.extend_from_slice(&request.prompt);
        tokens.extend_from_slice(&sequence.output);
        let mut sampling = request.sampling.clone();
        if !sequence.wants_prompt_logprobs(&request.sampling) {
            sampling.prompt_logprobs = None;
        }
        NewSequence {
            slot: sequence.slot.0,
            tokens,
            num_prompt_tokens: sequence.prompt_len,
            blocks: sequence.table.iter().map(|block| block.0).collect(),
            sampling: Some(sampling),
            seed: sequence.seed,
            request_id: request.request_id.clone(),
            traceparent: request.traceparent.clone(),
        }
    }

    /// Copy-on-write: the block that the next row writes to becomes the sequence's own. Only a fork needs it; cache hits
    /// are whole blocks before the first position that a row writes.
    fn copy_before_write(&mut self, index: u32, draft: &mut Draft) {
        let sequence = &mut self.sequences[index];
        let at = (sequence.computed / self.config.block_size) as usize;
        let shared = sequence.table[at];
        if !self.pool.is_shared(shared) {
            return;
        }
        let own = self.pool.take().expect("availability was checked");
        // The source stays intact until the copy ran: its other holder keeps it, and rows run after copies.
        self.pool.release(shared);
        sequence.table[at] = own;
        draft.plan.copy_from.push(shared.0);
        draft.plan.copy_to.push(own.0);
        draft.plan.replace_slot.push(sequence.slot.0);
        draft.plan.replace_index.push(at as u32);
        draft.plan.replace_block.push(own.0);
    }

    /// A row of `num_tokens` more tokens; it samples when it reaches the last one.
    fn push_row(&mut self, draft: &mut Draft, index: u32, num_tokens: u32) {
        let sequence = &mut self.sequences[index];
        let start = sequence.computed;
        let end = start + num_tokens;
        let sample = end == sequence.planned_len();
        sequence.computed = end;
        sequence.in_flight += u32::from(sample);
        if sequence.prompt_done_in == 0 && end >= sequence.prompt_len {
            sequence.prompt_done_in = self.next_step.0;
            self.scratch.prompts_done.push(sequence.request);
        }
        draft.left = draft.left.saturating_sub(num_tokens);
        let plan = &mut draft.plan;
        plan.slot.push(sequence.slot.0);
        plan.start.push(start);
        plan.num_tokens.push(num_tokens);
        plan.sample.push(sample.into());
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
