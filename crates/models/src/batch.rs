//! Checks of a step's batch, so that a faulty plan is an error here and not a wrong read on a device.

use kernels::ops::{Batch, Sequence};
use kernels::sample::{SampleRow, slot_of};

use crate::error::ForwardError;
use crate::network::Step;

/// What a sequence may name: blocks and slots.
#[derive(Clone, Copy)]
pub(crate) struct Blocks {
    pub count: usize,
    /// Tokens a block.
    pub size: usize,
    /// Block tables of a sequence.
    pub tables: usize,
    /// Sequences that may be under way at once.
    pub slots: usize,
}

/// What batch entries may name.
#[derive(Clone, Copy)]
pub(crate) struct Entries {
    pub vocab: usize,
    pub slots: usize,
    /// Of a table of learned ones.
    pub positions: Option<usize>,
}

impl Entries {
    fn contain(self, entry: u32) -> bool {
        slot_of(entry).map_or((entry as usize) < self.vocab, |slot| (slot as usize) < self.slots)
    }
}

/// Checks counts, token ids, rows and blocks of a batch.
pub(crate) fn check(batch: Batch<'_>, blocks: Blocks, entries: Entries, max_rows: usize) -> Result<(), ForwardError> {
    let rows = batch.tokens.len();
    if rows == 0 || rows > max_rows {
        return Err(ForwardError::Rows { what: "tokens", rows, max: max_rows });
    }
    if let Some(&token) = batch.tokens.iter().find(|&&token| !entries.contain(token)) {
        return Err(ForwardError::Token { token, vocab: entries.vocab });
    }
    let longest = entries.positions.unwrap_or(usize::MAX);
    if let Some(&position) = batch.positions.iter().find(|&&position| position as usize >= longest) {
        return Err(ForwardError::Position { position, positions: longest });
    }
    let mut next_row = 0;
    for (index, sequence) in batch.sequences.iter().enumerate() {
        let fault = if sequence.first_row != next_row { Some("its rows do not follow those before") } else { None };
        next_row = sequence.first_row.saturating_add(sequence.num_rows);
        let fault = fault.or_else(|| sequence_fault(batch, sequence, blocks));
        if let Some(reason) = fault {
            return Err(ForwardError::Batch { sequence: index, reason });
        }
    }
    if next_row != rows || batch.positions.len() != rows {
        let reason = "sequences and positions must cover all rows";
        return Err(ForwardError::Batch { sequence: batch.sequences.len(), reason });
    }
    Ok(())
}

fn sequence_fault(batch: Batch<'_>, sequence: &Sequence<'_>, blocks: Blocks) -> Option<&'static str> {
    let Some(end) = sequence.start.checked_add(sequence.num_rows) else { return Some("it is too long") };
    let positions = batch.positions.get(sequence.first_row..sequence.first_row.saturating_add(sequence.num_rows));
    if sequence.num_rows == 0 {
        return Some("it has no rows");
    }
    if !positions
        .is_some_and(|p| p.iter().zip(sequence.start..).all(|(&position, expected)| position as usize == expected))
    {
        return Some("its positions do not count up from its start");
    }
    if sequence.tables.len() != blocks.tables {
        return Some("it has another number of block tables than the model");
    }
    if sequence.slot >= blocks.slots {
        return Some("its slot is outside the pool");
    }
    for table in sequence.tables {
        if end > table.len().saturating_mul(blocks.size) {
            return Some("its blocks do not reach its last position");
        }
        if table[..end.div_ceil(blocks.size)].iter().any(|&block| block as usize >= blocks.count) {
            return Some("it has a block outside the pool");
        }
    }
    None
}

/// Checks that tokens are chosen from rows that have logits, for slots that exist, one each.
pub(crate) fn check_choices(rows: &[SampleRow], logit_rows: usize, slots: usize) -> Result<(), ForwardError> {
    let ascending = rows.is_sorted_by(|a, b| a.row < b.row);
    if !ascending || rows.iter().any(|row| row.row as usize >= logit_rows || row.slot as usize >= slots) {
        return Err(ForwardError::Choices { logit_rows, slots });
    }
    Ok(())
}

/// Checks that the rows that a head is asked for ascend within the batch.
pub(crate) fn check_output_rows(logit_rows: &[u32], rows: usize, max: usize) -> Result<(), ForwardError> {
    if logit_rows.len() > max {
        return Err(ForwardError::Rows { what: "rows with logits", rows: logit_rows.len(), max });
    }
    let ascending = logit_rows.is_sorted_by(|a, b| a < b);
    if !ascending || logit_rows.last().is_some_and(|&row| row as usize >= rows) {
        return Err(ForwardError::LogitRows { rows });
    }
    Ok(())
}

