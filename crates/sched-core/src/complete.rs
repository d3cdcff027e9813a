//! What a finished step means: tokens, ends, confirmed positions, and blocks that can now be found again.

use std::ops::Range;

use crate::{
    blocks::changes::{BlockName, StoredBlock},
    config::Config,
    error::ProtocolError,
    flight::{Flight, FlightRow, Outcomes, RowOutcome, Want},
    requests::repetition,
    requests::request::Request,
    requests::sequence::{Sequence, Status},
    scheduler::Scheduler,
    stats::End,
};
use block_hash::{BlockHash, overlapping};
use proto::{Failure, FinishReason, Pooled, StepResult, TokenLogprobs, failure};

/// Says of a token in a result that no sequence takes it any more.
const DROPPED: u32 = u32::MAX;

impl Scheduler {
    /// Applies what rank 0 answered to the oldest plan in flight. Log-probabilities move from it into the output.
    ///
    /// An error leaves the state as it was and means that the group must not be trusted further: report it lost.
    pub fn complete(&mut self, result: StepResult, now_us: u64) -> Result<(), ProtocolError> {
        self.check_result(&result)?;
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        self.prefill_rate.learn(flight.prompt_tokens, result.compute_us);
        let mut result = result;
        let prompt_logprobs = self.prompt_logprobs(&flight, std::mem::take(&mut result.prompt_logprobs));
        // Where each token of the result went in the output; only log-probabilities ask for it.
        let mut positions = Vec::with_capacity(if result.logprobs.is_empty() { 0 } else { result.token.len() });
        let mut outcomes = Outcomes::new(&result);
        for row in &flight.rows {
            let outcome = outcomes.next(row.want);
            let (first, given) = (self.out.token.len() as u32, outcome.tokens());
            if self.is_fresh(row) {
                match result.failed.iter().find(|failed| failed.slot == row.slot) {
                    Some(failed) => self.fail_row(row, &failed.reason, now_us),
                    None => self.apply_row(row, outcome, now_us),
                }
            }
            if !result.logprobs.is_empty() {
                let taken = self.out.token.len() as u32;
                positions.extend((first..first + given).map(|at| if at < taken { at } else { DROPPED }));
            }
        }
        self.out.logprobs.extend(prompt_logprobs);
        for mut logprobs in result.logprobs {
            logprobs.index = positions[logprobs.index as usize];
            if logprobs.index != DROPPED {
                logprobs.prompt_of_sequence = None;
                self.out.logprobs.push(logprobs);
            }
        }
        self.spare_flights.push(flight);
        Ok(())
    }

    /// Whether the row's sequence still is in the run that the row was planned for.
    pub(crate) fn is_fresh(&self, row: &FlightRow) -> bool {
        self.sequences
            .get(row.index)
            .is_some_and(|sequence| sequence.status == Status::Running && sequence.incarnation == row.incarnation)
    }

    /// Ends the request of a sequence that cannot go on.
    #[cold]
    fn fail_row(&mut self, row: &FlightRow, reason: &str, now_us: u64) {
        let request = self.sequences[row.index].request;
        let param = self.requests[request].sampling.constraint.as_ref().map(|constraint| constraint.param.clone());
        let (kind, message) = (failure::Kind::Invalid.into(), reason.to_owned());
        self.fail(request, &Failure { kind, message, param: param.unwrap_or_default() }, now_us);
    }

    #[inline]
    fn apply_row(&mut self, row: &FlightRow, outcome: RowOutcome<'_>, now_us: u64) {
        match outcome {
            RowOutcome::Computed => self.confirm_computed(row),
            RowOutcome::Token(token) => {
                self.append(row, &[token], now_us);
            }
            RowOutcome::Jumped(tokens) => self.append_jumped(row, tokens, now_us),
            RowOutcome::Verified(tokens) => {
                self.append(row, tokens, now_us);
                self.totals.drafted_tokens += u64::from(row.want.drafted());
                self.totals.accepted_tokens += tokens.len() as u64 - 1;
            }
            RowOutcome::Pooled(values) => self.append_pooled(row, values, now_us),
            RowOutcome::Candidates(candidates) => self.append_candidates(row, candidates, now_us),
        }
    }

