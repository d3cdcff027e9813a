//! Outcomes of rows: sampled tokens, verified drafts and beams' candidates go into histories and results.

use proto::{Candidates, FailedRow, StepResult, TokenLogprobs};
use sampling::{Logprobs, Sampled};

use super::{
    Engine, PendingSamples, Progress,
    input_batch::{SampleTarget, SampledBy},
    slots::Slot,
};
use crate::error::StepError;

/// The tokens that the host sampled in a pass, in order.
#[derive(Default)]
pub(super) struct HostSamples {
    pub sampled: Vec<Sampled>,
    /// The tokens of each row that verifies.
    pub verified: Vec<Vec<Sampled>>,
    /// What may continue each beam.
    pub candidates: Vec<Candidates>,
}

impl Engine<'_> {
    /// Appends the tokens of a pass, the device's and the host's, to histories and result, in the plan's order.
    pub(super) fn complete(
        &mut self,
        asked: PendingSamples,
        from_host: HostSamples,
        result: &mut StepResult,
    ) -> Result<(), StepError> {
        let mut on_device = std::mem::take(&mut self.sampled);
        let Progress::Sampling(ticket) = asked.progress else { unreachable!("its masks were computed") };
        self.model.take(ticket, &mut on_device)?;
        let mut from_device = on_device.drain(..);
        let HostSamples { sampled, verified, candidates } = from_host;
        let (mut from_host, mut verified, mut candidates) =
            (sampled.into_iter(), verified.into_iter(), candidates.into_iter());
        result.slot.reserve(asked.targets.len());
        result.token.reserve(asked.targets.len());
        for &target in &asked.targets {
            let sampled = match target.sampler {
                SampledBy::Device => from_device.next(),
                SampledBy::Host => from_host.next(),
                SampledBy::Known => {
                    append_silent(target.slot, result);
                    continue;
                }
                SampledBy::Search => {
                    self.report_candidates(target, candidates.next().expect("of each beam"), result);
                    continue;
                }
                SampledBy::Verification => {
                    self.append_verified(target, verified.next().expect("each draft was verified"), result);
                    continue;
                }
            };
            self.append(target, sampled.expect("one for each row that was asked for"), result);
        }
        drop(from_device);
        self.sampled = on_device;
        self.memory.targets.push(asked.targets);
        Ok(())
    }

    #[inline]
    fn append(&mut self, target: SampleTarget, sampled: Sampled, result: &mut StepResult) {
        // A later plan may have given the slot to another sequence; the scheduler knows whose token this is.
        let held = self.slots.get_mut(target.slot);
        if let Some(slot) = held.filter(|slot| slot.incarnation == target.incarnation) {
            if slot.silent > 0 {
                slot.silent -= 1;
                return append_silent(target.slot, result);
            }
            slot.pending -= 1;
            slot.history.push(sampled.token);
            if let Some(guide) = &mut slot.guide {
                guide.accept(sampled.token);
                let forced = guide.take_forced();
                report_failure(target.slot, slot, result);
                if !forced.is_empty() {
                    return append_forced(target.slot, slot, sampled, &forced, result);
                }
            }
        }
        if !result.count.is_empty() {
            result.count.push(1);
        }
        result.slot.push(target.slot);
        report(sampled, result);
    }

    /// Adds a beam's candidates to the result; the plan that continues the beam says which token it gets.
    fn report_candidates(&mut self, target: SampleTarget, candidates: Candidates, result: &mut StepResult) {
        if let Some(slot) = self.slots.get_mut(target.slot) {
            slot.pending -= 1;
        }
        result.count.resize(result.slot.len(), 1);
        result.count.push(0);
        result.slot.push(target.slot);
        result.candidates.push(Candidates { slot: target.slot, ..candidates });
    }

    /// Appends a verified draft to the result; its tokens are in the history already.
    fn append_verified(&mut self, target: SampleTarget, sampled: Vec<Sampled>, result: &mut StepResult) {
        if let Some(slot) = self.slots.get_mut(target.slot) {
            slot.pending -= 1;
            report_failure(target.slot, slot, result);
        }
        // Rows before it gave a token each; `count` stays empty where all rows do.
        result.count.resize(result.slot.len(), 1);
        result.count.push(sampled.len() as u32);
        result.slot.push(target.slot);
        sampled.into_iter().for_each(|sampled| report(sampled, result));
    }
}

/// Appends what a grammar forces behind a token to history and result. A row that is under way samples the first of it.
#[cold]
fn append_forced(number: u32, slot: &mut Slot, sampled: Sampled, forced: &[u32], result: &mut StepResult) {
    slot.silent = std::mem::take(&mut slot.pending);
    forced.iter().for_each(|token| slot.history.push(*token));
    result.count.resize(result.slot.len(), 1);
    result.count.push(1 + forced.len() as u32);
    result.slot.push(number);
    report(sampled, result);
    result.token.extend_from_slice(forced);
}

/// A row whose token came already gives nothing.
#[cold]
fn append_silent(number: u32, result: &mut StepResult) {
    result.count.resize(result.slot.len(), 1);
    result.count.push(0);
    result.slot.push(number);
}

/// Says in the result that a sequence cannot go on.
fn report_failure(number: u32, slot: &mut Slot, result: &mut StepResult) {
    let reason = slot.guide.as_mut().and_then(|guide| guide.take_failure());
    result.failed.extend(reason.map(|reason| FailedRow { slot: number, reason }));
}

/// Adds a token to the result.
fn report(sampled: Sampled, result: &mut StepResult) {
    if let Some(logprobs) = sampled.logprobs {
        result.logprobs.push(message(result.token.len() as u32, sampled.token, logprobs));
    }
    result.token.push(sampled.token);
}

pub(super) fn message(index: u32, token: u32, logprobs: Logprobs) -> TokenLogprobs {
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
