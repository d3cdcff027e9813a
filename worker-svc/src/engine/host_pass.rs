//! Passes whose logits the host needs: rows that it samples, drafts to verify, beams, prompts' log-probabilities.

use models::Logits;
use proto::{StepPlan, StepResult, TokenLogprobs};
use sampling::{Sampled, token_logprobs};

use super::{
    Engine, PendingSamples,
    forward_pass::{Chunk, Wanted},
    outcome::{HostSamples, message},
    sampler::{Row, Sampler},
    slots::Slot,
};
use crate::{
    error::StepError,
    guide::{self, Lent},
};

impl Engine<'_> {
    /// Computes which tokens may come next in the guided sequences that the host samples in a pass.
    pub(super) fn compute_host_masks(&mut self, chunks: &[Chunk]) {
        let mut guides: Vec<Lent> = Vec::new();
        for chunk in chunks {
            let Some(slot) = self.slots.get_mut(chunk.slot) else { continue };
            let is_host = chunk.samples() && !slot.on_device || matches!(chunk.wanted, Wanted::Drafted { .. });
            let guide = slot.guide.take_if(|_| is_host);
            guides.extend(guide.map(|guide| Lent { slot: chunk.slot, guide }));
        }
        guide::compute_masks(&mut guides, self.mask_threads);
        self.return_guides(guides);
    }

    /// Samples the host's rows of a pass, and takes the device's.
    pub(super) fn sample_on_host(
        &mut self,
        chunks: &[Chunk],
        plan: &StepPlan,
        asked: PendingSamples,
        result: &mut StepResult,
    ) -> Result<(), StepError> {
        let logits = self.model.logits()?;
        let mut work: Vec<Row<'_>> = Vec::new();
        let mut beams: Vec<Row<'_>> = Vec::new();
        let mut next = 0;
        for chunk in chunks {
            let slot = self.slots.get(chunk.slot).expect("forward_passes looked it up");
            let first = next;
            next += chunk.logit_rows();
            if let Wanted::All { .. } = chunk.wanted {
                score_prompt(chunk, slot, logits, first, &mut result.prompt_logprobs);
            }
            if chunk.samples() && !slot.on_device {
                work.push(Row::of(logits.row(next - 1), slot));
            }
            if chunk.wanted == Wanted::Candidates {
                beams.push(Row::of(logits.row(next - 1), slot));
            }
        }
        let (sampled, candidates) = (self.sampler.run(&work), self.sampler.candidates(&beams));
        let mut from_host = HostSamples { sampled, candidates, verified: Vec::new() };
        let mut next = 0;
        for chunk in chunks {
            let draft = chunk.draft(plan);
            if !draft.is_empty() {
                let slot = self.slots.get_mut(chunk.slot).expect("forward_passes looked it up");
                from_host.verified.push(verify(&mut self.sampler, slot, draft, |offset| logits.row(next + offset)));
            }
            next += chunk.logit_rows();
        }
        self.complete(asked, from_host, result)
    }
}

/// Samples after the last known token of a sequence and after each drafted one, until a sampled token differs from the
/// drafted one, and appends the samples to the history. `logits` has a row for each of these positions.
fn verify<'l>(
    sampler: &mut Sampler,
    slot: &mut Slot,
    draft: &[u32],
    logits: impl Fn(usize) -> &'l [f32],
) -> Vec<Sampled> {
    // The device does not learn of tokens that are sampled here, so the host goes on sampling.
    slot.on_device = false;
    let mut verified = Vec::with_capacity(draft.len() + 1);
    for offset in 0..=draft.len() {
        if offset > 0 {
            slot.guide.iter_mut().for_each(|guide| guide.compute_mask());
        }
        let sampled = sampler.run(&[Row::of(logits(offset), slot)]).remove(0);
        slot.history.push(sampled.token);
        slot.guide.iter_mut().for_each(|guide| guide.accept(sampled.token));
        let is_right = draft.get(offset) == Some(&sampled.token);
        verified.push(sampled);
        if !is_right {
            break;
        }
    }
    verified
}

/// Log-probabilities of the prompt tokens that follow a chunk's positions.
fn score_prompt(chunk: &Chunk, slot: &Slot, logits: Logits<'_>, first: usize, out: &mut Vec<TokenLogprobs>) {
    let (tokens, num_prompt) = (slot.history.tokens(), slot.history.num_prompt());
    let top = slot.prompt_logprobs.unwrap_or(0);
    for offset in 0..chunk.len as usize {
        let position = chunk.start as usize + offset + 1;
        if position < num_prompt {
            let token = tokens[position];
            let scored = token_logprobs(logits.row(first + offset), token, top);
            let mut entry = message(position as u32, token, scored);
            entry.prompt_of_sequence = Some(chunk.slot.into());
            out.push(entry);
        }
    }
}
