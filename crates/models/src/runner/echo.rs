//! The echo model's runner: it repeats the prompt, computes nothing and keeps no cache.

use std::collections::VecDeque;

use collectives::Collective;
use kernels::ops::Batch;
use kernels::sample::{STEPS_IN_FLIGHT, SampleParams, SampleRow, Sampled, Ticket};

use super::Runner;
use crate::cache::CacheLayout;
use crate::error::ForwardError;
use crate::model::{Logits, Memory};

/// Repeats prompts.
pub(crate) struct Echo {
    vocab: usize,
    slots: Vec<Slot>,
    /// The token after each row with logits of the newest step.
    next: Vec<u32>,
    /// Their logits, made on demand.
    logits: Vec<f32>,
    in_flight: VecDeque<(Ticket, Vec<Sampled>)>,
    spare: Vec<Vec<Sampled>>,
    steps: u64,
}

#[derive(Clone, Default)]
struct Slot {
    prompt: Vec<u32>,
    /// Held back in rows that say so.
    stops: Vec<u32>,
}

impl Echo {
    pub(crate) fn new(vocab: usize) -> Self {
        Self {
            vocab,
            slots: Vec::new(),
            next: Vec::new(),
            logits: Vec::new(),
            in_flight: VecDeque::with_capacity(STEPS_IN_FLIGHT),
            spare: Vec::new(),
            steps: 0,
        }
    }

    /// Finds the token after each of `rows`, which ascend like the sequences.
    fn find_next(&mut self, batch: Batch<'_>, rows: &[u32]) -> Result<(), ForwardError> {
        self.next.clear();
        let mut left = rows;
        for sequence in batch.sequences {
            let end = sequence.first_row + sequence.num_rows;
            while let Some(row) = left.first().map(|row| *row as usize).filter(|row| *row < end) {
                left = &left[1..];
                let Some(slot) = self.slots.get(sequence.slot) else { return Err(self.unknown_slot(rows.len())) };
                self.next.push(following(&slot.prompt, sequence.start + row - sequence.first_row));
            }
        }
        match left.is_empty() {
            true => Ok(()),
            false => Err(ForwardError::LogitRows { rows: batch.tokens.len() }),
        }
    }

    /// The token that a row samples; absent if there is no such row or slot.
    fn token_of(&self, row: &SampleRow) -> Option<u32> {
        let (&token, slot) = self.next.get(row.row as usize).zip(self.slots.get(row.slot as usize))?;
        // As sampling has it for a row in which everything is masked.
        Some(if row.hold_stops && slot.stops.contains(&token) { 0 } else { token })
    }

    #[cold]
    fn unknown_slot(&self, logit_rows: usize) -> ForwardError {
        ForwardError::Choices { logit_rows, slots: self.slots.len() }
    }
}

/// The token after the one at `position`; 0 without a prompt.
fn following(prompt: &[u32], position: usize) -> u32 {
    // A remainder of 32 bits takes a third of the time of one of 64.
    prompt.get((position as u32 + 1).checked_rem(prompt.len() as u32).unwrap_or(0) as usize).copied().unwrap_or(0)
}

impl Runner for Echo {
    fn describe_device(&self) -> String {
        "none (echo)".to_owned()
    }

    fn cache(&self) -> CacheLayout {
        CacheLayout::nothing()
    }

    fn allocate(&mut self, _: Memory) {}

    fn copy_blocks(&mut self, _: &[u32], _: &[u32]) {}

    fn set_slots(&mut self, count: usize) {
        self.in_flight.clear();
        self.slots.clear();
        self.slots.resize(count, Slot::default());
    }

