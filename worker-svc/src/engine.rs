//! Executes plans: changes to the slots, forward passes, tokens.
//!
//! A plan is *submitted*, which asks the device for everything it says, and later *finished*, which takes what the
//! device chose. The next plan may be submitted in between: its rows name slots whose newest token is not known yet.
//! What needs a token or logits on the host (choices that the device cannot make, log-probabilities of prompts) is
//! completed while its plan is submitted, after all plans before it.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use collectives::Collective;
use kernels::{
    ops::Timing,
    sample::{STEPS_IN_FLIGHT, Ticket},
};
use models::{Logits, Runner};
use proto::{Candidates, StepPlan, StepResult, TokenLogprobs};
use sampling::{Logprobs, Sampled, token_logprobs};

use crate::{
    error::StepError,
    passes::{Piece, Wanted, check_rows, passes},
    preparation::Preparation,
    recording::Recorder,
    rows::{Chooser, Rows, SampledBy},
    sampler::Sampler,
    slots::{Slot, Slots, malformed, no_slot},
    step_log::Note,
    turns::Work,
};

/// One epoch of a worker: the model, the slots, the group.
pub(crate) struct Engine<'m> {
    model: &'m mut dyn Runner,
    slots: Slots,
    group: Box<dyn Collective>,
    recorder: &'m mut Recorder,
    sampler: Sampler,
    max_logit_rows: usize,
    /// Plans submitted and not finished, oldest first.
    flights: VecDeque<Flight>,
    /// When the last plan was finished.
    last_finish: Instant,
    preparation: Preparation,
    chosen: Vec<Sampled>,
}

/// A plan under way.
struct Flight {
    result: StepResult,
    submitted: Instant,
    awaited: Option<Awaited>,
    note: Option<Note>,
}

/// Tokens that the device has been asked for.
struct Awaited {
    ticket: Ticket,
    choosers: Vec<Chooser>,
}

impl<'m> Engine<'m> {
    /// A group's engine. The slots are empty, on the device too.
    pub(crate) fn new(
        (model, recorder): (&'m mut dyn Runner, &'m mut Recorder),
        slots: Slots,
        group: Box<dyn Collective>,
        options: Options,
    ) -> Self {
        model.set_slots(slots.count());
        Self {
            model,
            slots,
            group,
            recorder,
            sampler: Sampler::new(options.threads),
            max_logit_rows: options.max_logit_rows,
            flights: VecDeque::with_capacity(STEPS_IN_FLIGHT),
            last_finish: Instant::now(),
            preparation: Preparation::default(),
            chosen: Vec::new(),
        }
    }

    /// Asks the device for a step. There must be room.
    pub(crate) fn submit(&mut self, mut plan: StepPlan) -> Result<(), StepError> {
        let submitted = Instant::now();
        check_rows(&plan)?;
        if !plan.draft.is_empty() && self.model.cache().state_bytes > 0 {
            let reason = "drafted tokens for a model with a recurrent state, which cannot be taken back";
            return Err(malformed(plan.step, reason));
        }
        self.change_slots(&mut plan)?;
        let mut result = StepResult { epoch: plan.epoch, step: plan.step, ..StepResult::default() };
        let mut awaited = None;
        let passes = passes(&plan, &self.slots, self.max_logit_rows)?;
        let alone = passes.len() == 1;
        for pieces in &passes {
            let on_host = !alone || pieces.iter().any(|piece| self.needs_host(piece));
            let rows = Rows::new(pieces, &plan, &self.slots);
            let asked = self.model.submit(rows.batch(), &rows.logit_rows, &rows.choices, &mut *self.group)?;
            let asked = Awaited { ticket: asked, choosers: rows.choosers };
            self.expect(&asked);
            if on_host {
                self.complete_earlier()?;
                self.complete_here(pieces, &plan, asked, &mut result)?;
            } else {
                awaited = Some(asked);
            }
        }
        let idle_since = self.is_idle().then_some(self.last_finish);
        let note = Note::of(&plan, submitted, idle_since);
        self.flights.push_back(Flight { result, submitted, awaited, note });
        self.preparation.goes_on();
        // While the device works.
        self.record(true).map(|_| ())
    }

