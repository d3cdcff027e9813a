//! Plans on their way to the workers.

use ids::StepId;
use proto::TokenLogprobs;

/// A plan on its way to the workers: what is needed to understand its result.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    pub step: StepId,
    pub rows: Vec<FlightRow>,
    /// Tokens of rows with more than one.
    pub prompt_tokens: u32,
    /// Rows that sample a token.
    pub sampled: usize,
}

/// One row of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlightRow {
    pub index: u32,
    pub slot: u32,
    /// Positions below this are computed once the row has run.
    pub end: u32,
    pub sample: bool,
    /// The start of the sequence that it belongs to; another one since then makes the row stale.
    pub incarnation: u64,
}

impl Flight {
    pub fn clear(&mut self, step: StepId) {
        self.step = step;
        self.rows.clear();
        self.prompt_tokens = 0;
        self.sampled = 0;
    }

    pub fn finder(&self) -> RowFinder<'_> {
        RowFinder { rows: &self.rows, last: None }
    }

    pub fn push(&mut self, row: FlightRow) {
        self.sampled += usize::from(row.sample);
        self.rows.push(row);
    }
}

/// Finds the rows that prompt log-probabilities belong to. They come in long runs of one slot, so the last one found is
/// tried first.
pub(crate) struct RowFinder<'a> {
    rows: &'a [FlightRow],
    last: Option<FlightRow>,
}

impl RowFinder<'_> {
    pub fn find(&mut self, logprobs: &TokenLogprobs) -> Option<FlightRow> {
        let slot = logprobs.prompt_of_sequence?;
        if self.last.is_none_or(|row| u64::from(row.slot) != slot) {
            self.last = self.rows.iter().find(|row| u64::from(row.slot) == slot).copied();
        }
        self.last
    }
}
