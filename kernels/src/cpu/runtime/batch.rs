//! The step's batch, copied into memory that is reused from step to step.

use std::ops::Range;

use crate::cpu::runtime::pool::Pool;
use crate::ops;

/// An owned [`ops::Batch`].
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) sequences: Vec<Sequence>,
    blocks: Vec<u32>,
    /// Where each table lies in `blocks`: first and count.
    tables: Vec<(usize, usize)>,
    /// Which sequence a row belongs to.
    owners: Vec<u32>,
}

/// Owner of a row that belongs to no sequence.
const NOBODY: u32 = u32::MAX;

/// One sequence of a [`Batch`].
#[derive(Clone, Copy)]
pub(crate) struct Sequence {
    pub(crate) first_row: usize,
    pub(crate) num_rows: usize,
    pub(crate) start: usize,
    pub(crate) slot: usize,
    first_table: usize,
    num_tables: usize,
}

impl Batch {
    pub(crate) fn set(&mut self, batch: ops::Batch<'_>) {
        assert_eq!(batch.tokens.len(), batch.positions.len(), "tokens and positions of a batch");
        self.tokens.clear();
        self.tokens.extend_from_slice(batch.tokens);
        self.positions.clear();
        self.positions.extend_from_slice(batch.positions);
        self.sequences.clear();
        self.blocks.clear();
        self.tables.clear();
        self.owners.clear();
        self.owners.resize(self.tokens.len(), NOBODY);
        for (index, sequence) in batch.sequences.iter().enumerate() {
            let ops::Sequence { first_row, num_rows, start, tables, slot } = *sequence;
            assert!(first_row + num_rows <= self.tokens.len(), "rows of {sequence:?} in {}", self.tokens.len());
            self.owners[first_row..first_row + num_rows].fill(index as u32);
            let (first_table, num_tables) = (self.tables.len(), tables.len());
            self.sequences.push(Sequence { first_row, num_rows, start, slot, first_table, num_tables });
            for blocks in tables {
                self.tables.push((self.blocks.len(), blocks.len()));
                self.blocks.extend_from_slice(blocks);
            }
        }
    }

    /// A block table of a sequence.
    pub(crate) fn blocks(&self, sequence: &Sequence, table: u32) -> &[u32] {
        let (first, count) = self.tables[sequence.first_table..][..sequence.num_tables][table as usize];
        &self.blocks[first..][..count]
    }

    /// The sequence of a row.
    pub(crate) fn owner(&self, row: usize) -> Option<&Sequence> {
        self.sequences.get(self.owners[row] as usize)
    }

    pub(crate) fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Runs `body` for each part of every sequence, as tasks of the pool; `work` as [`Pool::run_sized`] has
    /// it.
    pub(crate) fn each_part<'a>(
        &'a self,
        pool: &mut Pool,
        parts: usize,
        work: usize,
        body: impl Fn(&'a Sequence, usize) + Sync,
    ) {
        pool.run_sized(self.sequences.len() * parts, work, &|task, _| {
            body(&self.sequences[task / parts], task % parts)
        });
    }
}

impl Sequence {
    pub(crate) fn rows(&self) -> Range<usize> {
        self.first_row..self.first_row + self.num_rows
    }
}