    /// From here on, the device times what it does.
    pub(crate) fn start_profile(&mut self) {
        self.model.start_profile();
    }

    /// What it did since then.
    pub(crate) fn end_profile(&mut self) -> Vec<Timing> {
        self.model.end_profile()
    }

    /// What [`Recorder::made`] says.
    pub(crate) fn recordings(&self) -> (usize, Duration, u64) {
        self.recorder.made()
    }

    /// Steps run kernel by kernel from here on.
    pub(crate) fn forget_recordings(&mut self, recordable: &[usize]) {
        *self.recorder = Recorder::new(true);
        self.model.set_capture_sizes(recordable);
    }

    /// Does a piece of what is left for times when nothing runs: steps are recorded, then the device prepares for those
    /// to come.
    pub(crate) fn pass_time(&mut self) -> Result<(), StepError> {
        if !self.record(false)? {
            self.preparation.go_on(self.model);
            self.model.check_device()?;
        }
        Ok(())
    }

    /// Lets the device record a kind of step, if there is one left; whether there was. `busy`: plans are under way.
    pub(crate) fn record(&mut self, busy: bool) -> Result<bool, StepError> {
        let Some(step) = self.recorder.next(self.model, busy) else { return Ok(false) };
        self.recorder.record(step, self.model, &mut *self.group)?;
        self.preparation.goes_on();
        Ok(true)
    }

    /// Waits for the oldest plan. The result has rows on rank 0 only; every rank appends the tokens, so that all keep
    /// the same history.
    pub(crate) fn finish(&mut self) -> Result<Option<StepResult>, StepError> {
        let Some(Flight { mut result, submitted, awaited, note }) = self.flights.pop_front() else { return Ok(None) };
        if let Some(awaited) = awaited {
            self.complete(awaited, FromHost::default(), &mut result)?;
        }
        let now = Instant::now();
        // The time that was this plan's alone.
        let took = now.saturating_duration_since(submitted.max(self.last_finish));
        self.last_finish = now;
        result.compute_us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        note.into_iter().for_each(|note| note.finished(took));
        if self.group.rank() != 0 {
            result = StepResult {
                epoch: result.epoch,
                step: result.step,
                compute_us: result.compute_us,
                ..StepResult::default()
            };
        }
        Ok(Some(result))
    }

    fn change_slots(&mut self, plan: &mut StepPlan) -> Result<(), StepError> {
        let added: Vec<u32> = plan.added.iter().map(|sequence| sequence.slot).collect();
        self.slots.apply(plan)?;
        if !plan.copy_from.is_empty() {
            self.model.copy_blocks(&plan.copy_from, &plan.copy_to);
        }
        self.slots.replace(plan)?;
        for number in added {
            let slot = self.slots.get_mut(number).ok_or_else(|| no_slot(plan.step, number))?;
            self.model.set_prompt(number, slot.history.prompt());
            let choice = slot.sampling.device_params().filter(|_| slot.candidates == 0);
            if let Some(choice) = choice.filter(|params| self.model.can_sample(params)) {
                let counts: Vec<(u32, u32)> = slot.history.counts().collect();
                self.model.set_slot(number, &choice, &counts);
                slot.on_device = true;
            }
        }
        Ok(())
    }

    /// Whether the host must see a piece's logits.
    fn needs_host(&self, piece: &Piece) -> bool {
        match piece.wanted {
            Wanted::Nothing => false,
            Wanted::Last => !self.slots.get(piece.slot).is_some_and(|slot| slot.on_device),
            Wanted::All { .. } | Wanted::Drafted { .. } | Wanted::Candidates => true,
        }
    }

    /// Histories grow by tokens that are known later.
    fn expect(&mut self, asked: &Awaited) {
        for chooser in &asked.choosers {
            if let Some(slot) = self.slots.get_mut(chooser.slot) {
                slot.pending += 1;
            }
        }
    }

