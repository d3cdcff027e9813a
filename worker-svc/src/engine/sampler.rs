//! Samples on the host: rows are independent, so large batches are spread over threads.

use sampling::{Sampled, Scratch, sample};

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

impl Sampler {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads: (0..threads.max(1)).map(|_| ThreadBuffers::default()).collect() }
    }

    /// The next token of each sequence from its row of logits.
    pub(crate) fn run(&mut self, rows: &[(&[f32], &Slot)]) -> Vec<Sampled> {
        let logits: usize = rows.iter().map(|(row, _)| row.len()).sum();
        let threads = if logits < WORTH_THREADS { 1 } else { self.threads.len().min(rows.len()) };
        if threads <= 1 {
            return self.threads[0].run(rows);
        }
        let share = rows.len().div_ceil(threads);
        std::thread::scope(|scope| {
            let running: Vec<_> = rows
                .chunks(share)
                .zip(&mut self.threads)
                .map(|(rows, buffers)| scope.spawn(|| buffers.run(rows)))
                .collect();
            let finished = running.into_iter().map(|thread| thread.join());
            finished.flat_map(|sampled| sampled.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
        })
    }
}

impl ThreadBuffers {
    fn run(&mut self, rows: &[(&[f32], &Slot)]) -> Vec<Sampled> {
        let sample_row = |(logits, slot): &(&[f32], &Slot)| {
            self.row.clear();
            self.row.extend_from_slice(logits);
            sample(&mut self.row, &slot.sampling, &slot.history, &mut self.scratch)
        };
        rows.iter().map(sample_row).collect()
    }
}
