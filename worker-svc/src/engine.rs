//! Executes plans: changes to the slots, forward passes, sampling.

use std::time::Instant;

use collectives::Collective;
use kernels::ops::{Batch, Sequence};
use models::{Logits, Model};
use proto::{StepPlan, StepResult, TokenLogprobs};
use sampling::{Logprobs, Sampled, token_logprobs};

use crate::{
    error::StepError,
    passes::{Piece, Wanted, passes},
    sampler::Sampler,
    slots::{Slot, Slots, no_slot},
};

/// One epoch of a worker: the model, the slots, the group.
pub(crate) struct Engine<'m> {
    pub model: &'m mut Model,
    pub slots: Slots,
    pub group: Box<dyn Collective>,
    pub sampler: Sampler,
    pub max_logit_rows: usize,
}

impl Engine<'_> {
    /// One step. The result has rows on rank 0 only; every rank samples, so that all keep the same history.
    pub(crate) fn run(&mut self, mut plan: StepPlan) -> Result<StepResult, StepError> {
        let start = Instant::now();
        self.slots.apply(&mut plan)?;
        if !plan.copy_from.is_empty() {
            self.model.copy_blocks(&plan.copy_from, &plan.copy_to);
        }
        self.slots.replace(&plan)?;
        let mut result = StepResult { epoch: plan.epoch, step: plan.step, ..StepResult::default() };
        if self.model.is_echo() {
            self.echo(&plan, &mut result)?;
        } else {
            for pieces in passes(&plan, &self.slots, self.max_logit_rows)? {
                self.pass(&pieces, &mut result)?;
            }
        }
        result.compute_us = u32::try_from(start.elapsed().as_micros()).unwrap_or(u32::MAX);
        if self.group.rank() != 0 {
            result =
                StepResult { epoch: plan.epoch, step: plan.step, compute_us: result.compute_us, ..Default::default() };
        }
        Ok(result)
    }

    /// The model that costs nothing: no forward pass, no logits.
    fn echo(&mut self, plan: &StepPlan, result: &mut StepResult) -> Result<(), StepError> {
        for (slot, sample) in plan.slot.iter().zip(&plan.sample) {
            let held = self.slots.get_mut(*slot).ok_or_else(|| no_slot(plan.step, *slot))?;
            if *sample != 0 {
                let token = Model::echo_next(held.history.tokens(), held.history.num_prompt());
                held.history.push(token);
                result.slot.push(*slot);
                result.token.push(token);
            }
        }
        Ok(())
    }

    fn pass(&mut self, pieces: &[Piece], result: &mut StepResult) -> Result<(), StepError> {
        let rows = Rows::new(pieces, &self.slots);
        let (tokens, positions) = (&rows.tokens, &rows.positions);
        let batch = Batch { tokens, positions, sequences: &rows.sequences };
        let logits = self.model.forward(batch, &rows.logit_rows, &mut *self.group)?;
        let mut sampled_rows = Vec::new();
        let mut next = 0;
        for piece in pieces {
            let slot = self.slots.get(piece.slot).expect("passes looked it up");
            let first = next;
            next += match piece.wanted {
                Wanted::Nothing => 0,
                Wanted::Last => 1,
                Wanted::All { .. } => piece.len as usize,
            };
            if let Wanted::All { .. } = piece.wanted {
                score_prompt(piece, slot, logits, first, &mut result.prompt_logprobs);
            }
            if matches!(piece.wanted, Wanted::Last | Wanted::All { sample: true }) {
                sampled_rows.push((piece.slot, logits.row(next - 1), slot));
            }
        }
        let work: Vec<(&[f32], &Slot)> = sampled_rows.iter().map(|(_, row, slot)| (*row, *slot)).collect();
        let sampled = self.sampler.run(&work);
        let chosen: Vec<(u32, Sampled)> = sampled_rows.iter().map(|(slot, ..)| *slot).zip(sampled).collect();
        for (slot, sampled) in chosen {
            self.take(slot, sampled, result);
        }
        Ok(())
    }

    fn take(&mut self, slot: u32, sampled: Sampled, result: &mut StepResult) {
        self.slots.get_mut(slot).expect("passes looked it up").history.push(sampled.token);
        if let Some(logprobs) = sampled.logprobs {
            result.logprobs.push(message(result.token.len() as u32, sampled.token, logprobs));
        }
        result.slot.push(slot);
        result.token.push(sampled.token);
    }
}

/// A pass's rows as the model wants them.
struct Rows<'a> {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    sequences: Vec<Sequence<'a>>,
    logit_rows: Vec<u32>,
}

impl<'a> Rows<'a> {
    fn new(pieces: &[Piece], slots: &'a Slots) -> Self {
        let mut rows =
            Self { tokens: vec![], positions: vec![], sequences: Vec::with_capacity(pieces.len()), logit_rows: vec![] };
        for piece in pieces {
            let slot = slots.get(piece.slot).expect("passes looked it up");
            let (start, num_rows) = (piece.start as usize, piece.len as usize);
            let first_row = rows.tokens.len();
            rows.tokens.extend_from_slice(&slot.history.tokens()[start..start + num_rows]);
            rows.positions.extend(piece.start..piece.start + piece.len);
            rows.sequences.push(Sequence { first_row, num_rows, start, blocks: &slot.blocks });
            let end = rows.tokens.len() as u32;
            match piece.wanted {
                Wanted::Nothing => {}
                Wanted::Last => rows.logit_rows.push(end - 1),
                Wanted::All { .. } => rows.logit_rows.extend(first_row as u32..end),
            }
        }
        rows
    }
}

/// Log-probabilities of the prompt tokens that follow a piece's positions.
fn score_prompt(piece: &Piece, slot: &Slot, logits: Logits<'_>, first: usize, out: &mut Vec<TokenLogprobs>) {
    let (tokens, num_prompt) = (slot.history.tokens(), slot.history.num_prompt());
    let top = slot.prompt_logprobs.unwrap_or(0);
    for offset in 0..piece.len as usize {
        let position = piece.start as usize + offset + 1;
        if position < num_prompt {
            let token = tokens[position];
            let scored = token_logprobs(logits.row(first + offset), token, top);
            let mut entry = message(position as u32, token, scored);
            entry.prompt_of_sequence = Some(piece.slot.into());
            out.push(entry);
        }
    }
}

fn message(index: u32, token: u32, logprobs: Logprobs) -> TokenLogprobs {
    let (top_ids, top_logprobs) = logprobs.top.into_iter().unzip();
    TokenLogprobs {
        index,
        logprob: logprobs.logprob,
        rank: logprobs.rank,
        top_ids,
        top_logprobs,
        prompt_of_sequence: None,
        token,
    }
}
