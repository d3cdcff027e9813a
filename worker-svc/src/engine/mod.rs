//! Executes plans: changes to the slots, forward passes, tokens.
//!
//! A plan is *submitted*, which launches its forward passes on the device, and later *finished*, which takes the tokens
//! that the device sampled. The next plan may be submitted in between: its rows name slots whose newest token is not
//! known yet. A pass whose logits the host needs (sampling that the device cannot do, drafts to verify,
//! log-probabilities of prompts) is completed while its plan is submitted, after all plans before it.

mod forward_pass;
mod input_batch;
mod sampler;
pub(crate) mod slots;
mod step_log;

use std::{collections::VecDeque, time::Instant};

use collectives::Collective;
use kernels::{
    ops::Timing,
    sample::{STEPS_IN_FLIGHT, Ticket},
};
use models::{Logits, Runner};
use proto::{Candidates, FailedRow, StepPlan, StepResult, TokenLogprobs};
use sampling::{Logprobs, Sampled, token_logprobs};

use self::{
    forward_pass::{Chunk, Wanted, check_rows, forward_passes},
    input_batch::{InputBatch, SampleTarget, SampledBy},
    sampler::{Row, Sampler},
    slots::{Slot, Slots, malformed, no_slot},
    step_log::Note,
};
use crate::{
    compute::run_loop::Work,
    error::StepError,
    guide::{self, Lent},
    idle::{
        graph_capture::{CaptureStats, GraphCapture, Load},
        warm_up::WarmUp,
    },
};

/// Executes the plans of one epoch on the model, with the slots and the group's ranks.
pub(crate) struct Engine<'m> {
    model: &'m mut dyn Runner,
    slots: Slots,
    group: Box<dyn Collective>,
    graphs: &'m mut GraphCapture,
    sampler: Sampler,
    max_logit_rows: usize,
    /// Threads that compute masks.
    mask_threads: usize,
    /// Plans submitted and not finished, oldest first.
    flights: VecDeque<Flight>,
    /// When the last plan was finished.
    last_finish: Instant,
    warm_up: WarmUp,
    /// The device's tokens; empty between calls, kept for its memory.
    sampled: Vec<Sampled>,
}

/// A model on its device.
pub(crate) struct OnDevice<'m> {
    pub runner: &'m mut dyn Runner,
    /// The CUDA graphs that were captured on it.
    pub graphs: &'m mut GraphCapture,
}

/// A plan in flight.
struct Flight {
    result: StepResult,
    submitted: Instant,
    pending: Option<PendingSamples>,
    note: Option<Note>,
}

/// Tokens that the device is sampling.
struct PendingSamples {
    ticket: Ticket,
    targets: Vec<SampleTarget>,
}

impl<'m> Engine<'m> {
    /// A group's engine. The slots are empty, on the device too.
    pub(crate) fn new(
        OnDevice { runner: model, graphs }: OnDevice<'m>,
        slots: Slots,
        group: Box<dyn Collective>,
        options: Options,
    ) -> Self {
        model.set_slots(slots.count());
        Self {
            model,
            slots,
            group,
            graphs,
            sampler: Sampler::new(options.threads),
            max_logit_rows: options.max_logit_rows,
            mask_threads: options.threads,
            flights: VecDeque::with_capacity(STEPS_IN_FLIGHT),
            last_finish: Instant::now(),
            warm_up: WarmUp::default(),
            sampled: Vec::new(),
        }
    }

