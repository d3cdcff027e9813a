//! The facade: the scheduler's state, and the events that change it outside of plans and results.

use crate::{
    blocks::changes::BlockChange,
    blocks::groups::Groups,
    blocks::pool::BlockPool,
    config::{Config, ConfigError},
    error::{DraftRefusal, QueueBound, Refusal},
    flight::{Flight, Want},
    plan::adapters::AdapterSlots,
    plan::prefill_budget::PrefillRate,
    plan::scratch::Scratch,
    requests::queue::{Queue, QueueKey},
    requests::request::{self, Admitted, Checked, Request, Seeds},
    requests::sequence::{Sequence, Status},
    slab::Slab,
    stats::{End, FinishedChoice, Stats, Totals},
};
use block_hash::BlockHash;
use ids::{Epoch, SequenceId, SlotId, StepId};
use proto::{Failure, FinishReason, RequestKey, TokenBatch, failure::Kind};
use std::collections::{HashMap, VecDeque};

/// The scheduler of one worker group.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) config: Config,
    /// The formed group's epoch; `None` while there is none.
    pub(crate) epoch: Option<Epoch>,
    draining: bool,
    pub(crate) groups: Groups,
    pub(crate) pool: BlockPool,
    pub(crate) requests: Slab<Request>,
    pub(crate) sequences: Slab<Sequence>,
    by_key: HashMap<RequestKey, u32>,
    by_sequence: HashMap<SequenceId, u32>,
    pub(crate) waiting: Queue,
    /// In the queue's order. Entries of ended sequences stay until the next plan sweeps them out.
    pub(crate) running: Vec<RunningEntry>,
    pub(crate) swept_out: u32,
    pub(crate) deferred: u32,
    pub(crate) free_slots: Vec<SlotId>,
    pub(crate) adapters: AdapterSlots,
    /// Slots for the next plan's `removed`.
    pub(crate) removed: Vec<u32>,
    /// Plans without a result, oldest first.
    pub(crate) flights: VecDeque<Flight>,
    pub(crate) spare_flights: Vec<Flight>,
    pub(crate) next_step: StepId,
    pub(crate) prefill_rate: PrefillRate,
    next_sequence: u64,
    pub(crate) next_incarnation: u64,
    seeds: Seeds,
    /// Requests that never ran, and their prompt tokens.
    queued_requests: u32,
    queued_tokens: u64,
    pub(crate) iteration_tokens: u32,
    pub(crate) totals: Totals,
    pub(crate) out: TokenBatch,
    finished: Vec<FinishedChoice>,
    pub(crate) scratch: Scratch,
}

/// All that is known of a sequence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History<'a> {
    /// Token ids of the prompt.
    pub prompt: &'a [u32],
    /// Token ids that follow.
    pub output: &'a [u32],
}

/// A sequence that runs, with what its order needs at hand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunningEntry {
    pub key: QueueKey,
    pub index: u32,
    pub incarnation: u64,
}

