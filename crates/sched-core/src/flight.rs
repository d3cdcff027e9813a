//! Steps in flight: plans on their way to the workers, and what each of their rows is to give.

use ids::StepId;
use proto::{Candidates, MOST_FORCED_TOKENS, Pooled, StepResult, TokenLogprobs};

/// What a row gives apart from keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// Nothing: the prompt goes on.
    None,
    /// The next token.
    Sample,
    /// As many of the drafted tokens, which are the row's last, as are right, and the next token.
    Verify { drafted: u16 },
    /// The pooled output of a whole prompt.
    Pool,
    /// Candidates for the next token of a beam.
    Candidates,
}

impl Want {
    /// Drafted tokens of the row.
    #[inline]
    pub fn drafted(self) -> u32 {
        match self {
            Want::Verify { drafted } => drafted.into(),
            _ => 0,
        }
    }

    /// Tokens that the row gives at most; a pooled output counts as one, candidates too.
    #[inline]
    pub fn most(self) -> u32 {
        match self {
            Want::None => 0,
            Want::Sample | Want::Pool | Want::Candidates => 1,
            Want::Verify { drafted } => 1 + u32::from(drafted),
        }
    }

    /// As plans say it.
    #[inline]
    pub fn number(self) -> i32 {
        let want = match self {
            Want::None => proto::Want::None,
            Want::Sample => proto::Want::Sample,
            Want::Verify { .. } => proto::Want::Verify,
            Want::Pool => proto::Want::Pool,
            Want::Candidates => proto::Want::Candidates,
        };
        want as i32
    }

    /// Whether the row may give this many tokens. Those that a grammar forces may come with a sampled one.
    pub fn gives(self, tokens: u32) -> bool {
        match self {
            Want::None | Want::Pool | Want::Candidates => tokens == 0,
            Want::Sample => tokens <= 1 + MOST_FORCED_TOKENS,
            Want::Verify { drafted } => (1..=1 + u32::from(drafted)).contains(&tokens),
        }
    }
}

/// What a row gave.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RowOutcome<'a> {
    /// Keys and values.
    Computed,
    /// A sampled token.
    Token(u32),
    /// A sampled token and those that its grammar forces behind it; none where an earlier row told of them.
    Jumped(&'a [u32]),
    /// Accepted drafted tokens, then one that was sampled.
    Verified(&'a [u32]),
    /// The prompt's pooled output.
    Pooled(&'a [f32]),
    /// What may continue a beam.
    Candidates(&'a Candidates),
}

/// Reads a result that answers its plan, row by row.
pub(crate) struct Outcomes<'a> {
    tokens: &'a [u32],
    /// One for each row that wants something; empty: 1 for each.
    counts: &'a [u32],
    pooled: std::slice::Iter<'a, Pooled>,
    candidates: std::slice::Iter<'a, Candidates>,
}

impl RowOutcome<'_> {
    /// Tokens given.
    #[inline]
    pub fn tokens(&self) -> u32 {
        match self {
            RowOutcome::Computed | RowOutcome::Pooled(_) | RowOutcome::Candidates(_) => 0,
            RowOutcome::Token(_) => 1,
            RowOutcome::Jumped(tokens) | RowOutcome::Verified(tokens) => tokens.len() as u32,
        }
    }
}

impl<'a> Outcomes<'a> {
    pub fn new(result: &'a StepResult) -> Self {
        let StepResult { token, count, pooled, candidates, .. } = result;
        Self { tokens: token, counts: count, pooled: pooled.iter(), candidates: candidates.iter() }
    }

    /// What the next row gave.
    #[inline]
    pub fn next(&mut self, want: Want) -> RowOutcome<'a> {
        if matches!(want, Want::None) {
            return RowOutcome::Computed;
        }
        let mut count = 1;
        if let Some((first, rest)) = self.counts.split_first() {
            (count, self.counts) = (*first as usize, rest);
        }
        match want {
            Want::None | Want::Sample if count == 1 => {
                let (token, rest) = self.tokens.split_first().expect("the result was checked");
                self.tokens = rest;
                RowOutcome::Token(*token)
            }
            Want::None | Want::Sample => RowOutcome::Jumped(self.take(count)),
            Want::Verify { .. } => RowOutcome::Verified(self.take(count)),
            Want::Pool => RowOutcome::Pooled(self.pooled.next().map_or(&[], |pooled| &pooled.values)),
            Want::Candidates => RowOutcome::Candidates(self.candidates.next().expect("the result was checked")),
        }
    }

    fn take(&mut self, count: usize) -> &'a [u32] {
        let (tokens, rest) = self.tokens.split_at(count);
        self.tokens = rest;
        tokens
    }
}

/// A plan on its way to the workers: what is needed to understand its result.
#[derive(Debug, Default)]
pub(crate) struct Flight {
    pub step: StepId,
    pub rows: Vec<FlightRow>,
    /// Drafted tokens, row after row.
    pub drafts: Vec<u32>,
    /// Tokens of prompt chunks of more than one.
    pub prompt_tokens: u32,
    /// Rows that want something.
    pub wanting: usize,
    /// Rows that want a pooled output.
    pub pooling: usize,
    /// Rows that want candidates.
    pub searching: usize,
    /// Some row may be silent (see `jump.rs`).
    pub has_silent: bool,
}

/// One row of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FlightRow {
    pub index: u32,
    pub slot: u32,
    /// Positions below this are computed once the row has run, those of rejected tokens among them.
    pub end: u32,
    pub want: Want,
    /// The start of the sequence that it belongs to; another one since then makes the row stale.
    pub incarnation: u64,
}

impl Flight {
    pub fn clear(&mut self, step: StepId) {
        self.step = step;
        self.rows.clear();
        self.drafts.clear();
        self.prompt_tokens = 0;
        self.wanting = 0;
        self.pooling = 0;
        self.searching = 0;
        self.has_silent = false;
    }

    /// Whether every row that wants something gives one token.
    pub fn only_samples(&self) -> bool {
        self.drafts.is_empty() && self.pooling == 0 && self.searching == 0
    }

    pub fn finder(&self) -> RowFinder<'_> {
        RowFinder { rows: &self.rows, last: None }
    }

    pub fn push(&mut self, row: FlightRow) {
        self.wanting += usize::from(!matches!(row.want, Want::None));
        self.pooling += usize::from(matches!(row.want, Want::Pool));
        self.searching += usize::from(matches!(row.want, Want::Candidates));
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
