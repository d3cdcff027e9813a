//! Sampling on the device: parameters once a sequence, a few numbers a step, and tokens taken a step later.

use super::Act;
use crate::sample::{SampleParams, SampleRow, Sampled, SlotMask, Ticket};

/// Samples tokens from logits, and keeps each slot's last token, so that the next step can be submitted before the host
/// has read it.
pub trait Sample {
    /// Allocates slots for `count` sequences, empty, over logits of `vocab` columns. No step may be in flight.
    fn set_slots(&mut self, count: usize, vocab: usize);

    /// Whether [`Sample::sample`] supports all of this. What it does not, the host does on logits that it has read.
    fn can_sample(&self, params: &SampleParams) -> bool;

    /// Another sequence begins in a slot. `counts` has every token of it so far and how often it occurs in the output
    /// (0: in the prompt only), when there are penalties.
    fn set_slot(&mut self, slot: u32, params: &SampleParams, counts: &[(u32, u32)]);

    /// Launches what of a forward pass waits to be fused with what follows, up to its `logits`: the device has all of
    /// it while the host prepares what [`Sample::sample`] needs.
    fn end_pass(&mut self, logits: Act) {
        let _ = logits;
    }

    /// Says which tokens may be sampled from here on in slots whose parameters have [`SampleParams::masked`]; each slot
    /// at most once. To be called before each sample of a row of such a slot.
    fn set_masks(&mut self, masks: &[SlotMask<'_>]);

    /// Ends a step: samples tokens from rows of `logits` (any buffer when there are no rows), makes each its slot's
    /// last token, and counts it for penalties. Does not wait for the device. At most
    /// [`crate::sample::STEPS_IN_FLIGHT`] steps may be ended and not taken.
    ///
    /// The same logits and parameters give the same token whatever else is in the batch.
    fn sample(&mut self, logits: Act, rows: &[SampleRow]) -> Ticket;

    /// Ends a step that gives no logits but `rows`, of which nothing is sampled. Otherwise as [`Sample::sample`].
    fn end_step(&mut self, rows: Act) -> Ticket {
        self.sample(rows, &[])
    }

    /// Whether [`Sample::take`] would return without waiting.
    fn is_done(&mut self, ticket: Ticket) -> bool;

    /// Waits for a step and appends the results of its rows to `out`, in the order of the rows. Called once for each
    /// ticket, in order.
    fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>);
}
