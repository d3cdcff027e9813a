//! [`Model`]: what a worker runs.

use collectives::Collective;
use kernels::ops::{Batch, CaptureError, CaptureSize, DeviceMemory, StepPreference, Timing};
use kernels::sample::{SampleParams, SampleRow, Sampled, Ticket};
use model_spec::ModelSpec;

use crate::arch::echo;
use crate::cache::CacheLayout;
use crate::decoder::{Decoder, Observer};
use crate::error::ForwardError;
use crate::weights::Resident;

/// A loaded model with its device memory: this rank's part of it.
pub struct Model {
    inner: Inner,
    resident: Resident,
}

enum Inner {
    Decoder(Box<Decoder>),
    Echo(Box<ModelSpec>),
}

/// Logits of a step.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    /// Rows asked for.
    pub rows: usize,
    /// Columns: [`ModelSpec::vocab_size`], which may exceed the tokenizer's vocabulary.
    pub vocab: usize,
    /// `[rows, vocab]`, row-major.
    pub data: &'a [f32],
}

impl Logits<'_> {
    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.vocab..(row + 1) * self.vocab]
    }
}

/// How much a model may keep of past tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Blocks of keys and values in every layer.
    pub num_blocks: usize,
    /// Tokens a block.
    pub block_size: usize,
    /// Sequences that may be under way at once; their slots are below this.
    pub max_sequences: usize,
}

impl Model {
    pub(crate) fn decoder(decoder: Decoder, resident: Resident) -> Self {
        Self { inner: Inner::Decoder(Box::new(decoder)), resident }
    }

    pub(crate) fn echo(spec: ModelSpec) -> Self {
        Self { inner: Inner::Echo(Box::new(spec)), resident: Resident::default() }
    }

    /// The model as data.
    pub fn spec(&self) -> &ModelSpec {
        match &self.inner {
            Inner::Decoder(decoder) => decoder.spec(),
            Inner::Echo(spec) => spec,
        }
    }

    /// The device, for people.
    pub fn describe_device(&self) -> String {
        match &self.inner {
            Inner::Decoder(decoder) => decoder.describe(),
            Inner::Echo(_) => "none (echo)".to_owned(),
        }
    }

    /// Which steps suit the device with this model.
    pub fn step_preference(&self) -> StepPreference {
        match &self.inner {
            Inner::Decoder(decoder) => decoder.step_preference(),
            Inner::Echo(_) => StepPreference::CPU,
        }
    }

    /// The model has no logits: take [`Model::echo_next`] instead of [`Model::forward`]. It needs no KV memory.
    pub fn is_echo(&self) -> bool {
        matches!(self.inner, Inner::Echo(_))
    }

    /// The echo model's next token: the prompt, again and again. `history` is the prompt and the output so far.
    pub fn echo_next(history: &[u32], num_prompt_tokens: usize) -> u32 {
        echo::next(history, num_prompt_tokens)
    }

    /// Bytes of weights on the device, with their scales.
    pub fn weight_bytes(&self) -> u64 {
        self.resident.bytes
    }

    /// How many weights these are.
    pub fn num_weights(&self) -> u64 {
        self.resident.weights
    }

    /// Bytes of activations and logits.
    pub fn activation_bytes(&self) -> u64 {
        match &self.inner {
            Inner::Decoder(decoder) => decoder.activation_bytes(),
            Inner::Echo(_) => 0,
        }
    }

    /// What it keeps of past tokens on this rank, in bytes; one group of nothing for the echo model.
    pub fn cache(&self) -> CacheLayout {
        match &self.inner {
            Inner::Decoder(decoder) => decoder.cache(),
            Inner::Echo(_) => CacheLayout::nothing(),
        }
    }

    /// Takes the memory that steps leave their traces in. To be called once.
    ///
    /// # Panics
    /// When called a second time.
    pub fn allocate(&mut self, memory: Memory) {
        if let Inner::Decoder(decoder) = &mut self.inner {
            decoder.allocate(memory);
        }
    }

    /// The memory of the device, where it has its own.
    pub fn device_memory(&self) -> Option<DeviceMemory> {
        match &self.inner {
            Inner::Decoder(decoder) => decoder.device_memory(),
            Inner::Echo(_) => None,
        }
    }

    /// Fails once the device has: after [`Model::allocate`], when its memory did not suffice.
    pub fn check_device(&self) -> Result<(), ForwardError> {
        match &self.inner {
            Inner::Decoder(decoder) => decoder.check_device(),
            Inner::Echo(_) => Ok(()),
        }
    }

    /// Whether this rank's device works together with those of other ranks ([`Model::join`]); otherwise the host carries what they exchange.
    pub fn can_join(&self) -> bool {
        match &self.inner {
            Inner::Decoder(decoder) => decoder.can_join(),
            Inner::Echo(_) => false,
        }
    }

    /// The devices of all ranks of a group meet, where they can; all ranks call it before their first step, and whenever the group is a
    /// new one.
    pub fn join(&mut self, group: &mut dyn Collective) -> Result<(), ForwardError> {
        match &mut self.inner {
            Inner::Decoder(decoder) => decoder.join(group),
            Inner::Echo(_) => Ok(()),
        }
    }

    /// Copies block `from[i]` to `to[i]` in every layer.
    pub fn copy_blocks(&mut self, from: &[u32], to: &[u32]) {
        if let Inner::Decoder(decoder) = &mut self.inner {
            decoder.copy_blocks(from, to);
        }
    }

    /// Makes room for the sequences of `count` slots, empty. No step may be under way.
    pub fn set_slots(&mut self, count: usize) {
        if let Inner::Decoder(decoder) = &mut self.inner {
            decoder.set_slots(count);
        }
    }