    /// Takes the tokens of all plans under way; they are finished later.
    fn complete_earlier(&mut self) -> Result<(), StepError> {
        let mut flights = std::mem::take(&mut self.flights);
        for flight in &mut flights {
            if let Some(awaited) = flight.awaited.take() {
                self.complete(awaited, FromHost::default(), &mut flight.result)?;
            }
        }
        self.flights = flights;
        Ok(())
    }

    /// Does the host's part of a pass, and takes the device's.
    fn complete_here(
        &mut self,
        pieces: &[Piece],
        plan: &StepPlan,
        asked: Awaited,
        result: &mut StepResult,
    ) -> Result<(), StepError> {
        let logits = self.model.logits()?;
        let (mut work, mut searched): (Vec<(&[f32], &Slot)>, Vec<(&[f32], &Slot)>) = Default::default();
        let mut next = 0;
        for piece in pieces {
            let slot = self.slots.get(piece.slot).expect("passes looked it up");
            let first = next;
            next += piece.logit_rows();
            if let Wanted::All { .. } = piece.wanted {
                score_prompt(piece, slot, logits, first, &mut result.prompt_logprobs);
            }
            if piece.samples() && !slot.on_device {
                work.push((logits.row(next - 1), slot));
            }
            if piece.wanted == Wanted::Candidates {
                searched.push((logits.row(next - 1), slot));
            }
        }
        let (sampled, candidates) = (self.sampler.run(&work), self.sampler.candidates(&searched));
        let mut from_host = FromHost { sampled, candidates, verified: Vec::new() };
        let mut next = 0;
        for piece in pieces {
            let draft = piece.draft(plan);
            if !draft.is_empty() {
                let slot = self.slots.get_mut(piece.slot).expect("passes looked it up");
                from_host.verified.push(verify(&mut self.sampler, slot, draft, |offset| logits.row(next + offset)));
            }
            next += piece.logit_rows();
        }
        self.complete(asked, from_host, result)
    }

    /// Puts the tokens of a pass, the device's and the host's, into histories and result, in the plan's order.
    fn complete(&mut self, asked: Awaited, from_host: FromHost, result: &mut StepResult) -> Result<(), StepError> {
        let mut chosen = std::mem::take(&mut self.chosen);
        self.model.take(asked.ticket, &mut chosen)?;
        let mut from_device = chosen.drain(..);
        let FromHost { sampled, verified, candidates } = from_host;
        let (mut from_host, mut verified, mut candidates) =
            (sampled.into_iter(), verified.into_iter(), candidates.into_iter());
        for chooser in asked.choosers {
            let sampled = match chooser.sampler {
                SampledBy::Device => from_device.next(),
                SampledBy::Host => from_host.next(),
                SampledBy::Search => {
                    self.report_candidates(chooser, candidates.next().expect("of each beam"), result);
                    continue;
                }
                SampledBy::Verification => {
                    self.append_verified(chooser, verified.next().expect("each draft was verified"), result);
                    continue;
                }
            };
            self.append(chooser, sampled.expect("one for each row that was asked for"), result);
        }
        drop(from_device);
        self.chosen = chosen;
        Ok(())
    }

    fn append(&mut self, chooser: Chooser, sampled: Sampled, result: &mut StepResult) {
        // A later plan may have given the slot to another sequence; the scheduler knows whose token this is.
        let held = self.slots.get_mut(chooser.slot);
        if let Some(slot) = held.filter(|slot| slot.incarnation == chooser.incarnation) {
            slot.pending -= 1;
            slot.history.push(sampled.token);
        }
        if !result.count.is_empty() {
            result.count.push(1);
        }
        result.slot.push(chooser.slot);
        report(sampled, result);
    }

    /// What may continue a beam goes into the result alone.
    fn report_candidates(&mut self, chooser: Chooser, candidates: Candidates, result: &mut StepResult) {
        if let Some(slot) = self.slots.get_mut(chooser.slot) {
            slot.pending -= 1;
        }
        result.count.resize(result.slot.len(), 1);
        result.count.push(0);
        result.slot.push(chooser.slot);
        result.candidates.push(Candidates { slot: chooser.slot, ..candidates });
    }

