//! [`Device`]: a backend, and what all networks on it share.
//!
//! ```text
//! Device    backend (stream, compiled kernels, autotuned GEMMs, captured steps), activation buffers, connected ranks,
//!           sampling slots
//! Network   weights of some layers, their KV cache and recurrent states
//! ```
//!
//! Networks on one device run one after the other, each step whole: a target and its draft, an encoder and its decoder.

use std::collections::BTreeSet;
use std::time::Duration;

use collectives::{Collective, CollectiveError};
use kernels::ops::{
    AttentionKernels, Backend, CaptureOwner, CommError, DeviceMemory, ExchangeFailed, RankPlacement, StageLink, Timing,
    Wait,
};
use kernels::sample::{SampleParams, Sampled, Ticket};

use crate::activations::ActivationPool;
use crate::error::{ForwardError, LoadError};
use crate::tp::Shard;

/// One device of a worker, and this process's rank among those that share every layer.
pub struct Device {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) shard: Shard,
    pub(crate) buffers: ActivationPool,
    /// The devices of all ranks are connected.
    pub(crate) joined: bool,
    /// It is connected to those of the stages before and after.
    pub(crate) linked: bool,
    pub(crate) slots: SampleSlots,
    /// The next step has sequences with adapters.
    pub(crate) adapted: bool,
    /// The kernels by which its networks attend, where it has several.
    pub(crate) attention: BTreeSet<AttentionKernels>,
    networks: u32,
    /// Whose step was started last: activation buffers hold its rows.
    pub(crate) newest: Option<NetworkId>,
}

/// Which stages of a pipeline are next to a network's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StageNeighbours {
    pub before: bool,
    pub after: bool,
}

impl StageNeighbours {
    fn any(self) -> bool {
        self.before || self.after
    }
}

/// A network's steps, as far as what they launch differs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Steps {
    /// No sequence has an adapter.
    Plain,
    /// Some have.
    Adapted,
}

/// Tells the networks of a device apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NetworkId(u32);

impl NetworkId {
    /// Captured steps are each network's own.
    pub(crate) fn owner(self, steps: Steps) -> CaptureOwner {
        match steps {
            Steps::Plain => CaptureOwner(2 * self.0),
            Steps::Adapted => CaptureOwner(2 * self.0 + 1),
        }
    }
}

/// Seats for sequences whose tokens the device samples; all networks on it use the same.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct SampleSlots {
    pub count: usize,
    /// Columns of the logits that are sampled from.
    pub vocab: usize,
}

impl Device {
    /// A device without networks. `tp`: this process in a tensor-parallel group, whose ranks hold slices of every
    /// layer.
    pub fn new(backend: Box<dyn Backend>, tp: RankPlacement) -> Result<Self, LoadError> {
        Ok(Self {
            backend,
            shard: Shard::new(tp.rank, tp.size)?,
            buffers: ActivationPool::default(),
            joined: false,
            linked: false,
            slots: SampleSlots::default(),
            adapted: false,
            attention: BTreeSet::new(),
            networks: 0,
            newest: None,
        })
    }

    pub(crate) fn next_id(&mut self) -> NetworkId {
        self.networks += 1;
        NetworkId(self.networks - 1)
    }

    /// The device, for people.
    pub fn describe(&self) -> String {
        self.backend.describe()
    }

    /// What the next step launches; said once a step.
    pub(crate) fn next_steps(&mut self) -> Steps {
        if std::mem::take(&mut self.adapted) { Steps::Adapted } else { Steps::Plain }
    }

    /// From here on adapters may be written into slots that only steps have used which were started before.
    pub fn begin_writes(&mut self) {
        self.backend.begin_writes();
    }

    /// Slots of adapters that the sequences of the next step use, in the order of its batch; empty: none does.
    pub fn set_adapters(&mut self, slots: &[Option<u32>]) {
        self.adapted = slots.iter().any(Option::is_some);
        self.backend.set_adapters(slots);
    }

    /// Bytes of activation buffers, which all networks share.
    pub fn activation_bytes(&self) -> u64 {
        self.buffers.bytes()
    }

    /// The device's own memory, if it has some.
    pub fn memory(&self) -> Option<DeviceMemory> {
        self.backend.memory()
    }

    /// Fails once the device has.
    pub fn check(&self) -> Result<(), ForwardError> {
        self.backend.fault().map_or(Ok(()), |fault| Err(ForwardError::Device(fault.to_owned())))
    }

    /// Bytes of device memory that the captured steps of all its networks may take, at the sizes that were set
    /// ([`Network::set_capture_sizes`](crate::Network::set_capture_sizes)).
    pub fn capture_bytes(&self) -> u64 {
        self.backend.capture_bytes()
    }

    /// Whether this device exchanges data with those of other ranks; otherwise the host does.
    pub fn can_join(&self) -> bool {
        self.shard.size > 1 && self.backend.can_init_comm()
    }

