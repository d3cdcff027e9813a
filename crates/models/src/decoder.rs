//! The one decoder: runs any [`ModelSpec`] over any [`Backend`].

mod forward;

use collectives::Collective;
use kernels::ops::{
    Act, Backend, Batch, CaptureError, CaptureSize, DType, DeviceMemory, ExchangeFailed, KvLayer, KvScales,
    RankPlacement, StepPreference, Timing,
};
use kernels::sample::{SampleParams, SampleRow, Sampled, Ticket};
use model_spec::{MixerSpec, ModelSpec};

use crate::activations::{ActivationPool, Activations};
use crate::batch;
use crate::cache::{self, CacheLayout, CacheSpec, Pool};
use crate::error::ForwardError;
use crate::mixer::CacheBinding;
use crate::network::Network;
use crate::ranks::HostLogits;
use crate::tp::Shard;
use crate::{Limits, Logits, Memory};

/// Called with the residual stream after the embedding (0) and after each layer (1, 2, …), `[rows, hidden]`; the last is normalised.
pub type Observer<'a> = &'a mut dyn FnMut(usize, &[f32]);

pub(crate) struct Decoder {
    spec: ModelSpec,
    shard: Shard,
    limits: Limits,
    /// Element type of keys and values.
    cache: DType,
    /// Of each layer's.
    scales: Vec<KvScales>,
    backend: Box<dyn Backend>,
    network: Network,
    acts: Activations,
    blocks: Option<batch::Blocks>,
    /// Keys and values; layers of different groups share them.
    memories: Vec<KvLayer>,
    slots: usize,
    /// Rows of the newest step's logits.
    num_logits: usize,
    /// The devices of all ranks have met.
    joined: bool,
    /// Logits of all ranks, where devices cannot meet.
    host_logits: HostLogits,
}

/// Parts of a decoder.
pub(crate) struct Parts {
    pub spec: ModelSpec,
    pub shard: Shard,
    pub limits: Limits,
    pub cache: DType,
    /// Of each layer's keys and values.
    pub scales: Vec<KvScales>,
    pub backend: Box<dyn Backend>,
    pub network: Network,
    pub buffers: ActivationPool,
}

impl Decoder {
    pub(crate) fn new(parts: Parts) -> Self {
        let Parts { spec, shard, limits, cache, scales, mut backend, network, buffers } = parts;
        let acts = Activations::new(&spec, &network, limits, buffers, &mut *backend);
        let host_logits = match (shard.size, acts.all_logits) {
            (1, _) | (_, Some(_)) => HostLogits::default(),
            (size, None) => HostLogits::new(limits.max_logit_rows, spec.vocab_size, size, network.head_width),
        };
        Self {
            spec,
            shard,
            limits,
            cache,
            scales,
            backend,
            network,
            acts,
            blocks: None,
            memories: Vec::new(),
            slots: 0,
            num_logits: 0,
            joined: false,
            host_logits,
        }
    }

    pub(crate) fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    pub(crate) fn describe(&self) -> String {
        self.backend.describe()
    }

    pub(crate) fn step_preference(&self) -> StepPreference {
        let heads = self.spec.layers.iter().find_map(|layer| match &layer.mixer {
            MixerSpec::Attention(attention) => Some(self.shard.part(attention.heads).len()),
            _ => None,
        });
        self.backend.step_preference(heads)
    }

    pub(crate) fn activation_bytes(&self) -> u64 {
        self.acts.bytes + self.host_logits.bytes() as u64
    }

    pub(crate) fn cache(&self) -> CacheLayout {
        let specs = self.cache_specs();
        cache::arrange(&specs).layout(&specs, self.cache.size())
    }

    fn cache_specs(&self) -> Vec<CacheSpec> {
        self.network.layers.iter().map(|layer| layer.mixer.cache_spec()).collect()
    }