impl Scheduler {
    /// A scheduler without a worker group: it refuses requests until [`Scheduler::group_formed`].
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            seeds: Seeds(config.seed),
            groups: Groups::new(&config),
            config,
            epoch: None,
            draining: false,
            pool: BlockPool::new(0),
            requests: Slab::new(),
            sequences: Slab::new(),
            by_key: HashMap::new(),
            by_sequence: HashMap::new(),
            waiting: Queue::default(),
            running: Vec::new(),
            swept_out: 0,
            deferred: 0,
            free_slots: Vec::new(),
            adapters: AdapterSlots::default(),
            removed: Vec::new(),
            flights: VecDeque::new(),
            spare_flights: Vec::new(),
            next_step: StepId(1),
            prefill_rate: PrefillRate::default(),
            next_sequence: 1,
            next_incarnation: 1,
            queued_requests: 0,
            queued_tokens: 0,
            iteration_tokens: 0,
            totals: Totals::default(),
            out: TokenBatch::default(),
            finished: Vec::new(),
            scratch: Scratch::default(),
        })
    }

    /// What it was built with.
    pub fn config(&self) -> &Config {
        &self.config
    }

    // ---- worker groups

    /// All ranks took part in forming `epoch`, each with `num_blocks` empty KV blocks. Steps count from 1 again.
    /// Requests of a group before, should any be left, fail first.
    pub fn group_formed(&mut self, epoch: Epoch, num_blocks: u32, now_us: u64) {
        self.group_lost("the worker group was formed anew", now_us);
        self.epoch = Some(epoch);
        self.pool.renew(num_blocks);
        self.free_slots = (0..self.config.max_num_seqs).rev().map(SlotId).collect();
        self.adapters = AdapterSlots::new(self.config.adapter_slots);
        self.next_step = StepId(1);
        self.prefill_rate = PrefillRate::default();
    }

    /// The group is gone, with all its KV: everything live fails as unavailable, the prefix cache is empty, and nothing
    /// is admitted until the next forming. `reason` becomes the failure's message.
    pub fn group_lost(&mut self, reason: &str, now_us: u64) {
        let failure = Failure { kind: Kind::Unavailable.into(), message: reason.into(), param: String::new() };
        self.fail_all(&failure, now_us);
        self.epoch = None;
        self.pool.renew(0);
        self.running.clear();
        self.swept_out = 0;
        self.free_slots.clear();
        self.removed.clear();
        self.flights.clear();
        self.iteration_tokens = 0;
    }

    /// Ends every live request with `failure`; the group, its cache and plans in flight stay. Returns how many.
    pub fn fail_all(&mut self, failure: &Failure, now_us: u64) -> usize {
        let live: Vec<u32> = self.requests.iter().map(|(index, _)| index).collect();
        live.iter().for_each(|request| self.fail(*request, failure, now_us));
        live.len()
    }

    /// Ends a live request with `failure`.
    pub(crate) fn fail(&mut self, request: u32, failure: &Failure, now_us: u64) {
        self.out.failed.push(self.requests[request].failed(failure));
        self.leave_queue(request);
        self.end_all_choices(request, End::Failed, now_us);
    }

    /// From now on nothing is admitted; what is there runs to its end.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    // ---- the prefix cache, for others

    /// Remembers from now on how the prefix cache changes, for [`Scheduler::take_block_changes`], or no longer.
    pub fn watch_blocks(&mut self, on: bool) {
        self.pool.watch(on);
    }

    /// Whether it does.
    pub fn is_watched(&self) -> bool {
        self.pool.is_watched()
    }

    /// Hashes of all blocks that can be found again.
    pub fn stored_blocks(&self) -> impl Iterator<Item = BlockHash> {
        self.pool.hashes()
    }

    /// What has changed of them since the last call, in order.
    pub fn take_block_changes(&mut self) -> impl Iterator<Item = BlockChange> {
        self.pool.take_changes()
    }

    // ---- requests

    /// Takes a request whose prompt is token ids into the queue, or says why not. A refused request left no trace; its
    /// sender must be told (`Refusal::to_failure`).
    pub fn admit(&mut self, request: proto::Request, now_us: u64) -> Result<(), Refusal> {
        let checked = self.check_admission(&request).inspect_err(|_| self.totals.refused += 1)?;
        let first_sequence = SequenceId(self.next_sequence);
        let sequences = request::sequences(&request);
        self.next_sequence += u64::from(sequences);
        let admitted = Admitted { checked, first_sequence, drawn_seed: self.seeds.draw(), now_us };
        let request = Request::new(request, admitted, &self.config);
        self.queued_requests += 1;
        self.queued_tokens += request.prompt.len() as u64;
        self.totals.admitted += 1;
        let shares = request.beams.is_some() || !self.config.recurrent;
        let index = self.requests.insert(request);
        self.by_key.insert(checked.key, index);
        self.deferred += sequences;
        for choice in 0..sequences {
            let sequence = Sequence::new(index, &self.requests[index], choice, &self.config);
            let id = sequence.id;
            let sequence = self.sequences.insert(sequence);
            self.by_sequence.insert(id, sequence);
            self.requests[index].choices.push(Some(sequence));
            // Choice 0 computes the prompt; the others wait for it outside of the queue (see `release_siblings`). A
            // recurrent state cannot be shared: there each computes its own.
            if choice == 0 || !shares {
                self.enqueue(sequence);
            }
        }
        Ok(())
    }

    fn check_admission(&self, request: &proto::Request) -> Result<Checked, Refusal> {
        if self.draining {
            return Err(Refusal::Draining);
        }
        if self.epoch.is_none() {
            return Err(Refusal::NotReady);
        }
        let checked = request::check(request, &self.config, &self.groups, self.pool.num_blocks())?;
        if self.by_key.contains_key(&checked.key) {
            return Err(Refusal::Duplicate);
        }
        if let Some(limit) = self.config.max_num_queued_reqs
            && self.queued_requests >= limit
        {
            return Err(Refusal::Overloaded { bound: QueueBound::Requests, limit: limit.into() });
        }
        // An empty queue takes any prompt; else one above the bound could never run.
        let tokens = request::prompt_ids(request)?.len() as u64;
        if let Some(limit) = self.config.max_num_queued_tokens
            && self.queued_requests > 0
            && self.queued_tokens + tokens > limit
        {
            return Err(Refusal::Overloaded { bound: QueueBound::Tokens, limit });
        }
        Ok(checked)
    }

    /// Ends a request whose client left. Returns whether it was there. Its choices come out as finished with `ABORT`.
    pub fn abort(&mut self, key: &RequestKey, now_us: u64) -> bool {
        let found = self.by_key.get(key).copied();
        found.inspect(|index| self.abort_request(*index, now_us)).is_some()
    }

    /// The same by the id that clients see; for operators. Returns whether any was there.
    pub fn abort_by_id(&mut self, request_id: &str, now_us: u64) -> bool {
        self.abort_where(|request| request.request_id == request_id, now_us) > 0
    }

    /// A gateway is gone and with it the readers of its requests. Returns how many were dropped.
    pub fn gateway_gone(&mut self, gateway: u64, now_us: u64) -> usize {
        self.abort_where(|request| request.key.gateway == gateway, now_us)
    }

    fn abort_where(&mut self, matches: impl Fn(&Request) -> bool, now_us: u64) -> usize {
        let found: Vec<u32> =
            self.requests.iter().filter(|(_, request)| matches(request)).map(|(index, _)| index).collect();
        found.iter().for_each(|index| self.abort_request(*index, now_us));
        found.len()
    }

    fn abort_request(&mut self, index: u32, now_us: u64) {
        // The detokenizer must have heard of a request before it can hear of its end.
        self.report_started(index, 0);
        let Request { choices, n, .. } = &self.requests[index];
        for sequence in choices.clone().into_iter().take(*n as usize).flatten() {
            self.report_finished(sequence, FinishReason::Abort, None);
        }
        self.end_all_choices(index, End::Abort, now_us);
    }

    /// The detokenizer found stop strings: these sequences end without another word. Unknown ones have ended already.
    pub fn stopped(&mut self, sequences: &[u64], now_us: u64) {
        for id in sequences {
            match self.by_sequence.get(&SequenceId(*id)).copied() {
                // Beams have no text of their own before the search is over, and nobody reads it.
                Some(index) if self.is_beam(index) => {
                    self.end_all_choices(self.sequences[index].request, End::Stop, now_us);
                }
                Some(index) => self.end_choice(index, End::Stop, now_us),
                None => {}
            }
        }
    }

    // ---- speculation

    /// Takes tokens that a proposer expects to follow all that is known of a sequence. The sequence's next row verifies
    /// as many of them as [`Config::speculative_tokens`], its limit and free blocks allow; a later proposal replaces an
    /// earlier one. An empty one takes it back.
    ///
    /// Proposers live outside. After a step's `complete`, the output says which sequences grew; whoever proposes for
    /// them does so before the next `plan`. An n-gram proposer looks into [`Scheduler::history`]. A draft model's
    /// tokens come with the step's result, and are handed on here. Neither is in a hurry: while speculation is on, a
    /// sequence has no row until its last one's tokens are known, and one without a draft just samples.
    pub fn propose(&mut self, sequence: SequenceId, tokens: &[u32]) -> Result<(), DraftRefusal> {
        let (most, vocab_size) = (self.config.speculative_tokens as usize, self.config.most_vocab_size());
        if most == 0 {
            return Err(DraftRefusal::Off);
        }
        let index = self.by_sequence.get(&sequence).copied().ok_or(DraftRefusal::NotRunning)?;
        let sequence = &mut self.sequences[index];
        if sequence.status != Status::Running {
            return Err(DraftRefusal::NotRunning);
        }
        if sequence.wants != Want::Sample {
            return Err(DraftRefusal::NotGenerating);
        }
        if sequence.in_flight > 0 {
            return Err(DraftRefusal::InFlight);
        }
        if let Some(token) = tokens.iter().find(|token| **token >= vocab_size) {
            return Err(DraftRefusal::TokenOutOfRange { token: *token, vocab_size });
        }
        sequence.draft.clear();
        sequence.draft.extend_from_slice(&tokens[..tokens.len().min(most)]);
        Ok(())
    }

    /// The tokens of a live sequence, for proposers.
    pub fn history(&self, sequence: SequenceId) -> Option<History<'_>> {
        let sequence = &self.sequences[*self.by_sequence.get(&sequence)?];
        Some(History { prompt: &self.requests[sequence.request].prompt, output: &sequence.output })
    }

    // ---- what comes out

    /// Appends all that happened since the last call to `batch`.
    pub fn take_output(&mut self, batch: &mut TokenBatch) {
        if batch == &TokenBatch::default() {
            std::mem::swap(batch, &mut self.out);
            return;
        }
        let mut out = std::mem::take(&mut self.out);
        let base = batch.token.len() as u32;
        for logprobs in out.logprobs.iter_mut().filter(|logprobs| logprobs.prompt_of_sequence.is_none()) {
            logprobs.index += base;
        }
        batch.started.append(&mut out.started);
        batch.sequence.append(&mut out.sequence);
        batch.token.append(&mut out.token);
        batch.logprobs.append(&mut out.logprobs);
        batch.finished.append(&mut out.finished);
        batch.failed.append(&mut out.failed);
        batch.pooled.append(&mut out.pooled);
    }

    /// Whether `take_output` has something to give.
    pub fn has_output(&self) -> bool {
        let out = &self.out;
        !(out.started.is_empty()
            && out.token.is_empty()
            && out.logprobs.is_empty()
            && out.pooled.is_empty()
            && out.finished.is_empty()
            && out.failed.is_empty())
    }

    /// Appends the choices that ended since the last call. To be called now and then, else they gather.
    pub fn take_finished(&mut self, into: &mut Vec<FinishedChoice>) {
        into.append(&mut self.finished);
    }

    /// Gauges and counters of now.
    pub fn stats(&self) -> Stats {
        Stats {
            running: self.running.len() as u32 - self.swept_out,
            waiting_for_capacity: self.waiting.len() as u32,
            waiting_deferred: self.deferred,
            queued_requests: self.queued_requests,
            queued_tokens: self.queued_tokens,
            steps_in_flight: self.flights.len() as u32,
            num_blocks: self.pool.num_blocks(),
            used_blocks: self.pool.used(),
            shared_blocks: self.pool.references() - u64::from(self.pool.used()),
            cached_blocks: self.pool.cached(),
            iteration_tokens: self.iteration_tokens,
            totals: self.totals,
        }
    }

    /// Whether any request is live.
    pub fn has_unfinished(&self) -> bool {
        self.requests.len() > 0
    }

    /// Whether nothing is live and no plan is without a result.
    pub fn is_idle(&self) -> bool {
        !self.has_unfinished() && self.flights.is_empty()
    }

    /// Forgets every cached block. What runs keeps its blocks, but they will not be found by others.
    pub fn reset_prefix_cache(&mut self) {
        self.pool.forget_hashes();
        for entry in &self.running {
            if let Some(sequence) = self.sequences.get_mut(entry.index) {
                sequence.cacheable = false;
            }
        }
    }

    // ---- shared with plan and complete

    pub(crate) fn enqueue(&mut self, index: u32) {
        let sequence = &mut self.sequences[index];
        if sequence.status == Status::Deferred {
            self.deferred -= 1;
        }
        sequence.status = Status::Waiting;
        self.waiting.push(sequence.key, index);
    }

    /// `Started`, once. From here on the request does not count as queued.
    pub(crate) fn report_started(&mut self, request: u32, cached_tokens: u32) {
        if self.requests[request].started {
            return;
        }
        self.leave_queue(request);
        self.totals.prompt_tokens += self.requests[request].prompt.len() as u64;
        self.out.started.push(self.requests[request].started(cached_tokens));
    }

    fn leave_queue(&mut self, request: u32) {
        let request = &mut self.requests[request];
        if !std::mem::replace(&mut request.started, true) {
            self.queued_requests -= 1;
            self.queued_tokens -= request.prompt.len() as u64;
        }
    }

    pub(crate) fn report_finished(&mut self, index: u32, reason: FinishReason, stop_token: Option<u32>) {
        let sequence = self.sequences[index].id.0;
        self.out.finished.push(proto::Finished { sequence, reason: reason.into(), stop_token });
    }

    fn end_all_choices(&mut self, request: u32, end: End, now_us: u64) {
        let Request { choices, beams, .. } = &self.requests[request];
        let mut choices: Vec<u32> = choices.iter().flatten().copied().collect();
        if beams.is_some() {
            // The request ends with a choice that was asked for, and those come first.
            choices.reverse();
        }
        choices.into_iter().for_each(|sequence| self.end_choice(sequence, end, now_us));
    }

    /// Takes a choice out of wherever it is and frees what it holds. The last choice takes the request along.
    pub(crate) fn end_choice(&mut self, index: u32, end: End, now_us: u64) {
        match self.sequences[index].status {
            Status::Deferred => self.deferred -= 1,
            Status::Waiting => {
                self.waiting.remove(self.sequences[index].key);
            }
            Status::Running => {
                self.free_worker_state(index);
                self.swept_out += 1;
            }
        }
        let Some(sequence) = self.sequences.remove(index) else { return };
        self.by_sequence.remove(&sequence.id);
        let request = &mut self.requests[sequence.request];
        request.choices[sequence.choice as usize] = None;
        request.live -= 1;
        // A search may have more beams than were asked for.
        if sequence.choice < request.n {
            self.totals.ended.count(end);
            self.finished.push(finished_choice(&sequence, request, end, now_us));
        }
        if request.live == 0 {
            self.by_key.remove(&request.key);
            let ended = self.requests.remove(sequence.request);
            let spare = ended.and_then(|request| request.beams).map(|beams| beams.spare_slots);
            self.free_slots.extend(spare.into_iter().flatten());
        } else if sequence.choice == 0 {
            // The others may still wait for it to compute the prompt.
            self.release_siblings(sequence.request);
        }
    }

    /// Gives slot and blocks back; safe even while plans in flight name them (see the crate's first page).
    pub(crate) fn free_worker_state(&mut self, index: u32) {
        let sequence = &mut self.sequences[index];
        self.removed.push(sequence.slot.0);
        self.free_slots.push(sequence.slot);
        // Last block first: of a cached chain, the end is evicted before what it depends on.
        for table in &mut sequence.tables {
            while let Some(block) = table.pop() {
                self.pool.release(block);
            }
        }
        sequence.forget_workers();
    }
}

fn finished_choice(sequence: &Sequence, request: &Request, end: End, now_us: u64) -> FinishedChoice {
    let times = sequence.times;
    let scheduled = times.scheduled_us.unwrap_or(now_us);
    let first_token = times.first_token_us.unwrap_or(scheduled);
    let last_token = times.last_token_us.max(first_token);
    FinishedChoice {
        key: request.key,
        sequence: sequence.id,
        choice: sequence.choice,
        end,
        is_last: request.live == 0,
        queue_us: scheduled.saturating_sub(times.queued_us),
        prefill_us: first_token.saturating_sub(scheduled),
        decode_us: last_token - first_token,
        inference_us: last_token.saturating_sub(scheduled),
        preemptions: times.preemptions,
        prompt_tokens: sequence.prompt_len,
        generated_tokens: sequence.output.len() as u32,
    }
}
