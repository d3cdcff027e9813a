//! Jump-forward: where a grammar leaves one way, its tokens need not be sampled one by one (the idea is SGLang's).
//!
//! A worker gives the forced tokens beside a sampled one. All of them are appended, and the next row computes them as a
//! chunk, as a prompt's:
//!
//! ```text
//! step       n             n + 1                n + 2
//! row        samples t     computes t           computes f1 f2 f3, samples u
//! gives      t f1 f2 f3    nothing (silent)     u
//! ```
//!
//! Step n + 1 was planned when the forced tokens were not known yet. Its row computes what it would have, and what it
//! samples is f1, which came already: it is silent. So steps run ahead as ever, and up to two plans may be in flight;
//! with more, silent rows could reach behind the forced tokens.

use proto::{Sampling, StepResult};

use crate::{
    error::ProtocolError,
    flight::{Flight, FlightRow, Want},
    scheduler::Scheduler,
};

impl Scheduler {
    /// Whether forced tokens of a request need no sampling: nothing is wanted of each token, and nothing but the
    /// grammar changes which may come.
    pub(crate) fn may_jump(&self, sampling: &Sampling) -> bool {
        let config = &self.config;
        let runs_ahead_by_one = config.pipeline_depth <= 2 && config.stages == 1 && config.speculative_tokens == 0;
        let has_budget = sampling.reasoning.as_ref().is_some_and(|reasoning| reasoning.budget.is_some());
        let is_off = |penalty: f32, neutral: f32| penalty == 0.0 || penalty == neutral;
        let penalties = [sampling.presence_penalty, sampling.frequency_penalty];
        config.jump_forward
            && runs_ahead_by_one
            && sampling.constraint.is_some()
            && !has_budget
            && sampling.logprobs.is_none()
            && sampling.min_tokens == 0
            && sampling.logit_bias.is_empty()
            && sampling.allowed_token_ids.is_empty()
            && sampling.bad_token_ids.is_empty()
            && is_off(sampling.repetition_penalty, 1.0)
            && penalties.into_iter().all(|penalty| is_off(penalty, 0.0))
    }

    /// A row gave a token and forced ones, or nothing because an earlier row gave what it samples.
    #[cold]
    pub(crate) fn append_jumped(&mut self, row: &FlightRow, tokens: &[u32], now_us: u64) {
        let sequence = &mut self.sequences[row.index];
        if tokens.is_empty() {
            sequence.silent -= 1;
            return self.confirm_computed(row);
        }
        let (id, known) = (sequence.id, sequence.output.len());
        self.append(row, tokens, now_us);
        // It may have ended.
        let Some(sequence) = self.sequences.get_mut(row.index).filter(|sequence| sequence.id == id) else { return };
        sequence.silent += std::mem::take(&mut sequence.in_flight);
        if sequence.silent > 0 {
            self.flights.iter_mut().for_each(|flight| flight.has_silent = true);
        }
        self.totals.forced_tokens += (sequence.output.len() - known) as u64 - 1;
    }

    /// The silent rows of a flight give nothing, and all other rows that want a token give at least one: one alone
    /// where the worker was not told to jump.
    pub(crate) fn check_jumps(&self, flight: &Flight, result: &StepResult) -> Result<(), ProtocolError> {
        if result.count.is_empty() && !flight.has_silent {
            return Ok(());
        }
        for (row, planned) in flight.rows.iter().filter(|row| row.want != Want::None).enumerate() {
            if planned.want != Want::Sample || !self.is_fresh(planned) {
                continue;
            }
            let count = result.count.get(row).copied().unwrap_or(1);
            let sequence = &self.sequences[planned.index];
            let jumps = count > 1 && !self.may_jump(&self.requests[sequence.request].sampling);
            if jumps || (count == 0) != (sequence.silent > 0) {
                return Err(ProtocolError::Count { step: result.step, row, got: count, most: planned.want.most() });
            }
        }
        Ok(())
    }
}
