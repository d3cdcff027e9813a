//! The input batch of a forward pass, as the model takes it.

use kernels::{
    ops::{Batch, Sequence},
    sample::{SampleRow, last_token},
};

use proto::StepPlan;

use super::{
    forward_pass::{Chunk, Wanted},
    slots::{Slot, Slots},
};

/// The memory of input batches, kept from step to step.
#[derive(Default)]
pub(crate) struct BatchMemory {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<Sequence<'static>>,
    adapters: Vec<Option<u32>>,
    logit_rows: Vec<u32>,
    pub sample_rows: Vec<SampleRow>,
    /// Of steps whose tokens were taken.
    pub targets: Vec<Vec<SampleTarget>>,
}

/// Tokens, positions, sequences, and the rows that are sampled.
pub(crate) struct InputBatch<'a> {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<Sequence<'a>>,
    /// Slots of the sequences' adapters; empty: none has one.
    pub adapters: Vec<Option<u32>>,
    /// Batch rows whose logits are wanted, ascending.
    pub logit_rows: Vec<u32>,
    /// Rows that the device samples, in order.
    pub sample_rows: Vec<SampleRow>,
    /// The sequences of all sampled rows, in order.
    pub targets: Vec<SampleTarget>,
    /// Whether the host needs logits of this pass.
    pub needs_host: bool,
    /// Whether the device samples tokens of guided sequences.
    pub is_guided: bool,
}

/// The sequence that a sampled token belongs to, and who samples it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SampleTarget {
    pub slot: u32,
    /// Tells the sequences that a slot holds one after the other apart.
    pub incarnation: u64,
    pub sampler: SampledBy,
}

/// Who samples a row's token, or tokens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SampledBy {
    Device,
    Host,
    /// The host, which verifies a draft with it.
    Verification,
    /// None of them: its token is known.
    Known,
    /// Nobody: the row gives candidates for a beam's next token.
    Search,
}

impl<'a> InputBatch<'a> {
    pub(crate) fn new(chunks: &[Chunk], plan: &StepPlan, slots: &'a Slots, memory: &mut BatchMemory) -> Self {
        let count = chunks.len();
        let mut batch = Self {
            tokens: emptied(&mut memory.tokens, count),
            positions: emptied(&mut memory.positions, count),
            sequences: emptied_sequences(std::mem::take(&mut memory.sequences)),
            adapters: emptied(&mut memory.adapters, 0),
            logit_rows: emptied(&mut memory.logit_rows, count),
            sample_rows: emptied(&mut memory.sample_rows, count),
            targets: emptied(&mut memory.targets.pop().unwrap_or_default(), count),
            needs_host: false,
            is_guided: false,
        };
        batch.sequences.reserve(count);
        let slot = |chunk: &Chunk| slots.get(chunk.slot).expect("forward_passes looked it up");
        let mut has_adapters = false;
        for chunk in chunks {
            let slot = slot(chunk);
            has_adapters |= slot.adapter.is_some();
            batch.add(chunk, plan, slot);
        }
        if has_adapters {
            batch.adapters.extend(chunks.iter().map(|chunk| slot(chunk).adapter));
        }
        batch
    }

    /// Asks for keys and values alone.
    pub(crate) fn ask_nothing(&mut self) {
        self.logit_rows.clear();
        self.sample_rows.clear();
        self.targets.clear();
        (self.needs_host, self.is_guided) = (false, false);
    }

    /// Gives its memory back; the sequences whose tokens were asked for are left.
    pub(crate) fn into_targets(self, memory: &mut BatchMemory) -> Vec<SampleTarget> {
        memory.tokens = self.tokens;
        memory.positions = self.positions;
        memory.sequences = emptied_sequences(self.sequences);
        memory.adapters = self.adapters;
        memory.logit_rows = self.logit_rows;
        if self.sample_rows.capacity() > 0 {
            memory.sample_rows = self.sample_rows;
        }
        self.targets
    }

