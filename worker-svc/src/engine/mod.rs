//! Executes plans: changes to the slots, forward passes, tokens.
//!
//! A plan is *submitted*, which launches its forward passes on the device, and later *finished*, which takes the tokens
//! that the device sampled. The next plan may be submitted in between: its rows name slots whose newest token is not
//! known yet. A pass that samples tokens of guided sequences is launched up to its logits; masks are computed, and its
//! tokens sampled, once those of the plan before it are known. A pass whose logits the host needs (sampling that the
//! device cannot do, drafts to verify, log-probabilities of prompts) is completed while its plan is submitted, after
//! all plans before it.

mod adapters;
mod forward_pass;
mod guided_pass;
mod host_pass;
mod input_batch;
mod outcome;
pub(crate) mod pooling;
mod sampler;
pub(crate) mod slots;
mod stage_pass;
mod step_log;

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use collectives::Collective;
use kernels::{
    ops::Timing,
    sample::{STEPS_IN_FLIGHT, SampleParams, SampleRow, Ticket},
};
use models::Runner;
use proto::{StepPlan, StepResult};
use sampling::Sampled;

pub(crate) use self::adapters::Brought;
use self::{
    adapters::AdapterSlots,
    forward_pass::{Chunk, check_rows, forward_passes},
    input_batch::{BatchMemory, InputBatch, SampleTarget, SampledBy},
    outcome::HostSamples,
    sampler::Sampler,
    slots::{Slots, malformed, no_slot},
    step_log::Note,
};
use crate::{
    adapters::HostAdapters,
    compute::run_loop::Work,
    config::Place,
    error::StepError,
    idle::{
        graph_capture::{CaptureStats, GraphCapture, Load},
        rehearsal::log_waits,
        warm_up::WarmUp,
    },
};

/// How long the device is left alone after a step: a client that asks one thing after the other has asked again by
/// then, and does not wait for the end of a piece of an idle task.
const QUIET: Duration = Duration::from_millis(10);

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
    /// The memory of the last plan's first pass, and of its input.
    chunks: Vec<Chunk>,
    memory: BatchMemory,
    adapters: AdapterSlots,
    role: StageRole,
}

/// What a stage does with a plan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StageRole {
    /// It computes rows for the next stage, and samples nothing.
    Inner,
    /// It samples, as a model that is not divided does, and says what the plan gave.
    Speaks,
    /// It samples the same, and only says that it has.
    Acknowledges,
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

/// Tokens of a pass that are not known yet.
struct PendingSamples {
    progress: Progress,
    targets: Vec<SampleTarget>,
}

/// How far a pass is.
enum Progress {
    /// The device has all of it.
    Sampling(Ticket),
    /// The device has it up to its logits. Masks are missing, from which these rows will be sampled.
    Launched(Vec<SampleRow>),
}

