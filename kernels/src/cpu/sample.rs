//! Greedy sampling, masked or not. All other sampling is done by the host, which on this backend is the same processor.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};

use super::runtime::activations::View;
use super::runtime::pool::Pool;
use crate::sample::{self, Allowed, SampleParams, SampleRow, Sampled, SlotMask, Ticket};

/// Elements compared side by side, so that the compiler can use vectors.
const LANES: usize = 32;

/// The last token of every slot, and results nobody has taken yet.
#[derive(Default)]
pub(crate) struct Slots {
    last: Vec<u32>,
    /// The newest mask of slots that have one.
    masks: Vec<Option<Mask>>,
    vocab: usize,
    chosen: VecDeque<(Ticket, Vec<Sampled>)>,
    spare: Vec<Vec<Sampled>>,
    next: u64,
}

/// Tokens that may be sampled, as words of bits, and the token of a row in which everything is masked.
#[derive(Clone)]
struct Mask {
    words: Vec<u32>,
    fallback: u32,
}

impl Slots {
    pub(crate) fn set_count(&mut self, count: usize, vocab: usize) {
        self.last.clear();
        self.last.resize(count, 0);
        self.masks.clear();
        self.masks.resize(count, None);
        self.vocab = vocab;
        self.chosen.clear();
    }

    /// Another sequence begins in a slot. A masked one may have any token until its first mask comes.
    pub(crate) fn set_masked(&mut self, slot: u32, masked: bool) {
        let words = || vec![u32::MAX; self.vocab.div_ceil(32)];
        self.masks[slot as usize] = masked.then(|| Mask { words: words(), fallback: 0 });
    }

    pub(crate) fn set_masks(&mut self, masks: &[SlotMask<'_>]) {
        for SlotMask { slot, allowed } in masks {
            let mask = self.masks[*slot as usize].as_mut().expect("a slot whose parameters say that it is masked");
            allowed.write(&mut mask.words);
            mask.fallback = allowed.first(self.vocab).unwrap_or(0);
        }
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
        let masks = &self.masks;
        let tokens: Vec<AtomicU32> = rows.iter().map(|_| AtomicU32::new(0)).collect();
        if let Some(logits) = logits {
            pool.run_sized(rows.len(), rows.len() * logits.width, &|task, _| {
                let row = rows[task].row as usize;
                assert!(row < logits.rows, "row {row} of {} rows of logits", logits.rows);
                // SAFETY: nobody writes logits while tokens are chosen from them.
                let logits = unsafe { logits.row(row) };
                let token = match &masks[rows[task].slot as usize] {
                    None => best(logits),
                    Some(mask) => best_of(logits, Allowed::Some(&mask.words)).unwrap_or(mask.fallback),
                };
                tokens[task].store(token, Ordering::Relaxed);
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
    *params == SampleParams { masked: params.masked, ..SampleParams::default() }
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

/// The same among some tokens; absent where none of them has a number above -inf.
fn best_of(row: &[f32], allowed: Allowed<'_>) -> Option<u32> {
    let mut best: Option<(usize, f32)> = None;
    for (at, chunk) in row.chunks(32).enumerate() {
        let word = allowed.word(at);
        if word == 0 {
            continue;
        }
        for (bit, &x) in chunk.iter().enumerate().filter(|(bit, _)| word >> bit & 1 != 0) {
            if x > best.map_or(f32::NEG_INFINITY, |(_, most)| most) {
                best = Some((at * 32 + bit, x));
            }
        }
    }
    best.map(|(at, _)| at as u32)
}
