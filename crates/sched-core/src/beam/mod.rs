//! Beam search: the choices of a request are the best texts of one search, not samples.
//!
//! `search.rs` knows which beams go on, and is pure. This module holds what the scheduler keeps for a search, and what
//! results mean for it; `plan/beams.rs` says how beams share blocks and what is computed next.
//!
//! Each beam is a sequence of its own, with slot and tables. It is *in order*: its row gives candidates, not a token,
//! and it has no further row before the candidates of all beams are there and the search has said how each goes on.
//! Until then it waits. So a search starts as a whole, holds the slots of all its beams from the start, and gives way
//! as a whole; else two that have started in part could wait for each other's blocks.

pub(crate) mod search;

use crate::{
    config::Config,
    error::Refusal,
    flight::FlightRow,
    requests::{request::Request, sequence::Status},
    scheduler::Scheduler,
    stats::End,
};
use ids::SlotId;
use proto::FinishReason;
use search::{Candidates, Ending, Move, Outcome, Rules, Search};

/// Ends of texts that the number of candidates allows for, at most: each makes rows give `width` more.
const MOST_ENDS: u32 = 31;

/// What the scheduler keeps for a search.
#[derive(Debug)]
pub(crate) struct Beams {
    pub search: Search,
    /// What came of the search's step so far, by record.
    arrived: Vec<Option<Candidates>>,
    /// How the beams go on; applied by the next plan.
    pub next: Option<Vec<Move>>,
    /// Slots of beams that are not there (yet).
    pub spare_slots: Vec<SlotId>,
}

/// What a request asks of a search, if it can have it.
pub(crate) fn check(request: &proto::Request, config: &Config) -> Result<(), Refusal> {
    let Some(asked) = &request.beam_search else { return Ok(()) };
    if config.recurrent {
        return Err(Refusal::RecurrentBeams);
    }
    let scores_prompt = request.sampling.as_ref().is_some_and(|sampling| sampling.prompt_logprobs.is_some());
    if scores_prompt || request.pooling.is_some() {
        let param = if scores_prompt { "prompt_logprobs" } else { "pooling" };
        return Err(Refusal::NotForBeams(param));
    }
    let max = config.max_choices.min(config.max_num_seqs);
    match asked.width {
        0 => Err(Refusal::Incomplete("beams")),
        width if width > max => Err(Refusal::Choices { n: width, max }),
        width if request.n > width => Err(Refusal::Choices { n: request.n, max: width }),
        _ => Ok(()),
    }
}

impl Beams {
    /// The search of a checked request, if it asks for one. `max_tokens` is what a text may have.
    pub fn of(request: &proto::Request, config: &Config, max_tokens: u32) -> Option<Box<Self>> {
        let asked = request.beam_search.as_ref()?;
        let sampling = request.sampling.clone().unwrap_or_default();
        let own_ends = if sampling.ignore_eos { 0 } else { config.eos_token_ids.len() };
        let ends = ((own_ends + sampling.stop_token_ids.len()) as u32).clamp(1, MOST_ENDS);
        let rules = Rules {
            width: asked.width,
            length_penalty: asked.length_penalty.into(),
            early_stopping: asked.early_stopping(),
            max_tokens,
            considered: asked.width * (1 + ends),
            logprobs: sampling.logprobs.map(|top| u32::try_from(top).unwrap_or(u32::MAX)),
        };
        let arrived = vec![None; asked.width as usize];
        Some(Box::new(Self { search: Search::new(rules), arrived, next: None, spare_slots: Vec::new() }))
    }

    /// Candidates that a row is to give at most.
    pub fn candidates(&self) -> u32 {
        let rules = self.search.rules();
        rules.considered.max(rules.logprobs.unwrap_or(0))
    }

    /// Forgets what is half done: its rows will run anew.
    pub fn forget_arrived(&mut self) {
        self.arrived.iter_mut().for_each(|one| *one = None);
    }

