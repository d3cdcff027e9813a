//! The step's batch, copied into memory that is reused from step to step.

use crate::ops;

/// An owned [`ops::Batch`].
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) tokens: Vec<u32>,
    pub(crate) positions: Vec<u32>,
    pub(crate) sequences: Vec<Sequence>,
    blocks: Vec<u32>,
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
    first_block: usize,
    num_blocks: usize,
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
        self.owners.clear();
        self.owners.resize(self.tokens.len(), NOBODY);
        for (index, sequence) in batch.sequences.iter().enumerate() {
            let ops::Sequence { first_row, num_rows, start, blocks } = *sequence;
            assert!(first_row + num_rows <= self.tokens.len(), "rows of {sequence:?} in {}", self.tokens.len());
            self.owners[first_row..first_row + num_rows].fill(index as u32);
            let (first_block, num_blocks) = (self.blocks.len(), blocks.len());
            self.sequences.push(Sequence { first_row, num_rows, start, first_block, num_blocks });
            self.blocks.extend_from_slice(blocks);
        }
    }

    /// The block table of a sequence.
    pub(crate) fn blocks(&self, sequence: &Sequence) -> &[u32] {
        &self.blocks[sequence.first_block..][..sequence.num_blocks]
    }

    /// The sequence of a row.
    pub(crate) fn owner(&self, row: usize) -> Option<&Sequence> {
        self.sequences.get(self.owners[row] as usize)
    }

    pub(crate) fn rows(&self) -> usize {
        self.tokens.len()
    }
}
