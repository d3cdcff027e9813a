//! Recurrent state: one row of f32 a sequence, and the walk over a batch's sequences.

use crate::cpu::runtime::batch::{Batch, Sequence};
use crate::cpu::runtime::memory::{Region, Shared};

/// One layer's states `[slots, len]`.
pub(crate) struct States {
    slots: usize,
    pub(crate) len: usize,
    region: Region,
}

impl States {
    pub(crate) fn new(slots: usize, len: usize) -> Self {
        Self { slots, len, region: Region::new(slots * len * size_of::<f32>()) }
    }

    /// Elements `from .. from + len` of a sequence's state; zeroed where the sequence starts.
    ///
    /// # Safety
    /// Nobody else uses these elements meanwhile.
    #[allow(clippy::mut_from_ref, reason = "tasks own disjoint parts")]
    pub(crate) unsafe fn part(&self, sequence: &Sequence, from: usize, len: usize) -> &mut [f32] {
        assert!(from + len <= self.len, "elements {from}..{} of a state of {}", from + len, self.len);
        // SAFETY: the row was checked when the batch was taken, the elements above; the rest is the caller's promise.
        let part = unsafe {
            let first = Shared::new(self.region.ptr().cast::<f32>()).at(sequence.slot * self.len + from);
            std::slice::from_raw_parts_mut(first, len)
        };
        if sequence.start == 0 {
            part.fill(0.0);
        }
        part
    }

    /// Every sequence of the batch has a state, and no two the same.
    pub(crate) fn check(&self, batch: &Batch) {
        for (index, sequence) in batch.sequences.iter().enumerate() {
            assert!(sequence.slot < self.slots, "slot {} of {}", sequence.slot, self.slots);
            let twice = batch.sequences[..index].iter().any(|other| other.slot == sequence.slot);
            debug_assert!(!twice, "slot {} is two sequences'", sequence.slot);
        }
    }
}
