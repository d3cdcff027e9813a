//! Choosing the greedy tokens, on the host so far: logits are read, and the next batch gets the tokens.

use std::collections::VecDeque;

use crate::choose::{self, ChoiceRow, Sampled, Ticket};

/// The last token of every slot, and results nobody has taken yet.
#[derive(Default)]
pub(crate) struct Slots {
    last: Vec<u32>,
    chosen: VecDeque<(Ticket, Vec<Sampled>)>,
    next: u64,
    /// The batch's tokens, without entries that name slots.
    tokens: Vec<u32>,
}

impl Slots {
    pub(crate) fn set_count(&mut self, count: usize) {
        self.last.clear();
        self.last.resize(count, 0);
        self.chosen.clear();
    }

    /// Puts tokens in the place of entries that name slots.
    pub(crate) fn resolve(&mut self, tokens: &[u32]) -> &[u32] {
        self.tokens.clear();
        let token = |&entry: &u32| choose::slot_of(entry).map_or(entry, |slot| self.last[slot as usize]);
        self.tokens.extend(tokens.iter().map(token));
        &self.tokens
    }

    /// `logits` has rows of `width`; after a fault it may have none.
    pub(crate) fn choose(&mut self, logits: &[f32], width: usize, rows: &[ChoiceRow]) -> Ticket {
        let ticket = Ticket(self.next);
        self.next += 1;
        let mut chosen = Vec::with_capacity(rows.len());
        for row in rows {
            let logits = logits.get(row.row as usize * width..).and_then(|rest| rest.get(..width)).unwrap_or(&[]);
            let token = best(logits);
            self.last[row.slot as usize] = token;
            chosen.push(Sampled { token, logprobs: None });
        }
        self.chosen.push_back((ticket, chosen));
        assert!(self.chosen.len() <= choose::STEPS_IN_FLIGHT, "steps under way, and results nobody takes");
        ticket
    }

    pub(crate) fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>) {
        let (oldest, mut chosen) = self.chosen.pop_front().expect("a step under way");
        assert_eq!(oldest, ticket, "results are taken in the order of their steps");
        out.append(&mut chosen);
    }
}

/// Index of the largest number, the lowest on ties; NaN is passed over, and 0 stands for a row without numbers above -inf.
fn best(row: &[f32]) -> u32 {
    let mut best = (f32::NEG_INFINITY, 0);
    for (at, &x) in row.iter().enumerate() {
        if x > best.0 {
            best = (x, at);
        }
    }
    best.1 as u32
}
