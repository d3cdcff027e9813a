//! Chooses the tokens of a pass: rows are independent, so large batches are spread over threads.

use sampling::{Sampled, Scratch, sample};

use super::slots::Slot;

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
        let numbers: usize = rows.iter().map(|(row, _)| row.len()).sum();
        let threads = if numbers < WORTH_THREADS { 1 } else { self.sets.len().min(rows.len()) };
        if threads <= 1 {
            return self.sets[0].run(rows);
        }
        let share = rows.len().div_ceil(threads);
        std::thread::scope(|scope| {
            let running: Vec<_> =
                rows.chunks(share).zip(&mut self.sets).map(|(rows, set)| scope.spawn(|| set.run(rows))).collect();
            let finished = running.into_iter().map(|thread| thread.join());
            finished.flat_map(|sampled| sampled.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }
}

impl Set {
    fn run(&mut self, rows: &[(&[f32], &Slot)]) -> Vec<Sampled> {
        let choose = |(logits, slot): &(&[f32], &Slot)| {
            self.row.clear();
            self.row.extend_from_slice(logits);
            sample(&mut self.row, &slot.sampling, &slot.history, &mut self.scratch)
        };
        rows.iter().map(choose).collect()
    }
}