    /// Launches a plan's forward passes. There must be room (see [`Work::has_room`]).
    pub(crate) fn submit(&mut self, mut plan: StepPlan) -> Result<(), StepError> {
        let submitted = Instant::now();
        check_rows(&plan)?;
        if !plan.draft.is_empty() && self.model.cache().state_bytes > 0 {
            let reason = "drafted tokens for a model with a recurrent state, which cannot be taken back";
            return Err(malformed(plan.step, reason));
        }
        self.change_slots(&mut plan)?;
        let mut result = StepResult { epoch: plan.epoch, step: plan.step, ..StepResult::default() };
        let mut pending = None;
        let passes = forward_passes(&plan, &self.slots, self.max_logit_rows)?;
        let alone = passes.len() == 1;
        for chunks in &passes {
            let input = InputBatch::new(chunks, &plan, &self.slots);
            let ticket = self.model.submit(input.batch(), &input.logit_rows, &input.sample_rows, &mut *self.group)?;
            let needs_host = input.needs_host;
            let asked = PendingSamples { ticket, targets: input.targets };
            self.mark_pending(&asked);
            if !alone || needs_host {
                self.complete_in_flight()?;
                // While the device runs the pass.
                self.compute_masks(chunks);
                self.sample_on_host(chunks, &plan, asked, &mut result)?;
            } else {
                pending = Some(asked);
            }
        }
        let idle_since = self.is_idle().then_some(self.last_finish);
        let note = Note::of(&plan, submitted, idle_since);
        self.flights.push_back(Flight { result, submitted, pending, note });
        self.warm_up.resume();
        // While the device works.
        self.capture(Load::InFlight).map(|_| ())
    }

    /// Has the device time its kernels from here on.
    pub(crate) fn start_profile(&mut self) {
        self.model.start_profile();
    }

    /// The kernels since then.
    pub(crate) fn end_profile(&mut self) -> Vec<Timing> {
        self.model.end_profile()
    }

    /// Figures of the captured graphs.
    pub(crate) fn capture_stats(&self) -> CaptureStats {
        self.graphs.stats()
    }

    /// Launches steps kernel by kernel from here on.
    pub(crate) fn disable_graphs(&mut self, capture_sizes: &[usize]) {
        *self.graphs = GraphCapture::new(true);
        self.model.set_capture_sizes(capture_sizes);
    }

    /// Runs a piece of an idle task: graphs are captured first, then the device warms up.
    pub(crate) fn run_idle_task(&mut self) -> Result<(), StepError> {
        if !self.capture(Load::Idle)? {
            self.warm_up.advance(self.model);
            self.model.check_device()?;
        }
        Ok(())
    }

    /// Captures the next decode step as a CUDA graph; whether one was left.
    fn capture(&mut self, load: Load) -> Result<bool, StepError> {
        let Some(size) = self.graphs.next_size(self.model, load) else { return Ok(false) };
        self.graphs.capture(size, self.model, &mut *self.group)?;
        self.warm_up.resume();
        Ok(true)
    }

