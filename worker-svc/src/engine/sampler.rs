//! Samples on the host: rows are independent, so large batches are spread over threads.

use proto::Candidates;
use sampling::{Allowed, Next, Sampled, SamplingPlan, Scratch, continuations, sample_allowed};

use super::slots::Slot;

/// Logits below which starting threads costs more than it gains.
const WORTH_THREADS: usize = 1 << 20;

/// A row of logits from which a token is sampled.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    logits: &'a [f32],
    plan: &'a SamplingPlan,
    next: Next<'a>,
    /// Most candidates that it gives, if the sequence is a beam.
    candidates: usize,
}

impl<'a> Row<'a> {
    /// Logits `[vocab]` of a sequence's newest position.
    pub(crate) fn of(logits: &'a [f32], slot: &'a Slot) -> Self {
        let allowed = slot.guide.as_ref().map_or(Allowed::All, |guide| guide.allowed());
        Self {
            logits,
            plan: &slot.sampling,
            next: Next { history: &slot.history, allowed },
            candidates: slot.candidates,
        }
    }
}

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
type EachRow<T> = fn(&mut ThreadBuffers, &Row<'_>) -> T;

impl Sampler {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads: (0..threads.max(1)).map(|_| ThreadBuffers::default()).collect() }
    }

    /// The next token of each sequence from its row of logits.
    pub(crate) fn run(&mut self, rows: &[Row<'_>]) -> Vec<Sampled> {
        self.spread(rows, ThreadBuffers::sample)
    }

    /// What may continue each beam, from its row of logits. The slots are the caller's to fill in.
    pub(crate) fn candidates(&mut self, rows: &[Row<'_>]) -> Vec<Candidates> {
        self.spread(rows, ThreadBuffers::candidates)
    }

    fn spread<T: Send>(&mut self, rows: &[Row<'_>], each: EachRow<T>) -> Vec<T> {
        let logits: usize = rows.iter().map(|row| row.logits.len()).sum();
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
    fn run<T>(&mut self, rows: &[Row<'_>], each: EachRow<T>) -> Vec<T> {
        rows.iter().map(|row| each(self, row)).collect()
    }

    fn sample(&mut self, row: &Row<'_>) -> Sampled {
        self.row.clear();
        self.row.extend_from_slice(row.logits);
        sample_allowed(&mut self.row, row.plan, row.next, &mut self.scratch)
    }

    fn candidates(&mut self, row: &Row<'_>) -> Candidates {
        self.row.clear();
        self.row.extend_from_slice(row.logits);
        let found = continuations(&mut self.row, row.plan, row.next.history, row.candidates);
        let (token, logprob) = found.into_iter().unzip();
        Candidates { slot: 0, token, logprob }
    }
}