    /// The same of a verified draft, whose tokens are in the history already.
    fn append_verified(&mut self, chooser: Chooser, sampled: Vec<Sampled>, result: &mut StepResult) {
        if let Some(slot) = self.slots.get_mut(chooser.slot) {
            slot.pending -= 1;
        }
        // Rows before it gave a token each, which needs no words where all do.
        result.count.resize(result.slot.len(), 1);
        result.count.push(sampled.len() as u32);
        result.slot.push(chooser.slot);
        sampled.into_iter().for_each(|sampled| report(sampled, result));
    }
}

/// What the host chose in a pass, in order.
#[derive(Default)]
struct FromHost {
    sampled: Vec<Sampled>,
    /// The tokens of each row that verifies.
    verified: Vec<Vec<Sampled>>,
    /// What may continue each beam.
    candidates: Vec<Candidates>,
}

/// Samples after the last known token of a sequence and after each drafted one, as long as what is drafted is what is
/// sampled, and continues the history with it. `logits` has a row for each of these positions.
fn verify<'l>(
    sampler: &mut Sampler,
    slot: &mut Slot,
    draft: &[u32],
    logits: impl Fn(usize) -> &'l [f32],
) -> Vec<Sampled> {
    // The device would have to be told of every token that is chosen here.
    slot.on_device = false;
    let mut verified = Vec::with_capacity(draft.len() + 1);
    for offset in 0..=draft.len() {
        let sampled = sampler.run(&[(logits(offset), slot)]).remove(0);
        slot.history.push(sampled.token);
        let is_right = draft.get(offset) == Some(&sampled.token);
        verified.push(sampled);
        if !is_right {
            break;
        }
    }
    verified
}

/// Puts a token into the result.
fn report(sampled: Sampled, result: &mut StepResult) {
    if let Some(logprobs) = sampled.logprobs {
        result.logprobs.push(message(result.token.len() as u32, sampled.token, logprobs));
    }
    result.token.push(sampled.token);
}

impl Work for Engine<'_> {
    fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    fn is_done(&mut self) -> bool {
        let awaited = self.flights.front().and_then(|flight| flight.awaited.as_ref());
        awaited.is_none_or(|awaited| self.model.is_done(awaited.ticket))
    }

    fn has_room(&self) -> bool {
        self.flights.len() < STEPS_IN_FLIGHT
    }

    fn has_pastime(&self) -> bool {
        !self.preparation.is_over() || self.recorder.next(self.model, false).is_some()
    }
}

impl Drop for Engine<'_> {
    /// The next group's engine finds a device that nobody waits for.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // Whoever uses a faulty device next is told.
            let _ = self.complete_earlier();
        }
    }
}

/// Sizes of an engine.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    /// Threads that choose tokens on the host.
    pub threads: usize,
    /// Rows of logits in a pass at most.
    pub max_logit_rows: usize,
}

/// Log-probabilities of the prompt tokens that follow a piece's positions.
fn score_prompt(piece: &Piece, slot: &Slot, logits: Logits<'_>, first: usize, out: &mut Vec<TokenLogprobs>) {
    let (tokens, num_prompt) = (slot.history.tokens(), slot.history.num_prompt());
    let top = slot.prompt_logprobs.unwrap_or(0);
    for offset in 0..piece.len as usize {
        let position = piece.start as usize + offset + 1;
        if position < num_prompt {
            let token = tokens[position];
            let scored = token_logprobs(logits.row(first + offset), token, top);
            let mut entry = message(position as u32, token, scored);
            entry.prompt_of_sequence = Some(piece.slot.into());
            out.push(entry);
        }
    }
}

fn message(index: u32, token: u32, logprobs: Logprobs) -> TokenLogprobs {
    let (top_ids, top_logprobs) = logprobs.top.into_iter().unzip();
    TokenLogprobs {
        index,
        logprob: logprobs.logprob,
        rank: logprobs.rank,
        top_ids,
        top_logprobs,
        prompt_of_sequence: None,
        token,
    }
}

#[cfg(test)]
mod tests;