    pub(crate) fn allocate(&mut self, memory: Memory) {
        assert!(self.blocks.is_none(), "a model's memory is allocated once");
        let Memory { num_blocks, block_size, max_sequences } = memory;
        let pool = Pool { num_blocks, block_size, dtype: self.cache };
        let specs = self.cache_specs();
        let arrangement = cache::arrange(&specs);
        self.memories = arrangement.memories.iter().map(|tokens| self.backend.new_kv(tokens.kv_shape(pool))).collect();
        let layers = self.network.layers.iter_mut().zip(&self.scales);
        for ((layer, &scales), (spec, cache)) in layers.zip(specs.iter().zip(arrangement.layers)) {
            let kv = cache.map(|cache| KvLayer { table: cache.group as u32, scales, ..self.memories[cache.memory] });
            let states = spec.states.iter().map(|&len| self.backend.new_state(max_sequences, len)).collect();
            layer.mixer.bind_cache(CacheBinding { kv, states });
        }
        let tables = arrangement.groups.len();
        self.blocks = Some(batch::Blocks { count: num_blocks, size: block_size, tables, slots: max_sequences });
    }

    pub(crate) fn copy_blocks(&mut self, from: &[u32], to: &[u32]) {
        for memory in &self.memories {
            self.backend.copy_blocks(*memory, from, to);
        }
    }

    pub(crate) fn set_slots(&mut self, count: usize) {
        self.backend.set_slots(count, self.spec.vocab_size);
        self.slots = count;
    }

    pub(crate) fn can_sample(&self, params: &SampleParams) -> bool {
        // Where the logits of several ranks meet on the host, the host of every rank chooses; on devices, the device of every rank.
        (self.shard.size == 1 || self.joined) && self.backend.can_sample(params)
    }

    pub(crate) fn set_slot(&mut self, slot: u32, params: &SampleParams, counts: &[(u32, u32)]) {
        assert!((slot as usize) < self.slots, "slot {slot} of {}", self.slots);
        self.backend.set_slot(slot, params, counts);
    }

    pub(crate) fn can_join(&self) -> bool {
        self.shard.size > 1 && self.backend.can_init_comm()
    }

    /// The devices of all ranks meet, where they can; all ranks call it, before the first step.
    pub(crate) fn join(&mut self, group: &mut dyn Collective) -> Result<(), ForwardError> {
        let Shard { rank, size } = self.shard;
        if size == 1 {
            return Ok(());
        }
        let can_join = self.can_join();
        if group.exchange(&[u8::from(can_join)])?.iter().any(|other| *other != [u8::from(can_join)]) {
            return Err(ForwardError::Device("the ranks compute on devices of different kinds".to_owned()));
        }
        if can_join {
            let mut lost = None;
            let exchange = &mut |mine: &[u8]| {
                group.exchange(mine).map_err(|error| {
                    lost = Some(error);
                    ExchangeFailed
                })
            };
            let met = self.backend.init_comm(RankPlacement { rank, size }, exchange);
            // A rank that is gone is no fault of this one's device.
            met.map_err(|error| {
                lost.take().map_or_else(|| ForwardError::Device(error.to_string()), ForwardError::Collective)
            })?;
            self.joined = true;
        }
        Ok(())
    }

    /// Where the device has whole rows of logits, if it has.
    fn logits_on_device(&self) -> Act {
        self.acts.all_logits.filter(|_| self.joined).unwrap_or(self.acts.logits)
    }

    pub(crate) fn submit(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        choices: &[SampleRow],
        group: &mut dyn Collective,
    ) -> Result<Ticket, ForwardError> {
        batch::check_choices(choices, logit_rows.len(), self.slots)?;
        self.check(batch, logit_rows, group)?;
        // A row a sequence, and a choice from each of them.
        let is_plain = [batch.sequences.len(), choices.len()] == [batch.tokens.len(); 2];
        if is_plain && let Some(ticket) = self.backend.replay(batch, choices) {
            self.num_logits = logit_rows.len();
            return Ok(ticket);
        }
        if is_plain {
            self.backend.begin_padded(batch);
        } else {
            self.backend.begin(batch);
        }
        self.forward_pass(batch.tokens.len(), logit_rows, group, None)?;
        Ok(self.backend.sample(self.logits_on_device(), choices))
    }

    pub(crate) fn set_capture_sizes(&mut self, rows: &[usize]) {
        self.backend.set_capture_sizes(rows);
    }

    pub(crate) fn capture_bytes(&self, kinds: usize) -> u64 {
        self.backend.capture_bytes(kinds, self.network.layers.len())
    }