    /// Continues a sequence. Tokens behind the one that ends it are dropped.
    #[inline(always)] // One token is by far the most frequent, and worth a copy of its own.
    pub(crate) fn append(&mut self, row: &FlightRow, tokens: &[u32], now_us: u64) {
        let sequence = &mut self.sequences[row.index];
        sequence.times.first_token_us.get_or_insert(now_us);
        sequence.times.last_token_us = now_us;
        let request = &self.requests[sequence.request];
        let (mut taken, mut end) = (0, None);
        for token in tokens {
            sequence.output.push(*token);
            self.out.sequence.push(sequence.id.0);
            self.out.token.push(*token);
            taken += 1;
            end = ending(sequence, request, &self.config, *token);
            if end.is_some() {
                break;
            }
        }
        sequence.confirm(row, taken);
        self.totals.generation_tokens += u64::from(taken);
        if sequence.has_full_block(self.config.block_size) {
            self.hash_blocks(row.index);
        }
        if let Some((reason, end, stop_token)) = end {
            self.report_finished(row.index, reason, stop_token);
            self.end_choice(row.index, end, now_us);
        }
    }

    /// A row gave nothing more than keys and values.
    #[inline]
    pub(crate) fn confirm_computed(&mut self, row: &FlightRow) {
        let sequence = &mut self.sequences[row.index];
        sequence.computed = row.end;
        if sequence.has_full_block(self.config.block_size) {
            self.hash_blocks(row.index);
        }
    }

    fn append_pooled(&mut self, row: &FlightRow, values: &[f32], now_us: u64) {
        let sequence = &mut self.sequences[row.index];
        sequence.confirm(row, 1);
        sequence.times.first_token_us.get_or_insert(now_us);
        sequence.times.last_token_us = now_us;
        self.out.pooled.push(Pooled { sequence: sequence.id.0, values: values.to_vec(), more: false });
        self.hash_blocks(row.index);
        self.report_finished(row.index, FinishReason::Stop, None);
        self.end_choice(row.index, End::Stop, now_us);
    }

