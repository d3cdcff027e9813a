//! What a finished step means: tokens, ends, and blocks that can now be found again.

use crate::{
    config::Config,
    error::ProtocolError,
    flight::{Flight, FlightRow},
    requests::request::Request,
    requests::sequence::{Sequence, Status},
    scheduler::Scheduler,
    stats::End,
};
use proto::{FinishReason, StepResult, TokenLogprobs};

/// Says of a sampled row that nobody wants its token any more.
const DROPPED: u32 = u32::MAX;

impl Scheduler {
    /// Applies what rank 0 answered to the oldest plan in flight. Log-probabilities move from it into the output.
    ///
    /// An error leaves the state as it was and means that the group must not be trusted further: report it lost.
    pub fn complete(&mut self, result: StepResult, now_us: u64) -> Result<(), ProtocolError> {
        self.check_result(&result)?;
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        self.prefill_rate.learn(flight.prompt_tokens, result.compute_us);
        let first_token = self.out.token.len() as u32;
        // Where each sampled token went in the output; only log-probabilities ask for it.
        let mut places = Vec::with_capacity(if result.logprobs.is_empty() { 0 } else { result.token.len() });
        let prompt_logprobs = self.prompt_logprobs(&flight, result.prompt_logprobs);
        let mut tokens = result.token.into_iter();
        let mut next_place = first_token;
        for row in &flight.rows {
            let token = if row.sample { tokens.next() } else { None };
            let fresh = self.is_fresh(row);
            if row.sample && !result.logprobs.is_empty() {
                places.push(if fresh { next_place } else { DROPPED });
            }
            if fresh {
                next_place += u32::from(row.sample);
                self.apply_row(row, token, now_us);
            }
        }
        self.out.logprobs.extend(prompt_logprobs);
        for mut logprobs in result.logprobs {
            logprobs.index = places[logprobs.index as usize];
            if logprobs.index != DROPPED {
                logprobs.prompt_of_sequence = None;
                self.out.logprobs.push(logprobs);
            }
        }
        self.spare_flights.push(flight);
        Ok(())
    }

    fn check_result(&self, result: &StepResult) -> Result<(), ProtocolError> {
        let expected = self.epoch.map_or(0, |epoch| epoch.0);
        if self.epoch.is_none() || result.epoch != expected {
            return Err(ProtocolError::Epoch { got: result.epoch, expected });
        }
        let step = result.step;
        let Some(flight) = self.flights.front().filter(|flight| flight.step.0 == step) else {
            let expected = self.flights.front().map(|flight| flight.step.0);
            return Err(ProtocolError::Step { got: step, expected });
        };
        let (slots, tokens) = (result.slot.len(), result.token.len());
        if slots != flight.sampled || tokens != flight.sampled {
            return Err(ProtocolError::Rows { step, slots, tokens, expected: flight.sampled });
        }
        let vocab_size = self.config.vocab_size;
        for (row, planned) in flight.rows.iter().filter(|row| row.sample).enumerate() {
            let (got, token) = (result.slot[row], result.token[row]);
            if got != planned.slot {
                return Err(ProtocolError::Slot { step, row, got, expected: planned.slot });
            }
            if token >= vocab_size {
                return Err(ProtocolError::Token { step, row, token, vocab_size });
            }
        }
        let of_a_row = |logprobs: &TokenLogprobs| (logprobs.index as usize) < tokens;
        let mut finder = flight.finder();
        let mut of_a_slot = |logprobs: &TokenLogprobs| finder.find(logprobs).is_some();
        match result.logprobs.iter().all(of_a_row) && result.prompt_logprobs.iter().all(&mut of_a_slot) {
            true => Ok(()),
            false => Err(ProtocolError::Logprobs { step }),
        }
    }

    /// Whether the row's sequence still is in the run that the row was planned for.
    fn is_fresh(&self, row: &FlightRow) -> bool {
        self.sequences
            .get(row.index)
            .is_some_and(|sequence| sequence.status == Status::Running && sequence.incarnation == row.incarnation)
    }