    /// Waits for the oldest plan. Every rank appends the tokens, so that all keep the same history; only rank 0's
    /// result has rows.
    pub(crate) fn finish(&mut self) -> Result<Option<StepResult>, StepError> {
        let Some(Flight { mut result, submitted, pending, note }) = self.flights.pop_front() else { return Ok(None) };
        if let Some(pending) = pending {
            self.complete(pending, HostSamples::default(), &mut result)?;
        }
        let now = Instant::now();
        // Without the time in which the plan before it ran.
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
            if slot.guide.is_some() {
                continue;
            }
            let choice = slot.sampling.device_params().filter(|_| slot.candidates == 0);
            if let Some(choice) = choice.filter(|params| self.model.can_sample(params)) {
                let counts: Vec<(u32, u32)> = slot.history.counts().collect();
                self.model.set_slot(number, &choice, &counts);
                slot.on_device = true;
            }
        }
        Ok(())
    }

    /// Counts the tokens that histories will grow by.
    fn mark_pending(&mut self, asked: &PendingSamples) {
        for target in &asked.targets {
            if let Some(slot) = self.slots.get_mut(target.slot) {
                slot.pending += 1;
            }
        }
    }

    /// Takes the tokens of all plans in flight, which are finished later.
    fn complete_in_flight(&mut self) -> Result<(), StepError> {
        let mut flights = std::mem::take(&mut self.flights);
        for flight in &mut flights {
            if let Some(pending) = flight.pending.take() {
                self.complete(pending, HostSamples::default(), &mut flight.result)?;
            }
        }
        self.flights = flights;
        Ok(())
    }

    /// Computes which tokens may come next in the guided sequences of a pass that samples.
    fn compute_masks(&mut self, chunks: &[Chunk]) {
        let samples = |chunk: &&Chunk| chunk.samples() || matches!(chunk.wanted, Wanted::Drafted { .. });
        let mut guides: Vec<Lent> = Vec::new();
        for chunk in chunks.iter().filter(samples) {
            let guide = self.slots.get_mut(chunk.slot).and_then(|slot| slot.guide.take());
            guides.extend(guide.map(|guide| Lent { slot: chunk.slot, guide }));
        }
        guide::compute_masks(&mut guides, self.mask_threads);
        for Lent { slot, guide } in guides {
            if let Some(slot) = self.slots.get_mut(slot) {
                slot.guide = Some(guide);
            }
        }
    }

    /// Samples the host's rows of a pass, and takes the device's.
    fn sample_on_host(
        &mut self,
        chunks: &[Chunk],
        plan: &StepPlan,
        asked: PendingSamples,
        result: &mut StepResult,
    ) -> Result<(), StepError> {
        let logits = self.model.logits()?;
        let mut work: Vec<Row<'_>> = Vec::new();
        let mut beams: Vec<Row<'_>> = Vec::new();
        let mut next = 0;
        for chunk in chunks {
            let slot = self.slots.get(chunk.slot).expect("forward_passes looked it up");
            let first = next;
            next += chunk.logit_rows();
            if let Wanted::All { .. } = chunk.wanted {
                score_prompt(chunk, slot, logits, first, &mut result.prompt_logprobs);
            }
            if chunk.samples() && !slot.on_device {
                work.push(Row::of(logits.row(next - 1), slot));
            }
            if chunk.wanted == Wanted::Candidates {
                beams.push(Row::of(logits.row(next - 1), slot));
            }
        }
        let (sampled, candidates) = (self.sampler.run(&work), self.sampler.candidates(&beams));
        let mut from_host = HostSamples { sampled, candidates, verified: Vec::new() };
        let mut next = 0;
        for chunk in chunks {
            let draft = chunk.draft(plan);
            if !draft.is_empty() {
                let slot = self.slots.get_mut(chunk.slot).expect("forward_passes looked it up");
                from_host.verified.push(verify(&mut self.sampler, slot, draft, |offset| logits.row(next + offset)));
            }
            next += chunk.logit_rows();
        }
        self.complete(asked, from_host, result)
    }

    /// Appends the tokens of a pass, the device's and the host's, to histories and result, in the plan's order.
    fn complete(
        &mut self,
        asked: PendingSamples,
        from_host: HostSamples,
        result: &mut StepResult,
    ) -> Result<(), StepError> {
        let mut on_device = std::mem::take(&mut self.sampled);
        self.model.take(asked.ticket, &mut on_device)?;
        let mut from_device = on_device.drain(..);
        let HostSamples { sampled, verified, candidates } = from_host;
        let (mut from_host, mut verified, mut candidates) =
            (sampled.into_iter(), verified.into_iter(), candidates.into_iter());
        result.slot.reserve(asked.targets.len());
        result.token.reserve(asked.targets.len());
        for target in asked.targets {
            let sampled = match target.sampler {
                SampledBy::Device => from_device.next(),
                SampledBy::Host => from_host.next(),
                SampledBy::Search => {
                    self.report_candidates(target, candidates.next().expect("of each beam"), result);
                    continue;
                }
                SampledBy::Verification => {
                    self.append_verified(target, verified.next().expect("each draft was verified"), result);
                    continue;
                }
            };
            self.append(target, sampled.expect("one for each row that was asked for"), result);
        }
        drop(from_device);
        self.sampled = on_device;
        Ok(())
    }

    fn append(&mut self, target: SampleTarget, sampled: Sampled, result: &mut StepResult) {
        // A later plan may have given the slot to another sequence; the scheduler knows whose token this is.
        let held = self.slots.get_mut(target.slot);
        if let Some(slot) = held.filter(|slot| slot.incarnation == target.incarnation) {
            slot.pending -= 1;
            slot.history.push(sampled.token);
            slot.guide.iter_mut().for_each(|guide| guide.accept(sampled.token));
            report_failure(target.slot, slot, result);
        }
        if !result.count.is_empty() {
            result.count.push(1);
        }
        result.slot.push(target.slot);
        report(sampled, result);
    }

    /// Adds a beam's candidates to the result; the plan that continues the beam says which token it gets.
    fn report_candidates(&mut self, target: SampleTarget, candidates: Candidates, result: &mut StepResult) {
        if let Some(slot) = self.slots.get_mut(target.slot) {
            slot.pending -= 1;
        }
        result.count.resize(result.slot.len(), 1);
        result.count.push(0);
        result.slot.push(target.slot);
        result.candidates.push(Candidates { slot: target.slot, ..candidates });
    }

    /// Appends a verified draft to the result; its tokens are in the history already.
    fn append_verified(&mut self, target: SampleTarget, sampled: Vec<Sampled>, result: &mut StepResult) {
        if let Some(slot) = self.slots.get_mut(target.slot) {
            slot.pending -= 1;
            report_failure(target.slot, slot, result);
        }
        // Rows before it gave a token each; `count` stays empty where all rows do.
        result.count.resize(result.slot.len(), 1);
        result.count.push(sampled.len() as u32);
        result.slot.push(target.slot);
        sampled.into_iter().for_each(|sampled| report(sampled, result));
    }
}