    pub(crate) fn next_capture(&self) -> Option<CaptureSize> {
        // Where ranks meet on the host nothing can be recorded; where devices meet, only what needs no step: each rank records when it has
        // time, and a step would wait for the others.
        let possible = |step: &CaptureSize| self.shard.size == 1 || (self.joined && step.has_run);
        self.backend.next_capture().filter(possible)
    }

    pub(crate) fn record(
        &mut self,
        step: CaptureSize,
        group: &mut dyn Collective,
    ) -> Result<Result<(), CaptureError>, ForwardError> {
        if !step.has_run {
            let ticket = self.dummy_run(step.rows, group)?;
            self.take(ticket, &mut Vec::new())?;
        }
        self.backend.begin_capture();
        let passed = self.dummy_run(step.rows, group);
        let recorded = self.backend.end_capture();
        passed.map(|_| recorded)
    }

    /// A step of padding rows alone, which belong to no sequence.
    fn dummy_run(&mut self, rows: usize, group: &mut dyn Collective) -> Result<Ticket, ForwardError> {
        let (zeros, every): (Vec<u32>, Vec<u32>) = (vec![0; rows], (0..rows as u32).collect());
        self.backend.begin_padded(Batch { tokens: &zeros, positions: &zeros, sequences: &[] });
        self.forward_pass(rows, &every, group, None)?;
        Ok(self.backend.sample(self.logits_on_device(), &[]))
    }

    pub(crate) fn prepare(&mut self) -> bool {
        self.backend.warm_up()
    }

    pub(crate) fn start_profile(&mut self) {
        self.backend.start_profile();
    }

    pub(crate) fn end_profile(&mut self) -> Vec<Timing> {
        self.backend.end_profile()
    }

    pub(crate) fn is_done(&mut self, ticket: Ticket) -> bool {
        self.backend.is_done(ticket)
    }

    pub(crate) fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>) -> Result<(), ForwardError> {
        self.backend.take(ticket, out);
        self.check_device()
    }

    /// The newest step's logits, on the host.
    pub(crate) fn logits(&mut self) -> Result<Logits<'_>, ForwardError> {
        let (rows, vocab) = (self.num_logits, self.spec.vocab_size);
        // Waits for the device; without logits too, so that the step is over.
        let on_device = self.logits_on_device();
        self.backend.read(if rows == 0 { self.acts.x } else { on_device });
        self.check_device()?;
        let data = match rows {
            0 => &[],
            // Rows of padding come last.
            _ if self.shard.size == 1 || self.joined => &self.backend.read(on_device)[..rows * vocab],
            _ => self.host_logits.rows(rows),
        };
        Ok(Logits { rows, vocab, data })
    }

    pub(crate) fn forward(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        group: &mut dyn Collective,
        observer: Option<Observer<'_>>,
    ) -> Result<Logits<'_>, ForwardError> {
        self.check(batch, logit_rows, group)?;
        self.backend.begin(batch);
        self.forward_pass(batch.tokens.len(), logit_rows, group, observer)?;
        self.logits()
    }

    fn check(&self, batch: Batch<'_>, logit_rows: &[u32], group: &dyn Collective) -> Result<(), ForwardError> {
        let Shard { rank, size } = self.shard;
        if (group.rank(), group.world_size()) != (rank, size) {
            return Err(ForwardError::Group { rank, size, group_rank: group.rank(), group_size: group.world_size() });
        }
        let blocks = self.blocks.ok_or(ForwardError::NoKv)?;
        let positions = self.spec.embedding.positions.map(|table| table.rows - table.offset);
        let entries = batch::Entries { vocab: self.spec.vocab_size, slots: self.slots, positions };
        batch::check(batch, blocks, entries, self.limits.max_rows)?;
        batch::check_logit_rows(logit_rows, batch.tokens.len(), self.limits.max_logit_rows)
    }

    pub(crate) fn device_memory(&self) -> Option<DeviceMemory> {
        self.backend.memory()
    }

    /// Fails once the device has.
    pub(crate) fn check_device(&self) -> Result<(), ForwardError> {
        self.backend.fault().map_or(Ok(()), |fault| Err(ForwardError::Device(fault.to_owned())))
    }
}
