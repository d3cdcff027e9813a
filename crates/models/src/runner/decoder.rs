//! The decoder's runner: one network from tokens to logits, or to what is pooled, alone on its device. Or a stage of
//! it, which takes rows of the residual stream from the stage before, and gives them to the next.

use std::sync::Arc;
use std::time::Duration;

use collectives::Collective;
use kernels::ops::{Batch, CaptureError, CaptureSize, DeviceMemory, StepPreference, Taken, Timing, Wait};
use kernels::sample::{SampleParams, SampleRow, Sampled, SlotMask, Ticket};

use super::{PooledRows, PooledStep, Runner};
use crate::cache::CacheLayout;
use crate::device::{Device, StageNeighbours};
use crate::error::{ForwardError, LoadError};
use crate::lora::{AdapterLayout, AdapterWrite};
use crate::model::{Logits, Memory};
use crate::network::{Network, Observer, Outputs, Step};

/// A device and the network on it.
pub(crate) struct Decoder {
    device: Device,
    network: Network,
    /// Rows of the stage before, `[rows, hidden]`; none where this one embeds tokens, or the device receives them.
    received: Vec<f32>,
}

impl Decoder {
    /// Fails where the device has.
    pub(crate) fn new(device: Device, network: Network) -> Result<Self, LoadError> {
        device.check().map_err(|fault| LoadError::Device(fault.to_string()))?;
        Ok(Self { device, network, received: Vec::new() })
    }

    /// Takes a step's rows from the stage before, if there is one that the device is not linked to.
    fn receive(&mut self, batch: Batch<'_>, group: &mut dyn Collective) -> Result<(), ForwardError> {
        if !self.network.embeds() && !self.device.linked {
            self.received.resize(batch.tokens.len() * self.network.spec().hidden_size, 0.0);
            group.take_before(bytemuck::cast_slice_mut(&mut self.received))?;
        }
        Ok(())
    }

    /// Gives the rows of the step that was started last to the next stage, if there is one that the device is not
    /// linked to.
    fn hand_on(&mut self, group: &mut dyn Collective) -> Result<(), ForwardError> {
        if !self.network.has_head() && !self.device.linked {
            group.give_next(bytemuck::cast_slice(self.network.outputs(&mut self.device)?.data))?;
        }
        Ok(())
    }

    /// The stages around its own.
    fn neighbours(&self) -> StageNeighbours {
        StageNeighbours { before: !self.network.embeds(), after: !self.network.has_head() }
    }
}

/// `received`: rows of the stage before; empty in the first one.
fn step<'a>(batch: Batch<'a>, received: &'a [f32], output_rows: &'a [u32]) -> Step<'a> {
    let received = (!received.is_empty()).then_some(received);
    Step { batch, received, output_rows, means: &[], token_types: &[] }
}