    fn apply_row(&mut self, row: &FlightRow, token: Option<u32>, now_us: u64) {
        let sequence = &mut self.sequences[row.index];
        let mut end = None;
        if let Some(token) = token {
            sequence.in_flight -= 1;
            sequence.output.push(token);
            sequence.times.first_token_us.get_or_insert(now_us);
            sequence.times.last_token_us = now_us;
            self.out.sequence.push(sequence.id.0);
            self.out.token.push(token);
            self.totals.generation_tokens += 1;
            end = ending(sequence, &self.requests[sequence.request], &self.config, token);
        }
        self.hash_blocks(row.index, row.end);
        if let Some((reason, end, stop_token)) = end {
            self.report_finished(row.index, reason, stop_token);
            self.end_choice(row.index, end, now_us);
        }
    }

    /// Makes the blocks that `computed` positions fill findable. Their tokens are known: each row computes positions of
    /// tokens that an earlier step sampled.
    fn hash_blocks(&mut self, index: u32, computed: u32) {
        let block_size = self.config.block_size;
        let sequence = &mut self.sequences[index];
        if !self.config.enable_prefix_caching || !sequence.cacheable {
            return;
        }
        let request = &self.requests[sequence.request];
        while (sequence.hashed + 1) * block_size <= computed {
            let at = sequence.hashed;
            let name = block_hash(sequence, request, at as usize, block_size);
            for (group, table) in sequence.tables.iter().enumerate() {
                if let Some(block) = table.get(at) {
                    self.pool.set_hash(block, name.in_group(group));
                }
            }
            sequence.hashed += 1;
        }
    }

    /// Log-probabilities of prompt positions under their sequence's handle. A preempted prompt is computed twice, and
    /// what went out already is left out.
    fn prompt_logprobs(&mut self, flight: &Flight, all: Vec<TokenLogprobs>) -> Vec<TokenLogprobs> {
        let mut kept = Vec::with_capacity(all.len());
        let mut finder = flight.finder();
        for mut logprobs in all {
            let Some(row) = finder.find(&logprobs) else { continue };
            if !self.is_fresh(&row) {
                continue;
            }
            let sequence = &mut self.sequences[row.index];
            if logprobs.index > sequence.prompt_logprobs_sent && logprobs.index < sequence.prompt_len {
                sequence.prompt_logprobs_sent = logprobs.index;
                logprobs.prompt_of_sequence = Some(sequence.id.0);
                kept.push(logprobs);
            }
        }
        kept
    }
}

/// The name of the full block `at`; computed once per sequence, also over preemptions.
fn block_hash(
    sequence: &mut Sequence,
    request: &Request,
    at: usize,
    block_size: u32,
) -> crate::blocks::hash::BlockHash {
    let of_prompt = request.prompt_hashes.len();
    if at < of_prompt {
        return request.prompt_hashes[at];
    }
    let own = at - of_prompt;
    if own == sequence.output_hashes.len() {
        let parent = sequence.output_hashes.last().or(request.prompt_hashes.last()).unwrap_or(&request.root);
        let from = at * block_size as usize;
        let tokens = (from..from + block_size as usize).map(|position| match request.prompt.get(position) {
            Some(token) => *token,
            None => sequence.output[position - request.prompt.len()],
        });
        let name = parent.child(tokens);
        sequence.output_hashes.push(name);
    }
    sequence.output_hashes[own]
}

/// Whether the token that was just appended is the last one, and why.
fn ending(
    sequence: &Sequence,
    request: &Request,
    config: &Config,
    token: u32,
) -> Option<(FinishReason, End, Option<u32>)> {
    let sampling = &request.sampling;
    // The sampler forbids these tokens before `min_tokens`; should one come nevertheless, it does not count.
    if sequence.output.len() >= sampling.min_tokens as usize {
        if !sampling.ignore_eos && config.eos_token_ids.contains(&token) {
            let hashed = Some(token).filter(|_| sampling.eos_token_id != Some(token));
            return Some((FinishReason::Stop, End::Stop, hashed));
        }
        if sampling.stop_token_ids.contains(&token) {
            return Some((FinishReason::Stop, End::Stop, Some(token)));
        }
    }
    (sequence.known_len() >= sequence.limit).then_some((FinishReason::Length, End::Length, None))
}
