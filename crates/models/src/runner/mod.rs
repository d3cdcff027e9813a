//! [`Runner`]: what runs a model's steps on a device; one implementation a file.

mod decoder;
mod echo;

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use collectives::Collective;
use kernels::ops::{Batch, CaptureError, CaptureSize, DeviceMemory, StepPreference, Taken, Timing, Wait};
use kernels::sample::{SampleParams, SampleRow, Sampled, SlotMask, Ticket};
use model_spec::ModelSpec;

use crate::cache::CacheLayout;
use crate::error::ForwardError;
use crate::lora::{AdapterLayout, AdapterWrite};
use crate::model::{Logits, Memory};
use crate::network::Observer;
pub(crate) use decoder::Decoder;
use echo::Echo;

/// Makes the runner of a model that has no weights.
type Make = fn(&ModelSpec) -> Box<dyn Runner>;

/// Classes that run without weights, sorted, and what runs them. All others are the decoder's.
const WITHOUT_WEIGHTS: &[(&str, Make)] = &[("EchoForCausalLM", |spec| Box::new(Echo::new(spec.vocab_size)))];

/// What runs a model that has no weights.
pub(crate) fn without_weights(spec: &ModelSpec) -> Option<Box<dyn Runner>> {
    let (_, make) = WITHOUT_WEIGHTS.iter().find(|(class, _)| *class == spec.architecture)?;
    Some(make(spec))
}

/// What is wanted of a step's rows that are pooled.
#[derive(Clone, Copy, Debug)]
pub enum PooledRows<'a> {
    /// Outputs of these rows: ascending indices into the batch's rows.
    Each(&'a [u32]),
    /// Outputs of the means over these rows.
    Means(&'a [Range<usize>]),
}

/// A step of a model that pools.
#[derive(Clone, Copy, Debug)]
pub struct PooledStep<'a> {
    /// Its rows.
    pub batch: Batch<'a>,
    /// What is wanted of them.
    pub rows: PooledRows<'a>,
    /// Each row's type, for models that have token types; empty: all are of type 0.
    pub token_types: &'a [u32],
}

/// Runs the steps of one model on this rank. What only some runners have is absent by default.
pub trait Runner: Send {
    /// The device, for people.
    fn describe_device(&self) -> String;

    /// Which steps suit the device with this model.
    fn step_preference(&self) -> StepPreference {
        StepPreference::CPU
    }

    /// Bytes of activations and logits.
    fn activation_bytes(&self) -> u64 {
        0
    }

    /// The KV cache and recurrent states on this rank; one group without memory for a model that has neither.
    fn cache(&self) -> CacheLayout;

    /// Allocates the cache. To be called once.
    ///
    /// # Panics
    /// When called a second time.
    fn allocate(&mut self, memory: Memory);

    /// The device's own memory, if it has some.
    fn device_memory(&self) -> Option<DeviceMemory> {
        None
    }

    /// Fails once the device has: after [`Runner::allocate`], when its memory did not suffice.
    fn check_device(&self) -> Result<(), ForwardError> {
        Ok(())
    }

    /// Whether this rank's device exchanges data with those of other ranks ([`Runner::join`]); otherwise the host does.
    fn can_join(&self) -> bool {
        false
    }

    /// Connects the devices of all ranks of a group, where they can be; all ranks call it before their first step, and
    /// for each new group.
    fn join(&mut self, group: &mut dyn Collective) -> Result<(), ForwardError> {
        let _ = group;
        Ok(())
    }

    /// Copies block `from[i]` to `to[i]` in every layer.
    fn copy_blocks(&mut self, from: &[u32], to: &[u32]);

    /// Makes room for the sequences of `count` slots, empty. No step may be in flight.
    fn set_slots(&mut self, count: usize);

    /// Numbers of rows, ascending, that decode steps are padded to and captured with: see
    /// [`kernels::ops::Capture::set_capture_sizes`].
    fn set_capture_sizes(&mut self, rows: &[usize]) {
        let _ = rows;
    }

    /// Bytes of device memory that captured steps of the sizes that were set may take, of all networks.
    fn capture_bytes(&self) -> u64 {
        0
    }

    /// The step to capture next; absent when none is left, or the device captures none, or the step passes through the
    /// host (as that of a group of ranks on CPUs does).
    fn next_capture(&self) -> Option<CaptureSize> {
        None
    }

    /// Captures a step; steps in flight go on meanwhile. One that has not run is run instead, which needs room for a
    /// step in flight, and is then the next to capture. The inner error says why steps cannot be captured; they run all
    /// the same.
    fn capture(
        &mut self,
        step: CaptureSize,
        group: &mut dyn Collective,
    ) -> Result<Result<(), CaptureError>, ForwardError> {
        let _ = (step, group);
        Ok(Ok(()))
    }

    /// Waits for what a first step is sure to need: see [`kernels::ops::Device::await_first_kernels`].
    fn await_first_kernels(&mut self) {}

    /// Whether first steps take longer than later ones: see [`kernels::ops::Device::has_cold_steps`].
    fn has_cold_steps(&self) -> bool {
        false
    }

    /// Loads what steps of other sizes will need, for so long at most; whether that was all: see
    /// [`kernels::ops::Device::load_ahead`].
    fn load_ahead(&mut self, most: Duration) -> bool {
        let _ = most;
        true
    }

    /// What the host waited for since the last call: see [`kernels::ops::Device::take_waits`].
    fn take_waits(&mut self) -> Vec<Wait> {
        Vec::new()
    }

