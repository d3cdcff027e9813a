//! [`Network`]: some layers of a model on a device, with what comes before and after them, and their cache.

mod build;
mod cache;
mod forward;
mod modules;

use std::ops::Range;
use std::sync::Arc;

use collectives::Collective;
use kernels::ops::{Act, Batch, CaptureError, CaptureOwner, CaptureSize, DType, StepPreference, Taken};
use kernels::sample::{SampleParams, SampleRow, SlotMask, Ticket};
use model_spec::{MixerSpec, ModelSpec};

use crate::activations::{Activations, Buffers};
use crate::batch;
use crate::cache::CacheLayout;
use crate::device::{Device, NetworkId, Steps};
use crate::error::ForwardError;
use crate::load::Limits;
use crate::lora::{AdapterLayout, AdapterWrite, LoraForm, LoraOptions, Vocabulary};
use crate::model::Memory;
use crate::ranks::{HostLogits, Ranks, wire};
use crate::tp::Shard;
use crate::weights::cache_scales::LayerScales;
use crate::weights::{Resident, TensorLocation};
pub(crate) use build::build;
use cache::Cache;
pub(crate) use cache::CacheTypes;
use forward::ForwardPass;
pub use forward::Observer;
pub(crate) use modules::{Head, Layer, Modules, Output, ProjectedLinear, WideLogits};

/// Layers of a model, loaded onto one [`Device`]: all of them, or a stage of a pipeline. The first stage embeds tokens,
/// the last one has the head; the stages between take rows of the residual stream and give them on.
pub struct Network {
    id: NetworkId,
    spec: ModelSpec,
    shard: Shard,
    limits: Limits,
    modules: Modules,
    /// What parts of sums over ranks are rounded to between devices.
    wire: DType,
    cache: Cache,
    activations: Activations,
    /// Logits of all ranks, where their devices are not connected.
    host_logits: HostLogits,
    /// Rows of the newest step, and of its outputs.
    num_rows: usize,
    num_outputs: usize,
    resident: Resident,
    /// Tokens that rows may have: the model's, and those of adapters behind them.
    vocab: usize,
    /// Which of its layers take adapters.
    adapters: Option<Arc<AdapterLayout>>,
}

/// What a step computes.
#[derive(Clone, Copy, Debug)]
pub struct Step<'a> {
    /// Its rows.
    pub batch: Batch<'a>,
    /// The residual stream as the stage before left it, `[rows, hidden]`; absent for the stage that embeds tokens, and
    /// where the device receives it.
    pub received: Option<&'a [f32]>,
    /// Rows that the head is asked for: ascending indices into the batch's rows; may be empty. A stage without head
    /// gives all rows.
    pub output_rows: &'a [u32],
    /// Rows whose means the head is asked for, instead of rows: none empty.
    pub means: &'a [Range<usize>],
    /// Each row's type, for models that have token types; empty: all are of type 0.
    pub token_types: &'a [u32],
}

impl Step<'_> {
    /// Outputs that the head is asked for.
    fn num_outputs(&self) -> usize {
        if self.means.is_empty() { self.output_rows.len() } else { self.means.len() }
    }
}

/// What a step gave: rows of logits, of hidden states or of class scores; of a stage without head, the residual stream.
#[derive(Clone, Copy, Debug)]
pub struct Outputs<'a> {
    /// Rows asked for; of a stage without head, all rows of the step.
    pub rows: usize,
    /// Columns: see [`Network::output_width`].
    pub width: usize,
    /// `[rows, width]`, row-major.
    pub data: &'a [f32],
}

impl Outputs<'_> {
    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..(row + 1) * self.width]
    }
}

/// Whether a step has a row a sequence, and samples a token from each of them.
fn is_plain(step: Step<'_>, choices: &[SampleRow]) -> bool {
    [step.batch.sequences.len(), choices.len()] == [step.batch.tokens.len(); 2]
}

