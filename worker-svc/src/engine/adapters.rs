//! Slots of the device for adapters. What a plan asks for is brought into its slot piece by piece, whenever there is
//! nothing more urgent to do: no step waits for it.

use std::collections::VecDeque;

use kernels::ops::Taken;
use models::{AdapterWrite, Runner};
use proto::{AdapterLoad, StepPlan};

use super::slots::malformed;
use crate::{adapters::HostAdapters, error::StepError};

/// What the slots hold, and what is on its way there.
#[derive(Default)]
pub(super) struct AdapterSlots {
    host: HostAdapters,
    /// Whether a slot's adapter is there.
    placed: Vec<bool>,
    /// On their way, in the order of plans.
    coming: VecDeque<AdapterWrite>,
    /// A plan was submitted since the last piece.
    is_due: bool,
}

/// What has come of a piece of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Brought {
    /// Nothing: the device is to copy earlier pieces first.
    Nothing,
    /// A piece is on its way.
    Piece,
    /// All of the adapter for this slot is there.
    All(u32),
}

impl AdapterSlots {
    /// `count` empty slots, for adapters on the host.
    pub(super) fn new(host: HostAdapters, count: u32) -> Self {
        Self { host, placed: vec![false; count as usize], ..Self::default() }
    }

    pub(super) fn are_coming(&self) -> bool {
        !self.coming.is_empty()
    }

    pub(super) fn is_due(&self) -> bool {
        self.is_due && self.are_coming()
    }

    /// Begins what a plan asks for, before its rows are launched. Its new sequences must find their adapters there.
    pub(super) fn apply(&mut self, plan: &StepPlan, model: &mut dyn Runner) -> Result<(), StepError> {
        for AdapterLoad { slot, adapter } in &plan.adapters {
            let refused = || malformed(plan.step, &format!("adapter {adapter:?} for slot {slot}"));
            let held = self.host.take_planned(adapter).ok_or_else(refused)?;
            let is_coming = self.coming.iter().any(|write| write.slot() == *slot);
            *self.placed.get_mut(*slot as usize).filter(|_| !is_coming).ok_or_else(refused)? = false;
            self.coming.push_back(AdapterWrite::new(held, *slot));
        }
        if !plan.adapters.is_empty() {
            model.begin_adapter_writes();
        }
        self.is_due = true;
        let is_there = |slot: &u32| self.placed.get(*slot as usize) == Some(&true);
        match plan.added.iter().filter_map(|new| new.adapter).find(|slot| !is_there(slot)) {
            None => Ok(()),
            Some(slot) => Err(malformed(plan.step, &format!("no adapter is in slot {slot}"))),
        }
    }

    /// Brings the first of those that are coming further by a piece.
    pub(super) fn bring(&mut self, model: &mut dyn Runner) -> Brought {
        self.is_due = false;
        let Some(write) = self.coming.front_mut() else { return Brought::Nothing };
        match model.write_adapter(write) {
            Taken::Nothing => Brought::Nothing,
            Taken::Part => Brought::Piece,
            Taken::All => {
                let slot = write.slot();
                self.coming.pop_front();
                self.placed[slot as usize] = true;
                Brought::All(slot)
            }
        }
    }
}
