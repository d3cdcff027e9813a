//! Greedy sampling. All other sampling is done by the host, which on this backend is the same processor.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use super::runtime::activations::View;
use super::runtime::pool::Pool;
use crate::sample::{self, SampleParams, SampleRow, Sampled, Ticket};

/// Elements compared side by side, so that the compiler can use vectors.
const LANES: usize = 32;

/// The last token of every slot, and results nobody has taken yet.
#[derive(Default)]
pub(crate) struct Slots {
    last: Vec<u32>,
    chosen: VecDeque<(Ticket, Vec<Sampled>)>,
    spare: Vec<Vec<Sampled>>,
    next: u64,
}

impl Slots {
    pub(crate) fn set_count(&mut self, count: usize) {
        self.last.clear();
        self.last.resize(count, 0);
        self.chosen.clear();
    }

    /// Puts tokens in the place of entries that name slots.
    pub(crate) fn resolve(&self, tokens: &mut [u32]) {
        for token in tokens {
            if let Some(slot) = sample::slot_of(*token) {
                *token = self.last[slot as usize];
            }
        }
    }

    pub(crate) fn sample(&mut self, pool: &mut Pool, logits: Option<View>, rows: &[SampleRow]) -> Ticket {
        let tokens: Vec<AtomicU32> = rows.iter().map(|_| AtomicU32::new(0)).collect();
        if let Some(logits) = logits {
            pool.run_sized(rows.len(), rows.len() * logits.width, &|task, _| {
                let row = rows[task].row as usize;
                assert!(row < logits.rows, "row {row} of {} rows of logits", logits.rows);
                // SAFETY: nobody writes logits while tokens are chosen from them.
                let best = best(unsafe { logits.row(row) });
                tokens[task].store(best, Ordering::Relaxed);
            });
        }
        let ticket = Ticket(self.next);
        self.next += 1;
        let mut chosen = self.spare.pop().unwrap_or_default();
        for (row, token) in rows.iter().zip(tokens) {
            let token = token.into_inner();
            self.last[row.slot as usize] = token;
            chosen.push(Sampled { token, logprobs: None });
        }
        self.chosen.push_back((ticket, chosen));
        assert!(self.chosen.len() <= sample::STEPS_IN_FLIGHT, "steps under way, and results nobody takes");
        ticket
    }

    pub(crate) fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>) {
        let (oldest, mut chosen) = self.chosen.pop_front().expect("a step under way");
        assert_eq!(oldest, ticket, "results are taken in the order of their steps");
        out.append(&mut chosen);
        self.spare.push(chosen);
    }
}

/// Whether the token is that of the largest logit, whatever came before.
pub(crate) fn is_greedy(params: &SampleParams) -> bool {
    *params == SampleParams::default()
}

/// Index of the largest number, the lowest on ties; NaN is passed over, and 0 stands for a row without numbers above
/// -inf.
fn best(row: &[f32]) -> u32 {
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = row.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane = if x > *lane { x } else { *lane };
        }
    }
    let largest = rest.iter().chain(&lanes).fold(f32::NEG_INFINITY, |best, &x| if x > best { x } else { best });
    if largest == f32::NEG_INFINITY {
        return 0;
    }
    row.iter().position(|&x| x == largest).map_or(0, |at| at as u32)
}