/// Parts of a network.
pub(crate) struct Parts {
    pub spec: ModelSpec,
    pub limits: Limits,
    /// What is computed in.
    pub compute: DType,
    pub layers: Range<usize>,
    /// Element types of keys and values, and of states.
    pub cache: CacheTypes,
    /// Scales of each layer's keys and values, of the whole model.
    pub scales: Vec<LayerScales>,
    pub modules: Modules,
    pub resident: Resident,
    /// Room for adapters, where there are to be any.
    pub lora: Option<LoraOptions>,
    /// The projections that take adapters in other stages.
    pub adapted_elsewhere: Vec<(LoraForm, TensorLocation)>,
}

impl Network {
    /// `device` has the layers' weights and buffers.
    pub(crate) fn new(parts: Parts, device: &mut Device) -> Self {
        let Parts { spec, limits, compute, layers, cache, scales, mut modules, resident, lora, adapted_elsewhere } =
            parts;
        let (adapted, saved) = (std::mem::take(&mut modules.lora), std::mem::take(&mut modules.saved));
        let vocab = spec.vocab_size + lora.map_or(0, |lora| lora.extra_vocab);
        let adapters =
            lora.map(|LoraOptions { max_rank, dtype, experts, saved_modules: saves, extra_vocab, .. }| {
                let (elsewhere, dtype) = (adapted_elsewhere, dtype.unwrap_or(compute));
                let vocab = Vocabulary { own: spec.vocab_size, extra: extra_vocab };
                Arc::new(AdapterLayout { layers: adapted, saved, elsewhere, max_rank, experts, saves, vocab, dtype })
            });
        let shard = device.shard;
        let Device { buffers: pool, backend, .. } = &mut *device;
        let mut buffers = Buffers { pool, max_rows: limits.max_rows, compute };
        let activations = Activations::new(&spec, &modules, limits.max_logit_rows, &mut buffers, &mut **backend);
        let host_logits = match (&modules.output, shard.size) {
            (Some(output), size) if size > 1 && activations.all_logits().is_none() => match &output.head {
                Head::Logits(head) => HostLogits::new(limits.max_logit_rows, vocab, size, head.width),
                Head::Hidden | Head::Classes(_) | Head::Projected(_) | Head::HiddenWith(_) => HostLogits::default(),
            },
            _ => HostLogits::default(),
        };
        Self {
            id: device.next_id(),
            wire: wire(compute),
            cache: Cache::new(&spec, shard, layers, cache, scales),
            spec,
            shard,
            limits,
            modules,
            activations,
            host_logits,
            num_rows: 0,
            num_outputs: 0,
            resident,
            vocab,
            adapters,
        }
    }

    /// The model that these layers are of, as data.
    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    /// Tokens that rows may have: the model's, and those that adapters may have behind them.
    pub fn vocab_size(&self) -> usize {
        self.vocab
    }

    /// Bytes of weights on the device, with their scales.
    pub fn weight_bytes(&self) -> u64 {
        self.resident.bytes
    }

    /// How many weights these are.
    pub fn num_weights(&self) -> u64 {
        self.resident.weights
    }