impl Flight {
    fn awaits_masks(&self) -> bool {
        let progress = self.pending.as_ref().map(|pending| &pending.progress);
        matches!(progress, Some(Progress::Launched(_)))
    }
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
        let role = if group.rank() == 0 { StageRole::Speaks } else { StageRole::Acknowledges };
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
            chunks: Vec::new(),
            memory: BatchMemory::default(),
            adapters: AdapterSlots::default(),
            role,
        }
    }

    /// Works as a stage of a pipeline.
    pub(crate) fn in_place(mut self, place: Place) -> Self {
        if !place.is_last() {
            self.role = StageRole::Inner;
        }
        self
    }

    /// Takes adapters from these on the host into `adapter_slots` slots of the device.
    pub(crate) fn with_adapters(mut self, adapters: HostAdapters, adapter_slots: u32) -> Self {
        self.adapters = AdapterSlots::new(adapters, adapter_slots);
        self
    }

    /// Brings an adapter towards its slot by a piece, which takes the host about 0.1 ms and no step any time.
    pub(crate) fn bring_adapter(&mut self) -> Result<Brought, StepError> {
        let brought = self.adapters.bring(self.model);
        if brought != Brought::Nothing {
            self.model.check_device()?;
        }
        Ok(brought)
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
        let spare = std::mem::take(&mut self.chunks);
        let passes = forward_passes(&plan, &self.slots, self.max_logit_rows, spare)?;
        let alone = passes.len() == 1;
        for chunks in &passes {
            if self.role == StageRole::Inner {
                let passed = self.pass_on(chunks, &plan)?;
                if alone {
                    pending = Some(passed);
                } else {
                    self.complete_in_flight()?;
                    self.complete(passed, HostSamples::default(), &mut result)?;
                }
                continue;
            }
            let mut input = InputBatch::new(chunks, &plan, &self.slots, &mut self.memory);
            let (needs_host, progress) = (input.needs_host, start(&mut input, self.model, &mut *self.group)?);
            let asked = PendingSamples { progress, targets: input.into_targets(&mut self.memory) };
            self.mark_pending(&asked);
            if !alone || needs_host {
                self.complete_in_flight()?;
                // While the device runs the pass.
                let asked = self.sample_launched(asked)?;
                self.compute_host_masks(chunks);
                self.sample_on_host(chunks, &plan, asked, &mut result)?;
            } else if self.flights.is_empty() {
                pending = Some(self.sample_launched(asked)?);
            } else {
                pending = Some(asked);
            }
        }
        self.chunks = passes.into_iter().next().unwrap_or_default();
        let idle_since = self.is_idle().then_some(self.last_finish);
        let note = Note::of(&plan, submitted, idle_since);
        self.flights.push_back(Flight { result, submitted, pending, note });
        self.warm_up.resume();
        log_waits(self.model, "step");
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
        log_waits(self.model, "idle task");
        Ok(())
    }

    /// Captures the next decode step as a CUDA graph; whether one was left.
    fn capture(&mut self, load: Load) -> Result<bool, StepError> {
        // A dummy run would overwrite the logits of a pass that is still to be sampled.
        if self.awaits_masks() {
            return Ok(false);
        }
        let Some(size) = self.graphs.next_size(self.model, load) else { return Ok(false) };
        self.graphs.capture(size, self.model, &mut *self.group)?;
        self.warm_up.resume();
        Ok(true)
    }

    /// Waits for the oldest plan. Every rank that samples appends the tokens, so that all keep the same history; only
    /// the first one's result has rows.
    pub(crate) fn finish(&mut self) -> Result<Option<StepResult>, StepError> {
        let Some(Flight { mut result, submitted, pending, note }) = self.flights.pop_front() else { return Ok(None) };
        if let Some(pending) = pending {
            let pending = self.sample_launched(pending)?;
            self.complete(pending, HostSamples::default(), &mut result)?;
        }
        let now = Instant::now();
        // Without the time in which the plan before it ran.
        let took = now.saturating_duration_since(submitted.max(self.last_finish));
        self.last_finish = now;
        result.compute_us = u32::try_from(took.as_micros()).unwrap_or(u32::MAX);
        note.into_iter().for_each(|note| note.finished(took));
        if self.role != StageRole::Speaks {
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
        self.adapters.apply(plan, self.model)?;
        let added: Vec<u32> = plan.added.iter().map(|sequence| sequence.slot).collect();
        self.slots.apply(plan)?;
        if !plan.copy_from.is_empty() {
            self.model.copy_blocks(&plan.copy_from, &plan.copy_to);
        }
        self.slots.replace(plan)?;
        if self.role == StageRole::Inner {
            self.slots.append_told(plan)?;
        }
        for number in added {
            let slot = self.slots.get_mut(number).ok_or_else(|| no_slot(plan.step, number))?;
            self.model.set_prompt(number, slot.history.prompt());
            let masked = slot.guide.is_some();
            let choice = slot.sampling.device_params().filter(|_| slot.candidates == 0);
            let choice = choice.map(|params| SampleParams { masked, ..params });
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
        for target in asked.targets.iter().filter(|target| target.sampler != SampledBy::Known) {
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
                let pending = self.sample_launched(pending)?;
                self.complete(pending, HostSamples::default(), &mut flight.result)?;
            }
        }
        self.flights = flights;
        Ok(())
    }
}

/// Launches a pass: all of it, or up to its logits where masks will be needed.
fn start(
    input: &mut InputBatch<'_>,
    model: &mut dyn Runner,
    group: &mut dyn Collective,
) -> Result<Progress, StepError> {
    model.set_adapters(&input.adapters);
    if input.is_guided {
        model.launch(input.batch(), &input.logit_rows, &input.sample_rows, group)?;
        return Ok(Progress::Launched(std::mem::take(&mut input.sample_rows)));
    }
    Ok(Progress::Sampling(model.submit(input.batch(), &input.logit_rows, &input.sample_rows, group)?))
}

impl Work for Engine<'_> {
    fn is_idle(&self) -> bool {
        self.flights.is_empty()
    }

    fn is_done(&mut self) -> bool {
        let pending = self.flights.front().and_then(|flight| flight.pending.as_ref());
        pending.is_none_or(|pending| match pending.progress {
            Progress::Sampling(ticket) => self.model.is_done(ticket),
            Progress::Launched(_) => false,
        })
    }

    fn can_mask(&self) -> bool {
        self.flights.front().is_some_and(Flight::awaits_masks)
    }

    fn has_room(&self) -> bool {
        self.flights.len() < STEPS_IN_FLIGHT && !self.awaits_masks()
    }

    fn has_adapters_coming(&self) -> bool {
        self.adapters.are_coming()
    }

    fn is_adapter_due(&self) -> bool {
        self.adapters.is_due()
    }

    fn has_idle_task(&self) -> bool {
        !self.warm_up.is_done() || self.graphs.next_size(self.model, Load::Idle).is_some()
    }

    fn quiet_left(&self) -> Duration {
        QUIET.saturating_sub(self.last_finish.elapsed())
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

#[cfg(test)]
mod tests;