    /// Makes the blocks that confirmed positions fill findable. Their tokens are known: a position is confirmed when
    /// the token in it is a prompt's, was sampled by an earlier step, or was drafted and accepted.
    #[inline(never)] // One decode in `block_size` comes here.
    pub(crate) fn hash_blocks(&mut self, index: u32) {
        let block_size = self.config.block_size;
        let sequence = &mut self.sequences[index];
        if !self.config.enable_prefix_caching || !sequence.cacheable {
            return;
        }
        let request = &self.requests[sequence.request];
        while sequence.has_full_block(block_size) {
            let at = sequence.hashed;
            let hash = block_hash(sequence, request, at as usize, block_size);
            for (group, table) in sequence.tables.iter().enumerate() {
                if let Some(block) = table.get(at) {
                    let name = BlockName { hash, group };
                    self.pool.set_name(block, name, || stored_block(name, sequence, request, at as usize, block_size));
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

/// Whether a result answers its plan.
impl Scheduler {
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
        check_outcomes(flight, result, self.config.most_vocab_size())?;
        self.check_jumps(flight, result)?;
        let of_a_token = |logprobs: &TokenLogprobs| (logprobs.index as usize) < result.token.len();
        let mut finder = flight.finder();
        let mut of_a_slot = |logprobs: &TokenLogprobs| finder.find(logprobs).is_some();
        match result.logprobs.iter().all(of_a_token) && result.prompt_logprobs.iter().all(&mut of_a_slot) {
            true => Ok(()),
            false => Err(ProtocolError::Logprobs { step }),
        }
    }
}

/// Every row that wants something gives it, and nothing is left over.
fn check_outcomes(flight: &Flight, result: &StepResult, vocab_size: u32) -> Result<(), ProtocolError> {
    let (step, slots, tokens) = (result.step, result.slot.len(), result.token.len());
    let uneven = ProtocolError::Rows { step, slots, tokens, expected: flight.wanting };
    let counted = result.count.is_empty() || result.count.len() == slots;
    let beside = (result.pooled.len(), result.candidates.len()) == (flight.pooling, flight.searching);
    if slots != flight.wanting || !counted || !beside {
        return Err(uneven);
    }
    if flight.only_samples() && result.count.is_empty() {
        return if tokens == slots { check_samples(flight, result, vocab_size) } else { Err(uneven) };
    }
    let (mut at, mut drafts, mut pooled) = (0_usize, flight.drafts.as_slice(), result.pooled.iter());
    let mut candidates = result.candidates.iter();
    for (row, planned) in flight.rows.iter().filter(|row| row.want != Want::None).enumerate() {
        let got = result.slot[row];
        if got != planned.slot {
            return Err(ProtocolError::Slot { step, row, got, expected: planned.slot });
        }
        let count = result.count.get(row).copied().unwrap_or(1);
        if !planned.want.gives(count) {
            return Err(ProtocolError::Count { step, row, got: count, most: planned.want.most() });
        }
        let Some(given) = result.token.get(at..at + count as usize) else { return Err(uneven) };
        if let Some(token) = given.iter().find(|token| **token >= vocab_size) {
            return Err(ProtocolError::Token { step, row, token: *token, vocab_size });
        }
        let (draft, rest) = drafts.split_at(planned.want.drafted() as usize);
        if draft.iter().zip(given.split_last().map_or(&[][..], |(_, accepted)| accepted)).any(|(a, b)| a != b) {
            return Err(ProtocolError::Accepted { step, row });
        }
        if planned.want == Want::Pool && pooled.next().is_none_or(|pooled| pooled.sequence != u64::from(got)) {
            return Err(ProtocolError::Pooled { step, row });
        }
        let fits = |one: &proto::Candidates| {
            one.slot == got && one.token.len() == one.logprob.len() && one.token.iter().all(|token| *token < vocab_size)
        };
        if planned.want == Want::Candidates && !candidates.next().is_some_and(fits) {
            return Err(ProtocolError::Candidates { step, row });
        }
        (at, drafts) = (at + count as usize, rest);
    }
    if at == tokens { Ok(()) } else { Err(uneven) }
}

/// The same where every row that wants something gives one token, as nearly all do.
fn check_samples(flight: &Flight, result: &StepResult, vocab_size: u32) -> Result<(), ProtocolError> {
    let step = result.step;
    let rows = flight.rows.iter().filter(|row| !matches!(row.want, Want::None));
    for (row, (planned, (got, token))) in rows.zip(result.slot.iter().zip(&result.token)).enumerate() {
        if *got != planned.slot {
            return Err(ProtocolError::Slot { step, row, got: *got, expected: planned.slot });
        }
        if *token >= vocab_size {
            return Err(ProtocolError::Token { step, row, token: *token, vocab_size });
        }
    }
    Ok(())
}

/// The hash of the full block `at`; computed once per sequence, also over preemptions.
fn block_hash(sequence: &mut Sequence, request: &Request, at: usize, block_size: u32) -> BlockHash {
    let of_prompt = request.prompt_hashes.len();
    if at < of_prompt {
        return request.prompt_hashes[at];
    }
    let own = at - of_prompt;
    if own == sequence.output_hashes.len() {
        let parent = sequence.output_hashes.last().or(request.prompt_hashes.last()).unwrap_or(&request.root);
        let from = at * block_size as usize;
        let tokens = tokens(sequence, request, from..from + block_size as usize);
        let media = overlapping(&request.media, from as u32..from as u32 + block_size);
        let hash = parent.child(tokens, media);
        sequence.output_hashes.push(hash);
    }
    sequence.output_hashes[own]
}

/// Known tokens of a sequence.
fn tokens(sequence: &Sequence, request: &Request, positions: Range<usize>) -> impl ExactSizeIterator<Item = u32> {
    positions.map(move |position| match request.prompt.get(position) {
        Some(token) => *token,
        None => sequence.output[position - request.prompt.len()],
    })
}

/// What the full block `at`, which has its hash, holds.
fn stored_block(name: BlockName, sequence: &Sequence, request: &Request, at: usize, block_size: u32) -> StoredBlock {
    let before = |at: usize| match at.checked_sub(request.prompt_hashes.len()) {
        None => request.prompt_hashes[at],
        Some(own) => sequence.output_hashes[own],
    };
    let from = at * block_size as usize;
    StoredBlock {
        name,
        parent: at.checked_sub(1).map(before),
        tokens: tokens(sequence, request, from..from + block_size as usize).collect(),
        adapter: request.adapter.clone(),
        cache_salt: request.cache_salt.clone(),
    }
}

/// Whether the token that was just appended is the last one, and why.
fn ending(
    sequence: &Sequence,
    request: &Request,
    config: &Config,
    token: u32,
) -> Option<(FinishReason, End, Option<u32>)> {
    if let Some(shown) = stop(&request.sampling, config, token, sequence.output.len() as u32) {
        return Some((FinishReason::Stop, End::Stop, shown));
    }
    if let Some(rule) = &request.sampling.repetition_detection
        && sequence.output.len() as u32 >= request.sampling.min_tokens
        && repetition::is_found(rule, &sequence.output)
    {
        return Some((FinishReason::Repetition, End::Repetition, None));
    }
    (sequence.known_len() >= sequence.limit).then_some((FinishReason::Length, End::Length, None))
}

/// Whether a token ends a text that is `length` tokens long with it; what is shown as its stop token.
#[inline]
pub(crate) fn stop(sampling: &proto::Sampling, config: &Config, token: u32, length: u32) -> Option<Option<u32>> {
    // The sampler forbids these tokens before `min_tokens`; should one come nevertheless, it does not count.
    if length < sampling.min_tokens {
        return None;
    }
    if !sampling.ignore_eos && config.eos_token_ids.contains(&token) {
        return Some(Some(token).filter(|_| sampling.eos_token_id != Some(token)));
    }
    sampling.stop_token_ids.contains(&token).then_some(Some(token))
}