    /// Connects the devices of all ranks, where they can be; all ranks call it before their first step, and for each
    /// new group.
    pub fn join(&mut self, group: &mut dyn Collective) -> Result<(), ForwardError> {
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
            let exchange = &mut |mine: &[u8]| group.exchange(mine).map_err(|error| failed(&mut lost, error));
            let met = self.backend.init_comm(RankPlacement { rank, size }, exchange);
            met.map_err(|error| not_connected(error, lost))?;
            self.joined = true;
        }
        Ok(())
    }

    /// Whether this device exchanges rows with those of neighbouring stages; otherwise the host does.
    pub(crate) fn can_link(&self, neighbours: StageNeighbours) -> bool {
        neighbours.any() && self.backend.can_init_comm()
    }

    /// Connects the device with those of the same rank of neighbouring stages, where they can be. All stages call it,
    /// after [`Device::join`].
    pub(crate) fn link(&mut self, neighbours: StageNeighbours, group: &mut dyn Collective) -> Result<(), ForwardError> {
        let can_link = self.can_link(neighbours);
        if neighbours.before {
            let mut other = [0];
            group.take_before(&mut other)?;
            if other != [u8::from(can_link)] {
                return Err(ForwardError::Device("the stages compute on devices of different kinds".to_owned()));
            }
            if can_link {
                let mut lost = None;
                let wait_for =
                    &mut |bytes: &mut [u8]| group.take_before(bytes).map_err(|error| failed(&mut lost, error));
                let met = self.backend.init_stage_link(StageLink::Before(wait_for));
                met.map_err(|error| not_connected(error, lost))?;
            }
        }
        if neighbours.after {
            group.give_next(&[u8::from(can_link)])?;
            if can_link {
                let mut lost = None;
                let give = &mut |bytes: &[u8]| group.give_next(bytes).map_err(|error| failed(&mut lost, error));
                let met = self.backend.init_stage_link(StageLink::After(give));
                met.map_err(|error| not_connected(error, lost))?;
            }
        }
        self.linked = can_link;
        Ok(())
    }

    /// Makes room for the sequences of `count` slots, empty, whose tokens are sampled from logits of `vocab` columns.
    /// No step may be in flight. Networks on one device share the slots: one that drafts for another has a range of its
    /// own, and may name the other's last tokens ([`kernels::sample::last_token`]).
    pub fn set_slots(&mut self, count: usize, vocab: usize) {
        self.backend.set_slots(count, vocab);
        self.slots = SampleSlots { count, vocab };
    }

    /// Whether the device can sample like this.
    pub fn can_sample(&self, choice: &SampleParams) -> bool {
        // Where the host gathers the logits of several ranks, the host of every rank samples; else the device of every
        // rank.
        (self.shard.size == 1 || self.joined) && self.backend.can_sample(choice)
    }

    /// A sequence begins in a slot, whose tokens the device samples. `counts`: see [`kernels::ops::Sample::set_slot`].
    ///
    /// # Panics
    /// When there is no such slot, or [`Device::can_sample`] says no.
    pub fn set_slot(&mut self, slot: u32, choice: &SampleParams, counts: &[(u32, u32)]) {
        assert!((slot as usize) < self.slots.count, "slot {slot} of {}", self.slots.count);
        self.backend.set_slot(slot, choice, counts);
    }

    /// Whether [`Device::take`] would not have to wait.
    pub fn is_done(&mut self, ticket: Ticket) -> bool {
        self.backend.is_done(ticket)
    }

    /// Waits for a step, of any network, and appends the tokens sampled in it to `out`, in order. Once for each step,
    /// in their order.
    pub fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>) -> Result<(), ForwardError> {
        self.backend.take(ticket, out);
        self.check()
    }

    /// Waits for what a first step is sure to need: see [`kernels::ops::Device::await_first_kernels`].
    pub fn await_first_kernels(&mut self) {
        self.backend.await_first_kernels();
    }

    /// Whether first steps take longer than later ones: see [`kernels::ops::Device::has_cold_steps`].
    pub fn has_cold_steps(&self) -> bool {
        self.backend.has_cold_steps()
    }

    /// Loads what steps of other sizes will need, for so long at most; whether that was all: see
    /// [`kernels::ops::Device::load_ahead`].
    pub fn load_ahead(&mut self, most: Duration) -> bool {
        // What buffers held is lost.
        self.newest = None;
        self.backend.load_ahead(most)
    }

    /// What the host waited for since the last call: see [`kernels::ops::Device::take_waits`].
    pub fn take_waits(&mut self) -> Vec<Wait> {
        self.backend.take_waits()
    }

    /// Does a piece of what later steps would otherwise wait for (compiling, autotuning); whether there may be more. No
    /// step may be in flight: see [`kernels::ops::Device::warm_up`].
    pub fn warm_up(&mut self) -> bool {
        // What buffers held is lost.
        self.newest = None;
        self.backend.warm_up()
    }

    /// From here on the device times what it does: see [`kernels::ops::Device::start_profile`].
    pub fn start_profile(&mut self) {
        self.backend.start_profile();
    }

    /// Waits for the device and returns what it did since [`Device::start_profile`].
    pub fn end_profile(&mut self) -> Vec<Timing> {
        self.backend.end_profile()
    }
}

/// Keeps why the group failed: the device only hears that it has.
fn failed(lost: &mut Option<CollectiveError>, error: CollectiveError) -> ExchangeFailed {
    *lost = Some(error);
    ExchangeFailed
}

/// Why a device was not connected. A rank that is gone is no fault of the device.
fn not_connected(error: CommError, lost: Option<CollectiveError>) -> ForwardError {
    lost.map_or_else(|| ForwardError::Device(error.to_string()), ForwardError::Collective)
}