    /// Does a piece of what later steps would otherwise wait for (compiling, autotuning); whether there may be more. No
    /// step may be in flight: see [`kernels::ops::Device::warm_up`].
    fn warm_up(&mut self) -> bool {
        false
    }

    /// From here on the device times what it does: see [`kernels::ops::Device::start_profile`].
    fn start_profile(&mut self) {}

    /// Waits for the device and returns what it did since [`Runner::start_profile`].
    fn end_profile(&mut self) -> Vec<Timing> {
        Vec::new()
    }

    /// A sequence begins in a slot: its prompt. For runners that look at more of it than a step's rows.
    fn set_prompt(&mut self, slot: u32, prompt: &[u32]) {
        let _ = (slot, prompt);
    }

    /// Whether a sequence's tokens can be sampled here; otherwise the host does it, from [`Runner::logits`].
    fn can_sample(&self, choice: &SampleParams) -> bool;

    /// A sequence begins in a slot, whose tokens are sampled here. `counts`: see [`kernels::ops::Sample::set_slot`].
    ///
    /// # Panics
    /// When there is no such slot, or [`Runner::can_sample`] says no.
    fn set_slot(&mut self, slot: u32, choice: &SampleParams, counts: &[(u32, u32)]);

    /// Starts a step without waiting for the device: logits of `logit_rows` (ascending indices into the batch's rows;
    /// may be empty), and tokens sampled from some of these. At most [`kernels::sample::STEPS_IN_FLIGHT`] steps may be
    /// started and not taken.
    ///
    /// All ranks of a group call it with the same arguments. A stage of a pipeline first waits for its rows
    /// ([`Collective::take_before`]); one without a head gives its own on, and is asked for no logits.
    fn submit(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        choices: &[SampleRow],
        group: &mut dyn Collective,
    ) -> Result<Ticket, ForwardError>;

    /// Starts a step up to its logits, without waiting for the device: the same as [`Runner::submit`], but for the
    /// tokens. [`Runner::sample`] with the same `choices` ends it; before that, nothing but results of earlier steps
    /// may be asked for. Of runners that sample masked slots ([`SampleParams::masked`]); others say no in
    /// [`Runner::can_sample`].
    fn launch(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        choices: &[SampleRow],
        group: &mut dyn Collective,
    ) -> Result<(), ForwardError> {
        let _ = (batch, logit_rows, choices, group);
        unreachable!("this runner samples no masked slots");
    }

    /// Samples tokens of the step that [`Runner::launch`] started, in masked slots among those that `masks` allow.
    fn sample(&mut self, choices: &[SampleRow], masks: &[SlotMask<'_>]) -> Result<Ticket, ForwardError> {
        let _ = (choices, masks);
        unreachable!("this runner samples no masked slots");
    }

    /// What reads adapters for the model, on any thread; absent where it was loaded without room for some.
    fn adapter_layout(&self) -> Option<Arc<AdapterLayout>> {
        None
    }

    /// From here on adapters may be written into slots that only steps have used which were started before.
    fn begin_adapter_writes(&mut self) {}

    /// Goes on bringing an adapter into its slot by a piece, without waiting for the device. [`Taken::All`]: it is
    /// there, and steps that are started from here on may use it. It was read by this runner's
    /// [`Runner::adapter_layout`]; there is such a slot.
    fn write_adapter(&mut self, write: &mut AdapterWrite) -> Taken {
        unreachable!("this runner takes no adapters: {write:?}");
    }

    /// Slots of adapters that the sequences of the next step use, in the order of its batch; absent: none. Empty: no
    /// sequence has an adapter. It counts for one step.
    fn set_adapters(&mut self, slots: &[Option<u32>]) {
        debug_assert!(slots.iter().all(Option::is_none), "this runner takes no adapters");
    }

    /// Whether it pools prompts, and generates nothing: then steps are [`Runner::submit_pooled`].
    fn pools(&self) -> bool {
        false
    }

    /// Numbers of an output of [`Runner::outputs`].
    fn output_width(&self) -> usize {
        0
    }

    /// Starts a step whose rows are pooled; [`Runner::outputs`] waits for it. At most one may be started and not taken.
    ///
    /// All ranks of a group call it with the same arguments.
    fn submit_pooled(&mut self, step: PooledStep<'_>, group: &mut dyn Collective) -> Result<Ticket, ForwardError> {
        self.submit(step.batch, &[], &[], group)
    }

    /// What the pooled step gave that was started last: `[outputs, output_width]`, row-major.
    fn outputs(&mut self) -> Result<&[f32], ForwardError> {
        Ok(&[])
    }

    /// The logits of the step that was started last, as they were before sampling. Waits for it.
    fn logits(&mut self) -> Result<Logits<'_>, ForwardError>;

    /// Whether [`Runner::take`] would not have to wait.
    fn is_done(&mut self, ticket: Ticket) -> bool;

    /// Waits for a step and appends the tokens sampled in it to `out`, in order. To be called once for each step, in
    /// their order.
    fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>) -> Result<(), ForwardError>;

    /// Runs a step, waits for it, and returns the logits of `logit_rows` (ascending indices into the batch's rows; may
    /// be empty).
    ///
    /// All ranks of a group call it with the same batch and rows; all get the same logits.
    fn forward(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        group: &mut dyn Collective,
    ) -> Result<Logits<'_>, ForwardError>;

    /// The same, telling `observer` the residual stream after the embedding and after each layer. For finding where two
    /// models part.
    fn forward_observed(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        group: &mut dyn Collective,
        observer: Observer<'_>,
    ) -> Result<Logits<'_>, ForwardError> {
        let _ = observer;
        self.forward(batch, logit_rows, group)
    }
}
