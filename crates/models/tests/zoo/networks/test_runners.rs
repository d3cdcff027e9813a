//! Runners over the parts that a served model has one of: the stages of a pipeline, and a network on a device that is
//! not its own.

use std::path::Path;
use std::sync::{Arc, Mutex};

use collectives::Collective;
use kernels::ops::{Batch, Taken};
use kernels::sample::{SampleParams, SampleRow, Sampled, Ticket};
use models::{AdapterWrite, CacheLayout, Device, ForwardError, Logits, Memory, Network, Runner, Step};

/// Stages on a device each; rows go from one to the next.
pub struct Pipeline {
    stages: Vec<(Device, Network)>,
    rows: Vec<f32>,
}

impl Pipeline {
    pub fn new(stages: Vec<(Device, Network)>) -> Self {
        let groups = |(_, network): &(Device, Network)| network.cache().groups.len();
        assert!(stages.iter().all(|stage| groups(stage) == groups(&stages[0])), "stages with other block tables");
        Self { stages, rows: Vec::new() }
    }

    /// Fills a slot of every stage.
    pub fn put_adapter(&mut self, slot: u32, dir: &Path) {
        for (device, network) in &mut self.stages {
            let adapter = network.adapter_layout().expect("room for adapters").read(dir).expect("an adapter");
            let mut write = AdapterWrite::new(Arc::new(adapter), slot);
            device.begin_writes();
            while network.write_adapter(device, &mut write) != Taken::All {}
        }
    }

    /// Why each stage refuses an adapter.
    pub fn refusals(&self, dir: &Path) -> Vec<String> {
        let refusal = |network: &Network| network.adapter_layout().expect("room").read(dir).expect_err("a refusal");
        self.stages.iter().map(|(_, network)| refusal(network).to_string()).collect()
    }
}

/// A network on a device that others use, too.
pub struct Shared {
    device: Arc<Mutex<Device>>,
    network: Network,
    rows: Vec<f32>,
}

impl Shared {
    pub fn new(device: Arc<Mutex<Device>>, network: Network) -> Self {
        Self { device, network, rows: Vec::new() }
    }
}

/// These run steps and nothing else.
macro_rules! no_sampling {
    () => {
        fn describe_device(&self) -> String {
            "of a test".to_owned()
        }

        fn copy_blocks(&mut self, _: &[u32], _: &[u32]) {
            unreachable!("steps alone are run");
        }

        fn set_slots(&mut self, _: usize) {
            unreachable!("steps alone are run");
        }

        fn can_sample(&self, _: &SampleParams) -> bool {
            false
        }

        fn set_slot(&mut self, _: u32, _: &SampleParams, _: &[(u32, u32)]) {
            unreachable!("steps alone are run");
        }

        fn submit(
            &mut self,
            _: Batch<'_>,
            _: &[u32],
            _: &[SampleRow],
            _: &mut dyn Collective,
        ) -> Result<Ticket, ForwardError> {
            unreachable!("steps alone are run");
        }

        fn logits(&mut self) -> Result<Logits<'_>, ForwardError> {
            unreachable!("steps alone are run");
        }

        fn is_done(&mut self, _: Ticket) -> bool {
            true
        }

        fn take(&mut self, _: Ticket, _: &mut Vec<Sampled>) -> Result<(), ForwardError> {
            unreachable!("steps alone are run");
        }
    };
}

impl Runner for Pipeline {
    no_sampling!();

    fn cache(&self) -> CacheLayout {
        self.stages[0].1.cache()
    }

    fn allocate(&mut self, memory: Memory) {
        self.stages.iter_mut().for_each(|(device, network)| network.allocate(device, memory));
    }

    fn set_adapters(&mut self, slots: &[Option<u32>]) {
        self.stages.iter_mut().for_each(|(device, _)| device.set_adapters(slots));
    }

    fn join(&mut self, group: &mut dyn Collective) -> Result<(), ForwardError> {
        self.stages.iter_mut().try_for_each(|(device, _)| device.join(group))
    }

    fn forward(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        group: &mut dyn Collective,
    ) -> Result<Logits<'_>, ForwardError> {
        let mut received: Option<Vec<f32>> = None;
        let (mut rows, mut vocab) = (0, 0);
        for (device, network) in &mut self.stages {
            let step =
                Step { batch, received: received.as_deref(), output_rows: logit_rows, means: &[], token_types: &[] };
            let outputs = network.forward(device, step, group)?;
            (rows, vocab) = (outputs.rows, outputs.width);
            received = Some(outputs.data.to_vec());
        }
        self.rows = received.unwrap_or_default();
        Ok(Logits { rows, vocab, own: vocab, data: &self.rows })
    }
}

impl Runner for Shared {
    no_sampling!();

    fn cache(&self) -> CacheLayout {
        self.network.cache()
    }

    fn allocate(&mut self, memory: Memory) {
        self.network.allocate(&mut self.device.lock().expect("a device"), memory);
    }

    fn forward(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        group: &mut dyn Collective,
    ) -> Result<Logits<'_>, ForwardError> {
        let mut device = self.device.lock().expect("a device");
        let step = Step { batch, received: None, output_rows: logit_rows, means: &[], token_types: &[] };
        let outputs = self.network.forward(&mut device, step, group)?;
        let (rows, vocab) = (outputs.rows, outputs.width);
        self.rows = outputs.data.to_vec();
        Ok(Logits { rows, vocab, own: vocab, data: &self.rows })
    }
}
