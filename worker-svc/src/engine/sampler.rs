//! Samples on the host: rows are independent, so large batches are spread over threads.

use proto::Candidates;
use sampling::{Sampled, Scratch, continuations, sample};

use super::slots::Slot;

/// Logits below which starting threads costs more than it gains.
const WORTH_THREADS: usize = 1 << 20;

/// The host sampler, with buffers for each thread.
pub(crate) struct Sampler {
    threads: Vec<ThreadBuffers>,
}

#[derive(Default)]
struct ThreadBuffers {
    row: Vec<f32>,
    scratch: Scratch,
}

/// What is done with a row of logits.
type EachRow<T> = fn(&mut ThreadBuffers, &[f32], &Slot) -> T;

impl Sampler {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads: (0..threads.max(1)).map(|_| ThreadBuffers::default()).collect() }
    }

    /// The next token of each sequence from its row of logits.
    pub(crate) fn run(&mut self, rows: &[(&[f32], &Slot)]) -> Vec<Sampled> {
        self.spread(rows, ThreadBuffers::sample)
    }

    /// What may continue each beam, from its row of logits. The slots are the caller's to fill in.
    pub(crate) fn candidates(&mut self, rows: &[(&[f32], &Slot)]) -> Vec<Candidates> {
        self.spread(rows, ThreadBuffers::candidates)
    }

    fn spread<T: Send>(&mut self, rows: &[(&[f32], &Slot)], each: EachRow<T>) -> Vec<T> {
        let logits: usize = rows.iter().map(|(row, _)| row.len()).sum();
        let threads = if logits < WORTH_THREADS { 1 } else { self.threads.len().min(rows.len()) };
        if threads <= 1 {
            return self.threads[0].run(rows, each);
        }
        let share = rows.len().div_ceil(threads);
        std::thread::scope(|scope| {
            let running: Vec<_> = rows
                .chunks(share)
                .zip(&mut self.threads)
                .map(|(rows, buffers)| scope.spawn(move || buffers.run(rows, each)))
                .collect();
            let finished = running.into_iter().map(|thread| thread.join());
            finished.flat_map(|sampled| sampled.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }
}

impl ThreadBuffers {
    fn run<T>(&mut self, rows: &[(&[f32], &Slot)], each: EachRow<T>) -> Vec<T> {
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