/// Checks that rows whose means a head is asked for are rows of the batch.
pub(crate) fn check_means(step: Step<'_>, max: usize) -> Result<(), ForwardError> {
    let (rows, means) = (step.batch.tokens.len(), step.means);
    if !step.token_types.is_empty() && step.token_types.len() != rows {
        return Err(ForwardError::LogitRows { rows });
    }
    if means.len() > max {
        return Err(ForwardError::Rows { what: "means", rows: means.len(), max });
    }
    let inside = means.iter().all(|mean| mean.start < mean.end && mean.end <= rows);
    if !inside || !(means.is_empty() || step.output_rows.is_empty()) {
        return Err(ForwardError::LogitRows { rows });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kernels::sample::last_token;

    use super::*;

    const BLOCKS: Blocks = Blocks { count: 4, size: 2, tables: 1, slots: 2 };
    const ENTRIES: Entries = Entries { vocab: 10, slots: 2, positions: Some(4) };

    fn check_one(tokens: &[u32], positions: &[u32], sequence: Sequence<'_>) -> Result<(), ForwardError> {
        check(Batch { tokens, positions, sequences: &[sequence] }, BLOCKS, ENTRIES, 3)
    }

    fn sequence(start: usize, num_rows: usize, tables: &[Vec<u32>]) -> Sequence<'_> {
        Sequence { first_row: 0, num_rows, start, tables, slot: 0 }
    }

    #[test]
    fn good_batches_pass() {
        check_one(&[1, 2], &[0, 1], sequence(0, 2, &[vec![3]])).unwrap();
        check_one(&[1, 2, 3], &[1, 2, 3], sequence(1, 3, &[vec![3, 0]])).unwrap();
        check_one(&[last_token(1)], &[0], sequence(0, 1, &[vec![3]])).unwrap();
        // A block beyond those in use may be anything.
        check_one(&[1], &[0], sequence(0, 1, &[vec![3, 99]])).unwrap();
    }

    #[test]
    fn tokens_are_chosen_where_there_are_logits() {
        let row = |row, slot| SampleRow { row, slot, uniform: 0.0, hold_stops: false };
        check_choices(&[row(0, 1), row(2, 0)], 3, 2).unwrap();
        for rows in [[row(0, 1), row(3, 0)], [row(0, 2), row(1, 0)], [row(1, 0), row(1, 1)]] {
            assert!(check_choices(&rows, 3, 2).is_err(), "{rows:?}");
        }
    }

    #[test]
    fn bad_batches_are_refused() {
        let refused = [
            check_one(&[], &[], sequence(0, 0, &[vec![0]])),
            check_one(&[1; 4], &[0, 1, 2, 3], sequence(0, 4, &[vec![0, 1]])),
            check_one(&[10], &[0], sequence(0, 1, &[vec![0]])),
            check_one(&[last_token(2)], &[0], sequence(0, 1, &[vec![0]])),
            check_one(&[1], &[1], sequence(0, 1, &[vec![0]])),
            check_one(&[1, 1], &[1, 2], sequence(1, 2, &[vec![0]])),
            check_one(&[1], &[0], sequence(0, 1, &[vec![4]])),
            check_one(&[1, 1], &[0, 1], sequence(0, 1, &[vec![0]])),
            check_one(&[1], &[0], sequence(0, 2, &[vec![0]])),
            check_one(&[1], &[0], Sequence { first_row: 1, num_rows: 1, start: 0, tables: &[vec![0]], slot: 0 }),
            check_one(&[1], &[0], sequence(usize::MAX, 1, &[vec![0]])),
            check_one(&[1], &[0], sequence(0, 1, &[vec![0], vec![1]])),
            check_one(&[1], &[0], Sequence { slot: 2, ..sequence(0, 1, &[vec![0]]) }),
            check_one(&[1], &[4], sequence(4, 1, &[vec![0, 1, 2]])),
            check_output_rows(&[0, 1], 2, 1),
            check_output_rows(&[1, 0], 2, 2),
            check_output_rows(&[2], 2, 2),
        ];
        for (index, result) in refused.into_iter().enumerate() {
            assert!(result.is_err(), "case {index}");
        }
    }
}