    /// The model's view of it.
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch { tokens: &self.tokens, positions: &self.positions, sequences: &self.sequences }
    }

    /// Adds a chunk. Nearly all chunks are the newest token of a sequence that the device samples, and add one entry to
    /// each list.
    #[inline]
    fn add(&mut self, chunk: &Chunk, plan: &StepPlan, slot: &'a Slot) {
        if chunk.len > 1 || chunk.wanted != Wanted::Last || !slot.on_device {
            return self.add_any(chunk, chunk.draft(plan), slot);
        }
        let (row, start) = (self.tokens.len(), chunk.start as usize);
        self.tokens.push(slot.history.tokens().get(start).copied().unwrap_or(last_token(chunk.slot)));
        self.positions.push(chunk.start);
        let tables = &slot.tables;
        self.sequences.push(Sequence { first_row: row, num_rows: 1, start, tables, slot: chunk.slot as usize });
        self.logit_rows.push(row as u32);
        self.add_target(chunk.slot, slot);
    }

    fn add_any(&mut self, chunk: &Chunk, draft: &[u32], slot: &'a Slot) {
        let (start, num_rows) = (chunk.start as usize, chunk.len as usize);
        let first_row = self.tokens.len();
        let known = slot.history.tokens();
        // Only the newest token can be unknown: `forward_passes` has checked that.
        if num_rows == 1 {
            self.tokens.push(known.get(start).copied().unwrap_or(last_token(chunk.slot)));
            self.positions.push(chunk.start);
        } else {
            self.tokens.extend_from_slice(&known[start.min(known.len())..(start + num_rows).min(known.len())]);
            self.tokens.extend_from_slice(draft);
            self.tokens.resize(first_row + num_rows, last_token(chunk.slot));
            self.positions.extend(chunk.start..chunk.start + chunk.len);
        }
        self.sequences.push(Sequence { first_row, num_rows, start, tables: &slot.tables, slot: chunk.slot as usize });
        let end = self.tokens.len() as u32;
        match chunk.wanted {
            Wanted::Nothing | Wanted::Known => {}
            Wanted::Last | Wanted::Candidates => self.logit_rows.push(end - 1),
            Wanted::All { .. } => self.logit_rows.extend(first_row as u32..end),
            Wanted::Drafted { count, .. } => self.logit_rows.extend(end - count - 1..end),
        }
        self.needs_host |= matches!(chunk.wanted, Wanted::All { .. } | Wanted::Drafted { .. } | Wanted::Candidates);
        if !draft.is_empty() || chunk.wanted == Wanted::Candidates {
            let sampler = if draft.is_empty() { SampledBy::Search } else { SampledBy::Verification };
            self.targets.push(SampleTarget { slot: chunk.slot, incarnation: slot.incarnation, sampler });
        } else if chunk.wanted == Wanted::Known {
            let (incarnation, sampler) = (slot.incarnation, SampledBy::Known);
            self.targets.push(SampleTarget { slot: chunk.slot, incarnation, sampler });
        } else if chunk.samples() {
            self.add_target(chunk.slot, slot);
        }
    }

    #[inline]
    fn add_target(&mut self, number: u32, slot: &Slot) {
        let Slot { incarnation, on_device, ref sampling, .. } = *slot;
        let sampler = if on_device { SampledBy::Device } else { SampledBy::Host };
        self.targets.push(SampleTarget { slot: number, incarnation, sampler });
        self.needs_host |= !on_device;
        if on_device {
            self.is_guided |= slot.guide.is_some();
            let position = slot.len() - slot.history.num_prompt();
            self.sample_rows.push(SampleRow {
                row: self.logit_rows.len() as u32 - 1,
                slot: number,
                // Computing it takes longer than all else here, and greedy rows do not look at it.
                uniform: if sampling.is_greedy() { 0.0 } else { sampling.uniform_at(position) },
                hold_stops: sampling.holds_stops(position),
            });
        }
    }
}

/// Takes a list's memory, with room for `count` entries.
fn emptied<T>(list: &mut Vec<T>, count: usize) -> Vec<T> {
    let mut list = std::mem::take(list);
    list.clear();
    list.reserve(count);
    list
}

/// The memory of a list that borrows from slots, for one that borrows from others.
fn emptied_sequences<'a>(mut sequences: Vec<Sequence<'_>>) -> Vec<Sequence<'a>> {
    sequences.clear();
    // Collecting what one list gives into another of the same layout keeps the memory.
    sequences.into_iter().map(|_| unreachable!("it was cleared")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emptied_list_keeps_its_memory() {
        let tables = [vec![1]];
        let mut sequences = Vec::with_capacity(100);
        sequences.push(Sequence { first_row: 0, num_rows: 1, start: 0, tables: &tables, slot: 0 });
        let memory = sequences.as_ptr().cast::<u8>();
        let emptied: Vec<Sequence<'static>> = emptied_sequences(sequences);
        assert_eq!((emptied.len(), emptied.capacity(), emptied.as_ptr().cast()), (0, 100, memory));
    }
}