    /// Numbers of rows, ascending, that steps of one row a sequence are padded to, and that a device should record steps of: see
    /// [`kernels::ops::Capture::set_capture_sizes`].
    pub fn set_capture_sizes(&mut self, rows: &[usize]) {
        if let Inner::Decoder(decoder) = &mut self.inner {
            decoder.set_capture_sizes(rows);
        }
    }

    /// Bytes of device memory that recordings of so many kinds of steps may take.
    pub fn capture_bytes(&self, kinds: usize) -> u64 {
        match &self.inner {
            Inner::Decoder(decoder) => decoder.capture_bytes(kinds),
            Inner::Echo(_) => 0,
        }
    }

    /// What the device should record next; absent when there is nothing left, or the device records nothing, or the step passes through the
    /// host: that of a group of several ranks does.
    pub fn next_capture(&self) -> Option<CaptureSize> {
        match &self.inner {
            Inner::Decoder(decoder) => decoder.next_capture(),
            Inner::Echo(_) => None,
        }
    }

    /// Lets the device record a kind of step; steps under way go on meanwhile. One that has not run is run first, which needs room for a
    /// step under way. The inner error says why steps cannot be recorded; they run all the same.
    pub fn record(
        &mut self,
        step: CaptureSize,
        group: &mut dyn Collective,
    ) -> Result<Result<(), CaptureError>, ForwardError> {
        match &mut self.inner {
            Inner::Decoder(decoder) => decoder.record(step, group),
            Inner::Echo(_) => Err(ForwardError::NoLogits),
        }
    }

    /// Lets the device do a piece of what steps to come would otherwise wait for; whether there may be more of it. No step may be under way: see
    /// [`kernels::ops::Device::warm_up`].
    pub fn prepare(&mut self) -> bool {
        match &mut self.inner {
            Inner::Decoder(decoder) => decoder.prepare(),
            Inner::Echo(_) => false,
        }
    }

    /// From here on the device times what it does: see [`kernels::ops::Device::start_profile`].
    pub fn start_profile(&mut self) {
        if let Inner::Decoder(decoder) = &mut self.inner {
            decoder.start_profile();
        }
    }

    /// Waits for the device and returns what it did since [`Model::start_profile`].
    pub fn end_profile(&mut self) -> Vec<Timing> {
        match &mut self.inner {
            Inner::Decoder(decoder) => decoder.end_profile(),
            Inner::Echo(_) => Vec::new(),
        }
    }

    /// Whether the device can sample a sequence's tokens; otherwise the host does, from [`Model::logits`].
    pub fn can_sample(&self, params: &SampleParams) -> bool {
        match &self.inner {
            Inner::Decoder(decoder) => decoder.can_sample(params),
            Inner::Echo(_) => false,
        }
    }

    /// Another sequence, whose tokens the device chooses, begins in a slot. `counts`: see [`kernels::ops::Sample::set_slot`].
    ///
    /// # Panics
    /// When there is no such slot, or the device cannot sample like that.
    pub fn set_slot(&mut self, slot: u32, params: &SampleParams, counts: &[(u32, u32)]) {
        if let Inner::Decoder(decoder) = &mut self.inner {
            decoder.set_slot(slot, params, counts);
        }
    }

    /// Starts a step without waiting for the device: logits of `logit_rows` (ascending indices into the batch's rows; may be empty), and
    /// tokens sampled from some of these. At most [`kernels::sample::STEPS_IN_FLIGHT`] steps may be started and not taken.
    ///
    /// All ranks of a group call it with the same arguments.
    pub fn submit(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        choices: &[SampleRow],
        group: &mut dyn Collective,
    ) -> Result<Ticket, ForwardError> {
        match &mut self.inner {
            Inner::Decoder(decoder) => decoder.submit(batch, logit_rows, choices, group),
            Inner::Echo(_) => Err(ForwardError::NoLogits),
        }
    }

    /// The logits of the step that was started last, untouched by its choices. Waits for it.
    pub fn logits(&mut self) -> Result<Logits<'_>, ForwardError> {
        match &mut self.inner {
            Inner::Decoder(decoder) => decoder.logits(),
            Inner::Echo(_) => Err(ForwardError::NoLogits),
        }
    }

    /// Whether [`Model::take`] would not have to wait.
    pub fn is_done(&mut self, ticket: Ticket) -> bool {
        match &mut self.inner {
            Inner::Decoder(decoder) => decoder.is_done(ticket),
            Inner::Echo(_) => true,
        }
    }

    /// Waits for a step and appends the tokens that the device chose to `out`, in order. To be called once for each step, in their order.
    pub fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>) -> Result<(), ForwardError> {
        match &mut self.inner {
            Inner::Decoder(decoder) => decoder.take(ticket, out),
            Inner::Echo(_) => Err(ForwardError::NoLogits),
        }
    }

    /// Runs a step, waits for it, and returns the logits of `logit_rows` (ascending indices into the batch's rows; may be empty).
    ///
    /// All ranks of a group call it with the same batch and rows; all get the same logits.
    pub fn forward(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        group: &mut dyn Collective,
    ) -> Result<Logits<'_>, ForwardError> {
        match &mut self.inner {
            Inner::Decoder(decoder) => decoder.forward(batch, logit_rows, group, None),
            Inner::Echo(_) => Err(ForwardError::NoLogits),
        }
    }

    /// The same, telling `observer` the residual stream after the embedding and after each layer. For finding where two models part.
    pub fn forward_observed(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        group: &mut dyn Collective,
        observer: Observer<'_>,
    ) -> Result<Logits<'_>, ForwardError> {
        match &mut self.inner {
            Inner::Decoder(decoder) => decoder.forward(batch, logit_rows, group, Some(observer)),
            Inner::Echo(_) => Err(ForwardError::NoLogits),
        }
    }
}