/// The tokens that the host sampled in a pass, in order.
#[derive(Default)]
struct HostSamples {
    sampled: Vec<Sampled>,
    /// The tokens of each row that verifies.
    verified: Vec<Vec<Sampled>>,
    /// What may continue each beam.
    candidates: Vec<Candidates>,
}

/// Samples after the last known token of a sequence and after each drafted one, until a sampled token differs from the
/// drafted one, and appends the samples to the history. `logits` has a row for each of these positions.
fn verify<'l>(
    sampler: &mut Sampler,
    slot: &mut Slot,
    draft: &[u32],
    logits: impl Fn(usize) -> &'l [f32],
) -> Vec<Sampled> {
    // The device does not learn of tokens that are sampled here, so the host goes on sampling.
    slot.on_device = false;
    let mut verified = Vec::with_capacity(draft.len() + 1);
    for offset in 0..=draft.len() {
        if offset > 0 {
            slot.guide.iter_mut().for_each(|guide| guide.compute_mask());
        }
        let sampled = sampler.run(&[Row::of(logits(offset), slot)]).remove(0);
        slot.history.push(sampled.token);
        slot.guide.iter_mut().for_each(|guide| guide.accept(sampled.token));
        let is_right = draft.get(offset) == Some(&sampled.token);
        verified.push(sampled);
        if !is_right {
            break;
        }
    }
    verified
}

/// Says in the result that a sequence cannot go on.
fn report_failure(number: u32, slot: &mut Slot, result: &mut StepResult) {
    let reason = slot.guide.as_mut().and_then(|guide| guide.take_failure());
    result.failed.extend(reason.map(|reason| FailedRow { slot: number, reason }));
}

/// Adds a token to the result.
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
        let pending = self.flights.front().and_then(|flight| flight.pending.as_ref());
        pending.is_none_or(|pending| self.model.is_done(pending.ticket))
    }

    fn has_room(&self) -> bool {
        self.flights.len() < STEPS_IN_FLIGHT
    }

    fn has_idle_task(&self) -> bool {
        !self.warm_up.is_done() || self.graphs.next_size(self.model, Load::Idle).is_some()
    }
}

impl Drop for Engine<'_> {
    /// Leaves an idle device to the next group's engine.
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // A fault of the device is reported to its next user.
            let _ = self.complete_in_flight();
        }
    }
}

/// Sizes of an engine.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    /// Threads of the host sampler.
    pub threads: usize,
    /// Most rows of logits in a pass.
    pub max_logit_rows: usize,
}

/// Log-probabilities of the prompt tokens that follow a chunk's positions.
fn score_prompt(chunk: &Chunk, slot: &Slot, logits: Logits<'_>, first: usize, out: &mut Vec<TokenLogprobs>) {
    let (tokens, num_prompt) = (slot.history.tokens(), slot.history.num_prompt());
    let top = slot.prompt_logprobs.unwrap_or(0);
    for offset in 0..chunk.len as usize {
        let position = chunk.start as usize + offset + 1;
        if position < num_prompt {
            let token = tokens[position];
            let scored = token_logprobs(logits.row(first + offset), token, top);
            let mut entry = message(position as u32, token, scored);
            entry.prompt_of_sequence = Some(chunk.slot.into());
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
