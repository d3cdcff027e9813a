//! Which rows of a step use which adapter, and which pairs of row and expert.

use std::ops::Range;

use crate::cpu::moe::route::Choices;
use crate::cpu::runtime::batch::Batch;

/// Slot of a row without an adapter.
const NONE: u32 = u32::MAX;
/// Rows of a group, at most.
pub(super) const GROUP: usize = 16;

/// The adapters of a step's rows.
#[derive(Default)]
pub(crate) struct AdapterRows {
    /// Slots of the next step's sequences; empty: none has an adapter.
    sequences: Vec<u32>,
    /// Slots of the step's rows; empty: none has an adapter.
    rows: Vec<u32>,
    /// Slots of the rows that operations have, of which none need have an adapter.
    current: Vec<u32>,
    groups: RowGroups,
    /// Pairs of row and expert of the newest operation of experts.
    pairs: RowGroups,
}

/// Rows of one slot; of experts, pairs of one slot and expert.
#[derive(Clone, Copy)]
pub(crate) struct RowGroup<'a> {
    /// The slot; of experts `slot * experts + expert`.
    pub member: usize,
    /// Rows of the groups before it.
    pub first: usize,
    pub rows: &'a [u32],
}

/// Rows in groups of one slot, slot after slot.
#[derive(Default)]
pub(crate) struct RowGroups {
    /// Rows with an adapter, by slot and then as they lie.
    order: Vec<u32>,
    /// The slot of each group, and where its rows are in `order`.
    groups: Vec<(u32, Range<usize>)>,
}

impl RowGroups {
    fn group(&mut self, slots: impl Iterator<Item = u32>) {
        let adapted = (0..).zip(slots).filter(|(_, slot)| *slot != NONE);
        let mut order: Vec<(u32, u32)> = adapted.map(|(row, slot)| (slot, row)).collect();
        order.sort_unstable();
        self.groups.clear();
        let mut first = 0;
        for same in order.chunk_by(|one, other| one.0 == other.0) {
            for part in same.chunks(GROUP) {
                self.groups.push((part[0].0, first..first + part.len()));
                first += part.len();
            }
        }
        self.order.clear();
        self.order.extend(order.iter().map(|(_, row)| *row));
    }

    pub(super) fn len(&self) -> usize {
        self.groups.len()
    }

    pub(super) fn get(&self, index: usize) -> RowGroup<'_> {
        let (slot, range) = &self.groups[index];
        RowGroup { member: *slot as usize, first: range.start, rows: &self.order[range.clone()] }
    }

    /// The rows of each slot.
    pub(super) fn by_slot(&self) -> impl Iterator<Item = (usize, &[u32])> {
        let of_slot = |groups: &[(u32, Range<usize>)]| {
            let rows = groups[0].1.start..groups[groups.len() - 1].1.end;
            (groups[0].0 as usize, &self.order[rows])
        };
        self.groups.chunk_by(|one, other| one.0 == other.0).map(of_slot)
    }

    /// How many rows have an adapter.
    pub(super) fn rows(&self) -> usize {
        self.order.len()
    }
}

impl AdapterRows {
    /// Slots of the sequences of the step that begins next.
    pub(crate) fn set(&mut self, slots: &[Option<u32>]) {
        self.sequences.clear();
        if slots.iter().any(Option::is_some) {
            self.sequences.extend(slots.iter().map(|slot| slot.unwrap_or(NONE)));
        }
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, batch: &Batch) {
        self.rows.clear();
        if !self.sequences.is_empty() {
            assert_eq!(self.sequences.len(), batch.sequences.len(), "adapters of sequences, and sequences");
            self.rows.resize(batch.rows(), NONE);
            for (sequence, slot) in batch.sequences.iter().zip(&self.sequences) {
                self.rows[sequence.rows()].fill(*slot);
            }
            self.sequences.clear();
        }
        self.current.clone_from(&self.rows);
        self.current.resize(batch.rows(), NONE);
        self.groups.group(self.rows.iter().copied());
    }

    /// From here on, operations have these rows of the step.
    pub(crate) fn select(&mut self, rows: &[u32]) {
        self.current.clear();
        self.current.resize(rows.len(), NONE);
        if !self.rows.is_empty() {
            self.current.iter_mut().zip(rows).for_each(|(slot, row)| *slot = self.rows[*row as usize]);
            self.groups.group(self.current.iter().copied());
        }
    }

    /// The groups of the pairs of row and expert that were chosen.
    pub(super) fn pairs(&mut self, choices: &Choices) -> &RowGroups {
        assert_eq!(choices.rows, self.current.len(), "rows that chose experts, and rows with adapters");
        let (experts, top_k) = (choices.experts() as u32, choices.top_k);
        let member = |(pair, expert): (usize, &u32)| match self.current[pair / top_k] {
            NONE => NONE,
            slot => slot * experts + expert,
        };
        self.pairs.group(choices.chosen().iter().enumerate().map(member));
        &self.pairs
    }

    /// The groups of `count` rows.
    pub(super) fn groups(&self, count: usize) -> &RowGroups {
        assert_eq!(count, self.current.len(), "rows of an operation with adapters");
        &self.groups
    }

    /// The slot of a row's adapter.
    pub(super) fn slot(&self, row: usize) -> Option<u32> {
        Some(self.current[row]).filter(|slot| *slot != NONE)
    }

    /// Whether no row has an adapter.
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.groups.is_empty()
    }
}
