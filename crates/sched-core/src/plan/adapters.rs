//! Which adapters the workers' devices hold: fixed slots, of which a step uses some.
//!
//! A sequence starts only when its adapter is in a slot, and keeps the slot as long as it runs. A slot without running
//! sequences goes to the first one in the queue that needs it; of several, the one that was used longest ago. The
//! workers bring the adapter there beside the steps of others, and say when it is placed. Sequences behind one that
//! waits for a slot, or for its adapter to come there, go on: they overtake it, because they take nothing that it waits
//! for.
//!
//! No adapter is starved. The first sequence that waits for a slot chooses the one with the fewest running sequences;
//! from then on none behind it starts with the adapter of that slot. So it has a slot when those end that run there,
//! however many requests for popular adapters arrive.

use std::collections::BTreeSet;

use crate::{plan::PlanBuilder, requests::queue::QueueKey, scheduler::Scheduler};
use proto::AdapterLoad;

/// Sequences without a slot that a plan looks past, at most.
pub(crate) const MOST_PASSED: usize = 256;

/// The slots of the workers' devices.
#[derive(Debug, Default)]
pub(crate) struct AdapterSlots {
    slots: Vec<AdapterSlot>,
    /// The slot that is running empty, and the sequence that waits for it.
    drained: Option<Drained>,
    /// What the last plan had.
    before: Option<Drained>,
}

#[derive(Clone, Debug, Default)]
struct AdapterSlot {
    /// Empty: none.
    adapter: String,
    /// The workers are bringing it. Until it is there, nobody runs with it, and no other takes its place.
    is_coming: bool,
    /// Sequences that run with it; counted when a plan is made.
    running: u32,
    /// The last plan in which any did.
    used_in: u64,
}

#[derive(Clone, Copy, Debug)]
struct Drained {
    slot: usize,
    waiter: QueueKey,
}

impl AdapterSlots {
    /// `count` empty slots.
    pub(crate) fn new(count: u32) -> Self {
        Self { slots: vec![AdapterSlot::default(); count as usize], ..Self::default() }
    }

    fn find(&self, adapter: &str) -> Option<usize> {
        self.slots.iter().position(|slot| slot.adapter == adapter)
    }

    /// The slot that an adapter without one would get: one without running sequences.
    fn spare(&self) -> Option<usize> {
        let spare = self.slots.iter().enumerate().filter(|(_, slot)| slot.running == 0 && !slot.is_coming);
        spare.min_by_key(|(_, slot)| (!slot.adapter.is_empty(), slot.used_in)).map(|(at, _)| at)
    }

    /// Whether a waiting sequence may start with the adapter of this slot.
    fn admits(&self, slot: usize, key: QueueKey) -> bool {
        let is_drained = self.drained.is_some_and(|drained| drained.slot == slot && key > drained.waiter);
        !self.slots[slot].is_coming && !is_drained
    }

    /// A sequence cannot start: the first of a plan has a slot run empty.
    fn wait(&mut self, waiter: QueueKey) {
        if self.drained.is_none() {
            let same = self.before.filter(|before| before.waiter == waiter);
            let fewest = || self.slots.iter().enumerate().min_by_key(|(_, slot)| slot.running).map(|(at, _)| at);
            let slot = same.map(|before| before.slot).or_else(fewest);
            self.drained = slot.map(|slot| Drained { slot, waiter });
        }
    }
}

impl Scheduler {
    /// Counts who runs with which slot, before sequences start.
    pub(crate) fn count_adapters(&mut self) {
        let adapters = &mut self.adapters;
        if adapters.slots.is_empty() {
            return;
        }
        adapters.before = adapters.drained.take();
        adapters.slots.iter_mut().for_each(|slot| slot.running = 0);
        for entry in &self.running {
            let adapter = &self.requests[self.sequences[entry.index].request].adapter;
            let slot = if adapter.is_empty() { None } else { adapters.find(adapter) };
            if let Some(slot) = slot {
                adapters.slots[slot].running += 1;
                adapters.slots[slot].used_in = self.next_step.0;
            }
        }
    }

    /// Whether a waiting sequence may start as far as its adapter goes. One that has no slot gets a spare one, to which
    /// the workers bring it; where there is none, a slot runs empty for the first that waits.
    pub(crate) fn has_adapter(&mut self, index: u32, builder: &mut PlanBuilder) -> bool {
        let sequence = &self.sequences[index];
        let (key, adapter) = (sequence.key, &self.requests[sequence.request].adapter);
        if adapter.is_empty() {
            return true;
        }
        let adapters = &mut self.adapters;
        if let Some(slot) = adapters.find(adapter) {
            return adapters.admits(slot, key);
        }
        match adapters.spare() {
            Some(at) => {
                let used_in = self.next_step.0;
                adapters.slots[at] = AdapterSlot { adapter: adapter.clone(), is_coming: true, running: 0, used_in };
                builder.plan.adapters.push(AdapterLoad { slot: at as u32, adapter: adapter.clone() });
            }
            None => adapters.wait(key),
        }
        false
    }

    /// All ranks have brought to this slot what the last plan that names it asked for.
    pub fn adapter_placed(&mut self, slot: u32) {
        if let Some(slot) = self.adapters.slots.get_mut(slot as usize) {
            slot.is_coming = false;
        }
    }

    /// A sequence starts: its adapter's slot is in use.
    pub(crate) fn take_adapter_slot(&mut self, index: u32) {
        if let Some(at) = self.adapter_slot(index) {
            let slot = &mut self.adapters.slots[at as usize];
            slot.running += 1;
            slot.used_in = self.next_step.0;
        }
    }

    /// Whether a running sequence's adapter is in its slot.
    pub(crate) fn is_adapter_placed(&self, index: u32) -> bool {
        self.adapter_slot(index).is_none_or(|slot| !self.adapters.slots[slot as usize].is_coming)
    }

    /// The slot of a running sequence's adapter.
    pub(crate) fn adapter_slot(&self, index: u32) -> Option<u32> {
        let adapter = &self.requests[self.sequences[index].request].adapter;
        let slot = if adapter.is_empty() { None } else { self.adapters.find(adapter) };
        slot.map(|slot| slot as u32)
    }

    /// The adapters of requests that have started, and of those that have not.
    pub fn adapters(&self) -> AdapterUse<'_> {
        let mut found = AdapterUse::default();
        for (_, request) in self.requests.iter().filter(|(_, request)| !request.adapter.is_empty()) {
            let list = if request.started { &mut found.running } else { &mut found.waiting };
            list.insert(request.adapter.as_str());
        }
        found
    }
}

/// Adapters that live requests name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AdapterUse<'a> {
    /// Of requests that have started.
    pub running: BTreeSet<&'a str>,
    /// Of requests that have not.
    pub waiting: BTreeSet<&'a str>,
}
