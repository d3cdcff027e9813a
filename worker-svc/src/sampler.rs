//! Chooses the tokens of a pass: rows are independent, so large batches are spread over threads.

use proto::Candidates;
use sampling::{Sampled, Scratch, continuations, sample};

use crate::slots::Slot;

/// Numbers below which starting threads costs more than it gains.
const WORTH_THREADS: usize = 1 << 20;

/// Buffers for sampling, one set a thread.
pub(crate) struct Sampler {
    sets: Vec<Set>,
}

#[derive(Default)]
struct Set {
    row: Vec<f32>,
    scratch: Scratch,
}

impl Sampler {
    pub(crate) fn new(threads: usize) -> Self {
        Self { sets: (0..threads.max(1)).map(|_| Set::default()).collect() }
    }

    /// The next token of each sequence from its row of logits.
    pub(crate) fn run(&mut self, rows: &[(&[f32], &Slot)]) -> Vec<Sampled> {
        self.spread(rows, Set::sample)
    }

    /// What may continue each beam, from its row of logits; whose they are is left to the caller to say.
    pub(crate) fn candidates(&mut self, rows: &[(&[f32], &Slot)]) -> Vec<Candidates> {
        self.spread(rows, Set::candidates)
    }

    fn spread<T: Send>(&mut self, rows: &[(&[f32], &Slot)], each: fn(&mut Set, &[f32], &Slot) -> T) -> Vec<T> {
        let numbers: usize = rows.iter().map(|(row, _)| row.len()).sum();
        let threads = if numbers < WORTH_THREADS { 1 } else { self.sets.len().min(rows.len()) };
        if threads <= 1 {
            return self.sets[0].run(rows, each);
        }
        let share = rows.len().div_ceil(threads);
        std::thread::scope(|scope| {
            let running: Vec<_> = rows
                .chunks(share)
                .zip(&mut self.sets)
                .map(|(rows, set)| scope.spawn(move || set.run(rows, each)))
                .collect();
            let finished = running.into_iter().map(|thread| thread.join());
            finished.flat_map(|sampled| sampled.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }
}

impl Set {
    fn run<T>(&mut self, rows: &[(&[f32], &Slot)], each: fn(&mut Set, &[f32], &Slot) -> T) -> Vec<T> {
        rows.iter().map(|(logits, slot)| each(self, logits, slot)).collect()
    }

    fn sample(&mut self, logits: &[f32], slot: &Slot) -> Sampled {
        self.row.clear();
        self.row.extend_from_slice(logits);
        sample(&mut self.row, &slot.sampling, &slot.history, &mut self.scratch)
    }

    fn candidates(&mut self, logits: &[f32], slot: &Slot) -> Candidates {
        self.row.clear();
        self.row.extend_from_slice(logits);
        let found = continuations(&mut self.row, &slot.sampling, &slot.history, slot.candidates);
        let (token, logprob) = found.into_iter().unzip();
        Candidates { slot: 0, token, logprob }
    }
}