    /// Takes a beam's candidates; the search's step if they were the last ones that it waited for.
    fn arrive(&mut self, record: u32, candidates: &proto::Candidates, request: &Ends<'_>) -> Option<Outcome> {
        let (tokens, logprobs) = (candidates.token.clone(), candidates.logprob.clone());
        self.arrived[record as usize] = Some(Candidates { tokens, logprobs });
        if self.search.records().any(|record| self.arrived[record as usize].is_none()) {
            return None;
        }
        let arrived = std::mem::take(&mut self.arrived);
        let of = |record: u32| arrived[record as usize].as_ref().expect("all of them are there");
        let outcome = self.search.advance(of, |token, length| request.ending(token, length));
        self.arrived = arrived;
        self.forget_arrived();
        Some(outcome)
    }
}

/// What ends a text of a request.
struct Ends<'r> {
    sampling: &'r proto::Sampling,
    config: &'r Config,
}

impl Ends<'_> {
    fn ending(&self, token: u32, length: u32) -> Option<Ending> {
        crate::complete::stop(self.sampling, self.config, token, length).map(Ending::Stop)
    }
}

impl Scheduler {
    /// A beam's row gave candidates.
    pub(crate) fn append_candidates(&mut self, row: &FlightRow, candidates: &proto::Candidates, now_us: u64) {
        let sequence = &mut self.sequences[row.index];
        sequence.confirm(row, 1);
        sequence.times.first_token_us.get_or_insert(now_us);
        sequence.times.last_token_us = now_us;
        let (request_index, record) = (sequence.request, sequence.choice);
        if sequence.has_full_block(self.config.block_size) {
            self.hash_blocks(row.index);
        }
        let Request { beams, sampling, .. } = &mut self.requests[request_index];
        let Some(beams) = beams else { return };
        match beams.arrive(record, candidates, &Ends { sampling, config: &self.config }) {
            None => {}
            Some(Outcome::GoesOn(moves)) => beams.next = Some(moves),
            Some(Outcome::Over) => self.report_best(request_index, now_us),
        }
    }

    /// Reports the best texts of a search as the request's choices, and ends it. A choice that no text is left for ends
    /// without a token.
    fn report_best(&mut self, request_index: u32, now_us: u64) {
        let request = &mut self.requests[request_index];
        let Some(beams) = request.beams.take() else { return };
        let choices = request.choices.clone();
        self.free_slots.extend(&beams.spare_slots);
        let mut best = beams.search.best(request.n as usize);
        let mut ends = Vec::with_capacity(choices.len());
        for index in choices.iter().take(request.n as usize).flatten() {
            let sequence = &mut self.sequences[*index];
            sequence.output.clear();
            let (text, ending) = best.next().unwrap_or((Vec::new(), Ending::Length));
            for chosen in &text {
                if let Some(logprobs) = chosen.logprobs {
                    let index = self.out.token.len() as u32;
                    self.out.logprobs.push(proto::TokenLogprobs { index, ..logprobs.clone() });
                }
                sequence.output.push(chosen.token);
                self.out.sequence.push(sequence.id.0);
                self.out.token.push(chosen.token);
            }
            self.totals.generation_tokens += text.len() as u64;
            let (reason, end, stop_token) = match ending {
                Ending::Stop(shown) => (FinishReason::Stop, End::Stop, shown),
                Ending::Length => (FinishReason::Length, End::Length, None),
            };
            self.out.finished.push(proto::Finished { sequence: sequence.id.0, reason: reason.into(), stop_token });
            ends.push(end);
        }
        // The request's first choice goes last, so that the end of the request is one of a choice that was asked for.
        for (choice, index) in choices.into_iter().enumerate().rev() {
            let Some(index) = index else { continue };
            self.end_choice(index, ends.get(choice).copied().unwrap_or(End::Stop), now_us);
        }
    }

    /// Slots that searches hold for beams that are not there.
    pub(crate) fn spare_slots(&self) -> impl Iterator<Item = u32> + '_ {
        let searches = self.requests.iter().filter_map(|(_, request)| request.beams.as_ref());
        searches.flat_map(|beams| &beams.spare_slots).map(|slot| slot.0)
    }

    /// Whether the sequence is a beam.
    pub(crate) fn is_beam(&self, index: u32) -> bool {
        self.requests[self.sequences[index].request].beams.is_some()
    }

    /// A beam's record is not in use any more (until the search takes it again).
    pub(crate) fn defer(&mut self, index: u32) {
        self.sequences[index].status = Status::Deferred;
        self.deferred += 1;
    }
}
