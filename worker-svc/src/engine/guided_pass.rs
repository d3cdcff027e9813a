//! Passes in which the device samples tokens of guided sequences: their masks are computed while the device runs them.

use kernels::sample::SlotMask;

use super::{Engine, Flight, PendingSamples, Progress};
use crate::{
    error::StepError,
    guide::{self, Lent},
    idle::graph_capture::Load,
};

impl Engine<'_> {
    /// Whether a pass waits for masks, and with it the device, once it has computed the logits.
    pub(super) fn awaits_masks(&self) -> bool {
        self.flights.iter().any(Flight::awaits_masks)
    }

    /// Computes the masks that the oldest plan waits for, and has its tokens sampled. Its step.
    pub(crate) fn mask_and_sample(&mut self) -> Result<u64, StepError> {
        let Some(mut flight) = self.flights.pop_front() else { return Ok(0) };
        let step = flight.result.step;
        if let Some(pending) = flight.pending.take() {
            flight.pending = Some(self.sample_launched(pending)?);
        }
        self.flights.push_front(flight);
        // While the device works.
        self.capture(Load::InFlight).map(|_| step)
    }

    /// Computes the masks of a pass, if it waits for some, and has its tokens sampled. The tokens of all plans before
    /// it are known.
    pub(super) fn sample_launched(&mut self, pending: PendingSamples) -> Result<PendingSamples, StepError> {
        let PendingSamples { progress: Progress::Launched(rows), targets } = pending else { return Ok(pending) };
        let mut guides: Vec<Lent> = Vec::new();
        for row in &rows {
            let guide = self.slots.get_mut(row.slot).and_then(|slot| slot.guide.take());
            guides.extend(guide.map(|guide| Lent { slot: row.slot, guide }));
        }
        guide::compute_masks(&mut guides, self.mask_threads);
        let masks: Vec<SlotMask<'_>> =
            guides.iter().map(|lent| SlotMask { slot: lent.slot, allowed: lent.guide.allowed() }).collect();
        let ticket = self.model.sample(&rows, &masks)?;
        self.return_guides(guides);
        self.memory.sample_rows = rows;
        Ok(PendingSamples { progress: Progress::Sampling(ticket), targets })
    }

    /// Gives guides back to their slots.
    pub(super) fn return_guides(&mut self, guides: Vec<Lent>) {
        for Lent { slot, guide } in guides {
            if let Some(slot) = self.slots.get_mut(slot) {
                slot.guide = Some(guide);
            }
        }
    }
}