    /// Bytes on the host beside the device's buffers.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.host_logits.bytes() as u64
    }

    /// Which steps suit the device with this network.
    pub fn step_preference(&self, device: &Device) -> StepPreference {
        let heads = self.spec.layers.iter().find_map(|layer| match &layer.mixer {
            MixerSpec::Attention(attention) => Some(self.shard.part(attention.heads).len()),
            _ => None,
        });
        device.backend.step_preference(heads)
    }

    /// Whether it begins with tokens; otherwise with rows of the stage before.
    pub fn embeds(&self) -> bool {
        self.modules.input.is_some()
    }

    /// Whether it has a head; otherwise it gives rows to the next stage.
    pub fn has_head(&self) -> bool {
        self.modules.output.is_some()
    }

    /// Whether it goes from tokens to logits.
    pub fn generates(&self) -> bool {
        self.embeds() && self.generates_logits()
    }

    /// Whether it goes from tokens to hidden states or class scores.
    pub fn pools(&self) -> bool {
        self.embeds() && self.has_head() && !self.generates()
    }

    /// Columns of its outputs: the vocabulary, the classes, or the width of embeddings.
    pub fn output_width(&self) -> usize {
        match self.modules.output.as_ref().map(|output| &output.head) {
            Some(Head::Logits(_)) => self.vocab,
            Some(Head::Classes(classes)) => classes.count,
            Some(Head::Projected(layers)) => layers.last().map_or(self.spec.hidden_size, |layer| layer.width),
            Some(Head::HiddenWith(layers)) => layers.iter().fold(self.spec.hidden_size, |sum, layer| sum + layer.width),
            Some(Head::Hidden) | None => self.spec.hidden_size,
        }
    }

    /// What reads adapters for it, on any thread; absent where it was loaded without room for some.
    pub fn adapter_layout(&self) -> Option<Arc<AdapterLayout>> {
        self.adapters.clone()
    }

    /// Goes on bringing an adapter into its slot, which later steps may use once it returns [`Taken::All`]. It was read
    /// by this network's [`Network::adapter_layout`].
    ///
    /// [`Device::begin_writes`] comes before the first call, and no step uses the slot from there on.
    pub fn write_adapter(&self, device: &mut Device, write: &mut AdapterWrite) -> Taken {
        match &self.adapters {
            Some(layout) => write.advance(layout, &mut *device.backend),
            None => Taken::All,
        }
    }

    /// The cache of its layers on this rank, in bytes. All stages of a model have the same groups.
    pub fn cache(&self) -> CacheLayout {
        self.cache.layout()
    }

    /// Allocates the cache. To be called once.
    ///
    /// # Panics
    /// When called a second time.
    pub fn allocate(&mut self, device: &mut Device, memory: Memory) {
        self.cache.allocate(&mut self.modules.layers, &mut *device.backend, memory);
    }

    /// Copies block `from[i]` to `to[i]` in every layer.
    pub fn copy_blocks(&self, device: &mut Device, from: &[u32], to: &[u32]) {
        for memory in self.cache.memories() {
            device.backend.copy_blocks(memory, from, to);
        }
    }

    /// Whether the device can sample this network's tokens; otherwise the host does it, from [`Network::outputs`].
    pub fn can_sample(&self, device: &Device, choice: &SampleParams) -> bool {
        self.generates_logits() && device.slots.vocab == self.vocab && device.can_sample(choice)
    }

    /// Starts a step without waiting for the device, and samples tokens from some of its output rows (`row` counts
    /// among these). At most [`kernels::sample::STEPS_IN_FLIGHT`] steps may be started on a device and not taken.
    ///
    /// All ranks of a group call it with the same arguments.
    pub fn submit(
        &mut self,
        device: &mut Device,
        step: Step<'_>,
        choices: &[SampleRow],
        group: &mut dyn Collective,
    ) -> Result<Ticket, ForwardError> {
        self.check_choices(device, choices, step.output_rows.len())?;
        self.check(device, step, group)?;
        self.starts(device, step);
        let owner = self.id.owner(device.next_steps());
        if !self.has_head() {
            return self.pass_on(device, step, group, owner);
        }
        if is_plain(step, choices)
            && let Some(ticket) = device.backend.replay(owner, step.batch, choices)
        {
            return Ok(ticket);
        }
        self.begin(device, step, is_plain(step, choices), owner);
        self.run(device, step, group, None)?;
        Ok(device.backend.sample(self.outputs_on_device(device), choices))
    }

    /// Starts a step whose rows the next stage goes on with, and gives them to its device, if that is linked.
    fn pass_on(
        &mut self,
        device: &mut Device,
        step: Step<'_>,
        group: &mut dyn Collective,
        owner: CaptureOwner,
    ) -> Result<Ticket, ForwardError> {
        let rows = step.batch.tokens.len();
        let is_plain = step.batch.sequences.len() == rows;
        if !(is_plain && device.backend.replay_pass(owner, step.batch)) {
            self.begin(device, step, is_plain, owner);
            self.run(device, step, group, None)?;
        }
        if device.linked {
            device.backend.send(self.activations.output(), rows);
        }
        Ok(device.backend.end_step(self.activations.output()))
    }

    /// Starts a step up to its outputs, without waiting for the device. [`Network::sample`] with the same `choices`
    /// ends it; before that, nothing but results of earlier steps may be asked of the device.
    ///
    /// All ranks of a group call it with the same arguments.
    pub fn launch(
        &mut self,
        device: &mut Device,
        step: Step<'_>,
        choices: &[SampleRow],
        group: &mut dyn Collective,
    ) -> Result<(), ForwardError> {
        self.check_choices(device, choices, step.output_rows.len())?;
        self.check(device, step, group)?;
        self.starts(device, step);
        let owner = self.id.owner(device.next_steps());
        if is_plain(step, choices) && device.backend.replay_pass(owner, step.batch) {
            return Ok(());
        }
        self.begin(device, step, is_plain(step, choices), owner);
        self.run(device, step, group, None)?;
        device.backend.end_pass(self.outputs_on_device(device));
        Ok(())
    }

    /// Samples tokens of the step that [`Network::launch`] started, in masked slots among those that `masks` allow.
    pub fn sample(&self, device: &mut Device, choices: &[SampleRow], masks: &[SlotMask<'_>]) -> Ticket {
        device.backend.set_masks(masks);
        device.backend.sample(self.outputs_on_device(device), choices)
    }

    /// Begins a step that is no replay; `is_plain`: it could have been one.
    fn begin(&self, device: &mut Device, step: Step<'_>, is_plain: bool, owner: CaptureOwner) {
        match is_plain {
            true => device.backend.begin_padded(owner, step.batch),
            false => device.backend.begin(step.batch),
        }
    }

    /// Runs a step and waits for what it gives.
    ///
    /// All ranks of a group call it with the same step; all get the same outputs.
    pub fn forward<'a>(
        &'a mut self,
        device: &'a mut Device,
        step: Step<'_>,
        group: &mut dyn Collective,
    ) -> Result<Outputs<'a>, ForwardError> {
        self.forward_with(device, step, group, None)
    }

    /// The same, telling `observer` the residual stream after the embedding and after each layer. For finding where two
    /// models part.
    pub fn forward_observed<'a>(
        &'a mut self,
        device: &'a mut Device,
        step: Step<'_>,
        group: &mut dyn Collective,
        observer: Observer<'_>,
    ) -> Result<Outputs<'a>, ForwardError> {
        self.forward_with(device, step, group, Some(observer))
    }

    fn forward_with<'a>(
        &'a mut self,
        device: &'a mut Device,
        step: Step<'_>,
        group: &mut dyn Collective,
        observer: Option<Observer<'_>>,
    ) -> Result<Outputs<'a>, ForwardError> {
        self.check(device, step, group)?;
        self.starts(device, step);
        device.adapted = false;
        device.backend.begin(step.batch);
        self.run(device, step, group, observer)?;
        self.outputs(device)
    }

    /// What the step gave that was started last, as it was before sampling. Waits for it. Fails when another network of
    /// the device has started one since: networks share activation buffers.
    pub fn outputs<'a>(&'a self, device: &'a mut Device) -> Result<Outputs<'a>, ForwardError> {
        if device.newest != Some(self.id) {
            return Err(ForwardError::OutputsGone);
        }
        let (rows, width) = (self.num_outputs, self.output_width());
        let on_device = self.outputs_on_device(device);
        // Waits for the device; without outputs too, so that the step is over.
        device.backend.read(if rows == 0 { self.activations.x } else { on_device });
        device.check()?;
        let data = match rows {
            0 => &[],
            _ if self.gathers_on_host(device) => self.host_logits.rows(rows),
            // Rows of padding come last.
            _ => &device.backend.read(on_device)[..rows * width],
        };
        Ok(Outputs { rows, width, data })
    }

    /// Numbers of rows, ascending, that decode steps are padded to and captured with: see
    /// [`kernels::ops::Capture::set_capture_sizes`]. Networks on one device capture each their own; the steps of one
    /// without capture sizes run kernel by kernel.
    pub fn set_capture_sizes(&self, device: &mut Device, rows: &[usize]) {
        let layers = self.modules.layers.len();
        device.backend.set_capture_sizes(self.id.owner(Steps::Plain), rows, layers);
        if self.adapters.is_some() {
            // Two more launches for each linear layer, about half as many again as without.
            device.backend.set_capture_sizes(self.id.owner(Steps::Adapted), rows, layers + layers.div_ceil(2));
        }
    }

    /// The step to capture next; absent when none is left, or the device captures none, or the step passes through the
    /// host (as that of a group of ranks on CPUs does).
    pub fn next_capture(&self, device: &Device) -> Option<CaptureSize> {
        // A step of several stages on CPUs passes through the host; one that pools is none of one row a sequence.
        if self.pools() || (!self.generates() && !device.linked) {
            return None;
        }
        // Between connected devices only what needs no step: each rank captures when it has time, and a step would wait
        // for the others.
        let possible = |step: &CaptureSize| self.shard.size == 1 || (device.joined && step.has_run);
        self.next_of(device, Steps::Plain).or_else(|| self.next_of(device, Steps::Adapted)).filter(possible)
    }

    fn next_of(&self, device: &Device, steps: Steps) -> Option<CaptureSize> {
        device.backend.next_capture(self.id.owner(steps))
    }

    /// Whose step of this size is to be captured.
    fn steps_to_capture(&self, device: &Device, size: CaptureSize) -> Steps {
        let plain = self.next_of(device, Steps::Plain).is_some_and(|next| next.rows == size.rows);
        if plain { Steps::Plain } else { Steps::Adapted }
    }

    /// Captures a step; steps in flight go on meanwhile. One that has not run is run instead, which needs room for a
    /// step in flight, and is then the next to capture. The inner error says why steps cannot be captured; they run all
    /// the same.
    pub fn capture(
        &mut self,
        device: &mut Device,
        step: CaptureSize,
        group: &mut dyn Collective,
    ) -> Result<Result<(), CaptureError>, ForwardError> {
        let steps = self.steps_to_capture(device, step);
        if !step.has_run {
            let ticket = self.dummy_run(device, step.rows, steps, group)?;
            device.take(ticket, &mut Vec::new())?;
            return Ok(Ok(()));
        }
        device.backend.begin_capture();
        let passed = self.dummy_run(device, step.rows, steps, group);
        let captured = device.backend.end_capture();
        passed.map(|_| captured)
    }

    /// A step of padding rows alone, which belong to no sequence.
    fn dummy_run(
        &mut self,
        device: &mut Device,
        rows: usize,
        steps: Steps,
        group: &mut dyn Collective,
    ) -> Result<Ticket, ForwardError> {
        if steps == Steps::Adapted {
            device.backend.expect_adapters();
        }
        let (zeros, every): (Vec<u32>, Vec<u32>) = (vec![0; rows], (0..rows as u32).collect());
        let batch = Batch { tokens: &zeros, positions: &zeros, sequences: &[] };
        let step = Step { batch, received: None, output_rows: &every, means: &[], token_types: &[] };
        self.is_newest(device, step);
        device.backend.begin_padded(self.id.owner(steps), batch);
        self.run(device, step, group, None)?;
        if !self.has_head() {
            return Ok(device.backend.end_step(self.activations.output()));
        }
        Ok(device.backend.sample(self.outputs_on_device(device), &[]))
    }

    /// A step starts: its rows come from the stage before, if its device is linked.
    fn starts(&mut self, device: &mut Device, step: Step<'_>) {
        self.is_newest(device, step);
        if device.linked && !self.embeds() {
            device.backend.receive(self.activations.x, step.batch.tokens.len());
        }
    }

    /// The outputs of this step are the newest.
    fn is_newest(&mut self, device: &mut Device, step: Step<'_>) {
        device.newest = Some(self.id);
        self.num_rows = step.batch.tokens.len();
        self.num_outputs = if self.has_head() { step.num_outputs() } else { self.num_rows };
    }

    /// Runs a step that has begun up to its outputs.
    fn run(
        &mut self,
        device: &mut Device,
        step: Step<'_>,
        group: &mut dyn Collective,
        observer: Option<Observer<'_>>,
    ) -> Result<(), ForwardError> {
        let joined = device.joined;
        let pass = ForwardPass {
            backend: &mut *device.backend,
            modules: &self.modules,
            activations: &self.activations,
            ranks: Ranks { group: &mut *group, joined, wire: self.wire },
            x: self.activations.x,
            pending: false,
            num_rows: step.batch.tokens.len(),
            output_rows: step.output_rows,
            means: step.means,
            token_types: step.token_types,
            observer,
        };
        pass.run(step.received)?;
        self.gather_logits(device, group)
    }

    /// Where each rank has columns of the logits, they are put together.
    fn gather_logits(&mut self, device: &mut Device, group: &mut dyn Collective) -> Result<(), ForwardError> {
        if self.num_outputs == 0 {
            return Ok(());
        }
        let logits = self.activations.output();
        if let Some(all) = self.activations.all_logits().filter(|_| device.joined) {
            device.backend.all_gather(logits, all);
        } else if self.gathers_on_host(device) {
            self.host_logits.gather(device.backend.read(logits), self.num_outputs, group)?;
        }
        Ok(())
    }

    fn gathers_on_host(&self, device: &Device) -> bool {
        let output = self.modules.output.as_ref();
        let is_split = output.is_some_and(|output| matches!(output.head, Head::Logits(_)));
        is_split && self.shard.size > 1 && !(device.joined && self.activations.all_logits().is_some())
    }

    /// Where whole rows are, if the device has them.
    fn outputs_on_device(&self, device: &Device) -> Act {
        self.activations.all_logits().filter(|_| device.joined).unwrap_or(self.activations.output())
    }

    fn check_choices(&self, device: &Device, choices: &[SampleRow], rows: usize) -> Result<(), ForwardError> {
        batch::check_choices(choices, rows, device.slots.count)?;
        if choices.is_empty() || (self.generates_logits() && device.slots.vocab == self.vocab) {
            return Ok(());
        }
        Err(ForwardError::Vocabulary { width: self.output_width(), slots: device.slots.vocab })
    }

    fn generates_logits(&self) -> bool {
        self.modules.output.as_ref().is_some_and(|output| matches!(output.head, Head::Logits(_)))
    }

    fn check(&self, device: &Device, step: Step<'_>, group: &dyn Collective) -> Result<(), ForwardError> {
        let Shard { rank, size } = self.shard;
        if (group.rank(), group.world_size()) != (rank, size) {
            return Err(ForwardError::Group { rank, size, group_rank: group.rank(), group_size: group.world_size() });
        }
        let blocks = self.cache.blocks().ok_or(ForwardError::NoKv)?;
        let positions = self.spec.embedding.positions.map(|table| table.rows - table.offset);
        let entries = batch::Entries { vocab: self.vocab, slots: device.slots.count, positions };
        let rows = step.batch.tokens.len();
        batch::check(step.batch, blocks, entries, self.limits.max_rows)?;
        batch::check_output_rows(step.output_rows, rows, self.limits.max_logit_rows)?;
        batch::check_means(step, self.limits.max_logit_rows)?;
        let is_given = self.embeds() || device.linked;
        let expected = if is_given { 0 } else { rows * self.spec.hidden_size };
        match step.received.map_or(0, <[f32]>::len) {
            found if found == expected => Ok(()),
            found => Err(ForwardError::Received { expected, found }),
        }
    }
}
