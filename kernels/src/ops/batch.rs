//! The ragged batch of one step: tokens of all its sequences, one after the other.

/// The ragged batch of one step.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Token ids of all rows `[num_tokens]`, or stand-ins for a slot's last token ([`crate::sample::last_token`]).
    pub tokens: &'a [u32],
    /// Position of each row in its sequence `[num_tokens]`.
    pub positions: &'a [u32],
    /// One entry per sequence, in row order.
    pub sequences: &'a [Sequence<'a>],
}

/// One sequence's part of a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub struct Sequence<'a> {
    /// First row of the batch that belongs to it.
    pub first_row: usize,
    /// Rows in this step.
    pub num_rows: usize,
    /// Position of the first row: tokens already in the cache.
    pub start: usize,
    /// Block tables, one for each KV cache group: entry `i` of each is the physical block that holds positions
    /// `i * block_size ..`. An entry that lies wholly behind a layer's window is not read, and may name any block.
    pub tables: &'a [Vec<u32>],
    /// Its row in every [`State`](super::State); sequences of one batch differ in it. Unused by models without states.
    pub slot: usize,
}

/// Means over rows of a buffer.
#[derive(Clone, Copy, Debug)]
pub struct RowMeans<'a> {
    /// The rows of each mean; none is empty.
    pub ranges: &'a [std::ops::Range<usize>],
    /// Columns of the buffer.
    pub width: usize,
}

impl RowMeans<'_> {
    /// The means of `rows` `[_, width]`, one after the other. Rows are added in order.
    pub fn compute(self, rows: &[f32]) -> Vec<f32> {
        let mut means = vec![0.0; self.ranges.len() * self.width];
        for (range, mean) in self.ranges.iter().zip(means.chunks_exact_mut(self.width)) {
            for row in rows[range.start * self.width..range.end * self.width].chunks_exact(self.width) {
                mean.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
            let count = range.len() as f32;
            mean.iter_mut().for_each(|sum| *sum /= count);
        }
        means
    }
}

/// Some rows of a step, for example those whose logits are wanted.
#[derive(Clone, Copy, Debug)]
pub struct RowSelection<'a> {
    /// Row indices into the batch, ascending.
    pub rows: &'a [u32],
}