    fn set_prompt(&mut self, slot: u32, prompt: &[u32]) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.prompt.clear();
            slot.prompt.extend_from_slice(prompt);
            slot.stops.clear();
        }
    }

    /// Whatever leaves the only likely token as it is.
    fn can_sample(&self, choice: &SampleParams) -> bool {
        choice.allowed.is_empty() && choice.forbidden.is_empty() && choice.logprobs.is_none() && !choice.masked
    }

    fn set_slot(&mut self, slot: u32, choice: &SampleParams, _: &[(u32, u32)]) {
        self.slots[slot as usize].stops.clone_from(&choice.stops);
    }

    fn submit(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        choices: &[SampleRow],
        _: &mut dyn Collective,
    ) -> Result<Ticket, ForwardError> {
        self.find_next(batch, logit_rows)?;
        let mut sampled = self.spare.pop().unwrap_or_default();
        sampled.reserve(choices.len());
        for row in choices {
            let Some(token) = self.token_of(row) else { return Err(self.unknown_slot(self.next.len())) };
            sampled.push(Sampled { token, logprobs: None });
        }
        let ticket = Ticket(self.steps);
        self.steps += 1;
        self.in_flight.push_back((ticket, sampled));
        Ok(ticket)
    }

    /// All probability is the next token's.
    fn logits(&mut self) -> Result<Logits<'_>, ForwardError> {
        let (rows, vocab) = (self.next.len(), self.vocab);
        self.logits.clear();
        self.logits.resize(rows * vocab, f32::NEG_INFINITY);
        for (row, &token) in self.logits.chunks_exact_mut(vocab).zip(&self.next) {
            if let Some(logit) = row.get_mut(token as usize) {
                *logit = 0.0;
            }
        }
        Ok(Logits { rows, vocab, own: vocab, data: &self.logits })
    }

    fn is_done(&mut self, _: Ticket) -> bool {
        true
    }

    fn take(&mut self, ticket: Ticket, out: &mut Vec<Sampled>) -> Result<(), ForwardError> {
        let (oldest, mut sampled) = self.in_flight.pop_front().expect("a step in flight");
        assert_eq!(oldest, ticket, "results are taken in the order of their steps");
        if out.is_empty() {
            std::mem::swap(out, &mut sampled);
        } else {
            out.append(&mut sampled);
        }
        self.spare.push(sampled);
        Ok(())
    }

    fn forward(
        &mut self,
        batch: Batch<'_>,
        logit_rows: &[u32],
        _: &mut dyn Collective,
    ) -> Result<Logits<'_>, ForwardError> {
        self.find_next(batch, logit_rows)?;
        self.logits()
    }
}

#[cfg(test)]
mod tests {
    use collectives::Solo;
    use kernels::ops::Sequence;
    use kernels::sample::last_token;

    use super::*;

    fn sequence(first_row: usize, num_rows: usize, start: usize, slot: usize) -> Sequence<'static> {
        Sequence { first_row, num_rows, start, tables: &[], slot }
    }

    fn row(row: u32, slot: u32) -> SampleRow {
        SampleRow { row, slot, uniform: 0.5, hold_stops: true }
    }

    fn echo() -> Echo {
        let mut echo = Echo::new(16);
        echo.set_slots(2);
        echo.set_prompt(0, &[7, 8, 9]);
        echo.set_prompt(1, &[5]);
        echo
    }

    #[test]
    fn repeats_prompts_before_tokens_are_known() {
        let mut echo = echo();
        let mut tokens = Vec::new();
        // Slot 0 from the middle of its prompt, as after a hit of the prefix cache.
        let mut batch: (Vec<u32>, Vec<Sequence<'_>>, Vec<u32>) =
            (vec![9, 5], vec![sequence(0, 1, 2, 0), sequence(1, 1, 0, 1)], vec![2, 0]);
        for step in 0..4 {
            let (entries, sequences, positions) = &batch;
            let rows = Batch { tokens: entries, positions, sequences };
            let ticket = echo.submit(rows, &[0, 1], &[row(0, 0), row(1, 1)], &mut Solo).unwrap();
            assert!(echo.is_done(ticket));
            echo.take(ticket, &mut tokens).unwrap();
            let sequences = vec![sequence(0, 1, step + 3, 0), sequence(1, 1, step + 1, 1)];
            batch = (vec![last_token(0), last_token(1)], sequences, vec![step as u32 + 3, step as u32 + 1]);
        }
        let of = |slot: usize| tokens.iter().skip(slot).step_by(2).map(|sampled| sampled.token).collect::<Vec<_>>();
        assert_eq!((of(0), of(1)), (vec![7, 8, 9, 7], vec![5; 4]));
    }

    #[test]
    fn logits_name_the_next_token() {
        let mut echo = echo();
        let batch = Batch { tokens: &[7, 8, 9], positions: &[0, 1, 2], sequences: &[sequence(0, 3, 0, 0)] };
        let logits = echo.forward(batch, &[0, 2], &mut Solo).unwrap();
        let best = |row: usize| logits.row(row).iter().position(|&logit| logit == 0.0);
        assert_eq!((logits.rows, best(0), best(1)), (2, Some(8), Some(7)));
        assert_eq!(logits.data.iter().filter(|logit| logit.is_finite()).count(), 2);
        assert!(echo.forward(batch, &[3], &mut Solo).is_err());
    }

    #[test]
    fn held_stops_are_not_sampled() {
        let mut echo = echo();
        let choice = SampleParams { stops: vec![7], ..SampleParams::default() };
        assert!(echo.can_sample(&choice) && !echo.can_sample(&SampleParams { forbidden: vec![7], ..choice.clone() }));
        echo.set_slot(0, &choice, &[]);
        let batch = Batch { tokens: &[9], positions: &[2], sequences: &[sequence(0, 1, 2, 0)] };
        for (hold_stops, token) in [(true, 0), (false, 7)] {
            let ticket = echo.submit(batch, &[0], &[SampleRow { hold_stops, ..row(0, 0) }], &mut Solo).unwrap();
            let mut out = Vec::new();
            echo.take(ticket, &mut out).unwrap();
            assert_eq!(out, [Sampled { token, logprobs: None }]);
        }
    }
}