/// `own`: tokens of the model.
fn logits(outputs: Outputs<'_>, own: usize) -> Logits<'_> {
    let Outputs { rows, width, data } = outputs;
    Logits { rows, vocab: width, own, data }
}

impl Runner for Decoder {
    fn describe_device(&self) -> String {
        self.device.describe()
    }

    fn step_preference(&self) -> StepPreference {
        self.network.step_preference(&self.device)
    }

    fn activation_bytes(&self) -> u64 {
        self.device.activation_bytes() + self.network.host_bytes()
    }

    fn cache(&self) -> CacheLayout {
        self.network.cache()
    }

    fn allocate(&mut self, memory: Memory) {
        self.network.allocate(&mut self.device, memory);
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        self.device.memory()
    }

    fn check_device(&self) -> Result<(), ForwardError> {
        self.device.check()
    }

    fn can_join(&self) -> bool {
        self.device.can_join() || self.device.can_link(self.neighbours())
    }

    fn join(&mut self, group: &mut dyn Collective) -> Result<(), ForwardError> {
        self.device.join(group)?;
        self.device.link(self.neighbours(), group)
    }

    fn copy_blocks(&mut self, from: &[u32], to: &[u32]) {
        self.network.copy_blocks(&mut self.device, from, to);
    }

    fn set_slots(&mut self, count: usize) {
        self.device.set_slots(count, self.network.vocab_size());
    }

    fn set_capture_sizes(&mut self, rows: &[usize]) {
        self.network.set_capture_sizes(&mut self.device, rows);
    }

    fn capture_bytes(&self) -> u64 {
        self.device.capture_bytes()
    }

    fn next_capture(&self) -> Option<CaptureSize> {
        self.network.next_capture(&self.device)
    }

    fn capture(
        &mut self,
        step: CaptureSize,
        group: &mut dyn Collective,
    ) -> Result<Result<(), CaptureError>, ForwardError> {
        self.network.capture(&mut self.device, step, group)
    }

    fn await_first_kernels(&mut self) {
        self.device.await_first_kernels();
    }

    fn has_cold_steps(&self) -> bool {
        self.device.has_cold_steps()
    }

    fn load_ahead(&mut self, most: Duration) -> bool {
        self.device.load_ahead(most)
    }

    fn take_waits(&mut self) -> Vec<Wait> {
        self.device.take_waits()
    }

    fn warm_up(&mut self) -> bool {
        self.device.warm_up()
    }

    fn start_profile(&mut self) {
        self.device.start_profile();
    }

    fn end_profile(&mut self) -> Vec<Timing> {
        self.device.end_profile()
    }

    fn can_sample(&self, choice: &SampleParams) -> bool {
        self.network.can_sample(&self.device, choice)
    }

    fn set_slot(&mut self, slot: u32, choice: &SampleParams, counts: &[(u32, u32)]) {
        self.device.set_slot(slot, choice, counts);
    }

    fn submit(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        choices: &[SampleRow],
        group: &mut dyn Collective,
    ) -> Result<Ticket, ForwardError> {
        self.receive(batch, group)?;
        let step = step(batch, &self.received, logit_rows);
        let ticket = self.network.submit(&mut self.device, step, choices, group)?;
        self.hand_on(group)?;
        Ok(ticket)
    }

    fn launch(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        choices: &[SampleRow],
        group: &mut dyn Collective,
    ) -> Result<(), ForwardError> {
        // Only a stage with a head samples.
        self.receive(batch, group)?;
        self.network.launch(&mut self.device, step(batch, &self.received, logit_rows), choices, group)
    }

    fn sample(&mut self, choices: &[SampleRow], masks: &[SlotMask<'_>]) -> Result<Ticket, ForwardError> {
        Ok(self.network.sample(&mut self.device, choices, masks))
    }

    fn adapter_layout(&self) -> Option<Arc<AdapterLayout>> {
        self.network.adapter_layout()
    }

    fn begin_adapter_writes(&mut self) {
        self.device.begin_writes();
    }

    fn write_adapter(&mut self, write: &mut AdapterWrite) -> Taken {
        self.network.write_adapter(&mut self.device, write)
    }

    fn set_adapters(&mut self, slots: &[Option<u32>]) {
        self.device.set_adapters(slots);
    }

    fn pools(&self) -> bool {
        self.network.pools()
    }

    fn output_width(&self) -> usize {
        self.network.output_width()
    }

    fn submit_pooled(
        &mut self,
        PooledStep { batch, rows, token_types }: PooledStep<'_>,
        group: &mut dyn Collective,
    ) -> Result<Ticket, ForwardError> {
        let step = match rows {
            PooledRows::Each(output_rows) => Step { token_types, ..step(batch, &[], output_rows) },
            PooledRows::Means(means) => Step { means, token_types, ..step(batch, &[], &[]) },
        };
        self.network.submit(&mut self.device, step, &[], group)
    }

    fn outputs(&mut self) -> Result<&[f32], ForwardError> {
        self.network.outputs(&mut self.device).map(|outputs| outputs.data)
    }

    fn logits(&mut self) -> Result<Logits<'_>, ForwardError> {
        let own = self.network.spec().vocab_size;
        self.network.outputs(&mut self.device).map(|outputs| logits(outputs, own))
    }

    fn is_done(&mut self, ticket: Ticket) -> bool {
        self.device.is_done(ticket)
    }

    fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>) -> Result<(), ForwardError> {
        self.device.take(ticket, out)
    }

    fn forward(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        group: &mut dyn Collective,
    ) -> Result<Logits<'_>, ForwardError> {
        self.receive(batch, group)?;
        let own = self.network.spec().vocab_size;
        let outputs = self.network.forward(&mut self.device, step(batch, &self.received, logit_rows), group);
        outputs.map(|outputs| logits(outputs, own))
    }

    fn forward_observed(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        group: &mut dyn Collective,
        observer: Observer<'_>,
    ) -> Result<Logits<'_>, ForwardError> {
        let step = step(batch, &[], logit_rows);
        let own = self.network.spec().vocab_size;
        let outputs = self.network.forward_observed(&mut self.device, step, group, observer);
        outputs.map(|outputs| logits(outputs, own))
    }
}
