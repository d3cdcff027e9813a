//! A pass's rows as the model wants them.

use kernels::{
    ops::{Batch, Sequence},
    sample::{SampleRow, last_token},
};

use proto::StepPlan;

use crate::{
    passes::{Piece, Wanted},
    slots::{Slot, Slots},
};

/// Tokens, positions, sequences, and where tokens are chosen.
pub(crate) struct Rows<'a> {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<Sequence<'a>>,
    /// Batch rows whose logits are wanted, ascending.
    pub logit_rows: Vec<u32>,
    /// What the device chooses, in order.
    pub choices: Vec<SampleRow>,
    /// Everything that is chosen, in order.
    pub choosers: Vec<Chooser>,
}

/// Whose token is chosen, and where.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Chooser {
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
    /// The host, which verifies a draft with them.
    Verification,
    /// Nobody: the row gives candidates.
    Search,
}

impl<'a> Rows<'a> {
    pub(crate) fn new(pieces: &[Piece], plan: &StepPlan, slots: &'a Slots) -> Self {
        let count = pieces.len();
        let mut rows = Self {
            tokens: Vec::with_capacity(count),
            positions: Vec::with_capacity(count),
            sequences: Vec::with_capacity(count),
            logit_rows: Vec::with_capacity(count),
            choices: Vec::with_capacity(count),
            choosers: Vec::with_capacity(count),
        };
        for piece in pieces {
            rows.add(piece, piece.draft(plan), slots.get(piece.slot).expect("passes looked it up"));
        }
        rows
    }

    /// As the model takes it.
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch { tokens: &self.tokens, positions: &self.positions, sequences: &self.sequences }
    }

    fn add(&mut self, piece: &Piece, draft: &[u32], slot: &'a Slot) {
        let (start, num_rows) = (piece.start as usize, piece.len as usize);
        let first_row = self.tokens.len();
        let known = slot.history.tokens();
        self.tokens.extend_from_slice(&known[start.min(known.len())..(start + num_rows).min(known.len())]);
        self.tokens.extend_from_slice(draft);
        // Only the newest token can be unknown: `passes` has checked that.
        self.tokens.resize(first_row + num_rows, last_token(piece.slot));
        self.positions.extend(piece.start..piece.start + piece.len);
        self.sequences.push(Sequence { first_row, num_rows, start, tables: &slot.tables, slot: piece.slot as usize });
        let end = self.tokens.len() as u32;
        match piece.wanted {
            Wanted::Nothing => {}
            Wanted::Last | Wanted::Candidates => self.logit_rows.push(end - 1),
            Wanted::All { .. } => self.logit_rows.extend(first_row as u32..end),
            Wanted::Drafted { count, .. } => self.logit_rows.extend(end - count - 1..end),
        }
        if !draft.is_empty() || piece.wanted == Wanted::Candidates {
            let sampler = if draft.is_empty() { SampledBy::Search } else { SampledBy::Verification };
            self.choosers.push(Chooser { slot: piece.slot, incarnation: slot.incarnation, sampler });
        } else if piece.samples() {
            self.choose(piece.slot, slot);
        }
    }

    fn choose(&mut self, number: u32, slot: &Slot) {
        let Slot { incarnation, on_device, ref sampling, .. } = *slot;
        let sampler = if on_device { SampledBy::Device } else { SampledBy::Host };
        self.choosers.push(Chooser { slot: number, incarnation, sampler });
        if on_device {
            let position = slot.len() - slot.history.num_prompt();
            self.choices.push(SampleRow {
                row: self.logit_rows.len() as u32 - 1,
                slot: number,
                uniform: sampling.uniform_at(position),
                hold_stops: sampling.holds_stops(position),
            });
        }
    }
}
