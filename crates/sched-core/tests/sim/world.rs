//! The world: draws events, and plays gateway, detokenizer and worker group. What the scheduler says is checked in
//! `listen.rs`.

use super::{
    draw,
    oracle::{self, Context, Ending},
    source::Source,
    worker::{CONTEXT_MARK, Worker},
};
use ids::{Epoch, SequenceId};
use proto::{
    AdapterLoad, BeamSearch, Pooling, RequestKey, Sampling, StepResult, TokenBatch, pooling::Tokens, prompt::Kind,
};
use sched_core::{Config, DraftRefusal, Policy, ProtocolError, Refusal, Scheduler};
use std::collections::{BTreeMap, VecDeque};

/// A request that the scheduler took and that has not ended.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) id: String,
    pub(super) context: Context,
    pub(super) prompt: Vec<u32>,
    pub(super) sampling: Sampling,
    pub(super) limit: usize,
    pub(super) n: u32,
    pub(super) first_sequence: Option<u64>,
    pub(super) aborted: bool,
    pub(super) prompt_logprobs: u32,
    pub(super) pooling: Option<Tokens>,
    pub(super) beams: Option<BeamSearch>,
    pub(super) choices: Vec<Choice>,
}

#[derive(Debug, Default)]
pub(super) struct Choice {
    pub(super) tokens: Vec<u32>,
    /// It has its pooled output.
    pub(super) pooled: bool,
    pub(super) expected: Option<(Vec<u32>, Ending)>,
    /// The detokenizer finds a stop string after this many tokens.
    pub(super) stop_after: Option<usize>,
    /// The scheduler was told so: no word may follow.
    pub(super) over: bool,
}

impl Tracked {
    /// The texts of the request's search. Where there are fewer than it asked for, the others are empty.
    pub(super) fn expect_texts(&mut self) {
        let Some(search) = self.beams.filter(|_| self.choices[0].expected.is_none()) else { return };
        let texts = oracle::beams(&self.context, &self.prompt, &search, &self.sampling, self.limit);
        let texts = texts.into_iter().chain(std::iter::repeat_with(|| (Vec::new(), Ending::Length)));
        self.choices.iter_mut().zip(texts).for_each(|(choice, text)| choice.expected = Some(text));
    }
}

/// See the module.
pub struct World<'a> {
    pub(super) source: Source<'a>,
    pub(super) config: Config,
    pub(super) scheduler: Scheduler,
    pub(super) epoch: u64,
    pub(super) num_blocks: u32,
    pub(super) worker: Option<Worker>,
    pub(super) results: VecDeque<StepResult>,
    /// Adapters that the worker brings to its slots.
    pub(super) coming: Vec<AdapterLoad>,
    pub(super) live: BTreeMap<u64, Tracked>,
    /// Sequence handle -> request number and choice.
    pub(super) handles: BTreeMap<u64, (u64, usize)>,
    /// Seeds seen by the worker, by request id, in order of first appearance: that is by choice.
    pub(super) seeds: BTreeMap<String, Vec<u64>>,
    /// By adapter.
    pub(super) newest_started: BTreeMap<String, u64>,
    pub(super) next_number: u64,
    pub(super) batch: TokenBatch,
    pub(super) now_us: u64,
    /// Outcomes: requests admitted, and ended.
    pub admitted: u64,
    pub ended: u64,
    /// Blocks copied before a write: forks.
    pub copies: u64,
    /// Pooled outputs heard.
    pub pooled: u64,
    /// Beams that took over another's tokens and tables.
    pub moves: u64,
    /// Texts of beam searches heard.
    pub searched: u64,
    /// Drafts proposed.
    pub proposed: u64,
}

impl<'a> World<'a> {
    /// A world whose configuration is the first thing drawn.
    pub fn new(mut source: Source<'a>) -> Self {
        let config = draw::config(&mut source);
        Self::with(source, config)
    }

    /// A world of this configuration.
    pub fn with(mut source: Source<'a>, config: Config) -> Self {
        // Most worlds hold one or two full contexts, so that running sequences fight for blocks; some hold not even
        // one.
        let context = config.blocks_for(config.max_model_len) as u32;
        let num_blocks = if source.chance(80) { source.between(context, 2 * context) } else { source.between(2, 30) };
        let scheduler = Scheduler::new(config.clone()).expect("a possible configuration");
        let mut world = Self {
            source,
            config,
            scheduler,
            epoch: 0,
            num_blocks,
            worker: None,
            results: VecDeque::new(),
            coming: Vec::new(),
            live: BTreeMap::new(),
            handles: BTreeMap::new(),
            seeds: BTreeMap::new(),
            newest_started: BTreeMap::new(),
            next_number: 1,
            batch: TokenBatch::default(),
            now_us: 0,
            admitted: 0,
            ended: 0,
            copies: 0,
            pooled: 0,
            searched: 0,
            moves: 0,
            proposed: 0,
        };
        world.form();
        world
    }

    /// What the scheduler counted.
    pub fn stats(&self) -> sched_core::Stats {
        self.scheduler.stats()
    }

    /// Plays at most `events` events.
    pub fn run(&mut self, events: usize) -> usize {
        for event in 0..events {
            if self.source.ended() {
                return event;
            }
            self.now_us += u64::from(self.source.below(50));
            self.event();
            self.scheduler.check_invariants().unwrap_or_else(|broken| panic!("{broken}"));
            if self.source.chance(50) {
                self.listen();
            }
        }
        events
    }

    fn event(&mut self) {
        match self.source.below(1000) {
            0..110 => self.admit(),
            110..510 => {
                self.propose();
                self.plan();
            }
            510..850 => self.complete(),
            850..930 => self.place_adapter(),
            930..950 => self.abort(),
            950..954 => self.abort_by_id(),
            954..957 => self.gateway_gone(),
            957..972 => self.tell_stops(),
            972..980 => self.scheduler.reset_prefix_cache(),
            980..983 => self.fail_all(),
            983..985 => self.lose_group(),
            _ => self.form_if_lost(),
        }
    }

    /// Lets everything end, and checks that it did: nothing live, nothing held.
    pub fn finish(&mut self) {
        self.form_if_lost();
        for _ in 0..200_000 {
            self.propose();
            self.plan();
            self.listen();
            self.tell_stops();
            self.scheduler.check_invariants().unwrap_or_else(|broken| panic!("{broken}"));
            if !self.coming.is_empty() {
                self.place_adapter();
            } else if self.results.is_empty() {
                assert!(!self.scheduler.has_unfinished(), "stuck with {:?}", self.scheduler.stats());
                break;
            }
            self.complete();
        }
        self.listen();
        assert!(self.scheduler.is_idle(), "endless: {:?}", self.scheduler.stats());
        assert!(self.live.is_empty(), "no end for {:?}", self.live);
        let stats = self.scheduler.stats();
        assert_eq!(
            (stats.running, stats.waiting_for_capacity, stats.waiting_deferred, stats.used_blocks),
            (0, 0, 0, 0)
        );
        assert_eq!(self.admitted, self.ended);
        let mut choices = Vec::new();
        self.scheduler.take_finished(&mut choices);
        assert_eq!(choices.len() as u64, stats.totals.ended.total());
    }

    // ---- events

    fn admit(&mut self) {
        let number = self.next_number;
        self.next_number += 1;
        let request = draw::request(&mut self.source, number, &self.config);
        let n = request.n;
        let tracked = self.track(&request);
        match self.scheduler.admit(request.clone(), self.now_us) {
            Ok(()) => {
                self.admitted += 1;
                self.live.insert(number, tracked);
                if self.source.chance(5) {
                    assert_eq!(self.scheduler.admit(request, self.now_us), Err(Refusal::Duplicate));
                }
            }
            Err(Refusal::NotReady) => assert!(self.worker.is_none()),
            Err(Refusal::Overloaded { .. }) => {
                assert!(self.config.max_num_queued_reqs.is_some() || self.config.max_num_queued_tokens.is_some());
            }
            Err(Refusal::NeverFits { blocks, num_blocks }) => assert!(blocks > num_blocks),
            Err(Refusal::Choices { max, .. }) => {
                let most = if tracked.pooling.is_some() { 1 } else { 4 };
                match &tracked.beams {
                    Some(beams) => {
                        let widest = self.config.max_num_seqs.min(4);
                        assert!(beams.width > widest && max == widest || n > beams.width && max == beams.width);
                    }
                    None => assert!(max == most && (n == 0 || n > most)),
                }
            }
            Err(Refusal::Media { .. }) => assert!(!tracked.context.media.is_empty()),
            Err(Refusal::NotForPooling(_)) => assert!(tracked.pooling.is_some()),
            Err(Refusal::Incomplete(_)) => assert!(tracked.beams.is_some_and(|beams| beams.width == 0)),
            Err(Refusal::RecurrentBeams) => assert!(tracked.beams.is_some() && self.config.recurrent),
            Err(Refusal::NotForBeams(_)) => {
                assert!(tracked.pooling.is_some() || tracked.sampling.prompt_logprobs.is_some());
            }
            Err(Refusal::EmptyPrompt) => assert!(tracked.prompt.is_empty()),
            Err(Refusal::PromptTooLong { .. } | Refusal::PooledPromptTooLong { .. }) => {
                let needed = tracked.prompt.len() + usize::from(tracked.pooling.is_none());
                assert!(needed > self.config.max_model_len as usize);
            }
            Err(Refusal::MaxTokensTooLarge { .. } | Refusal::ZeroMaxTokens | Refusal::TokenOutOfRange { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }

    fn track(&mut self, request: &proto::Request) -> Tracked {
        let Some(Kind::Ids(ids)) = request.prompt.as_ref().and_then(|prompt| prompt.kind.clone()) else {
            unreachable!("all prompts are ids")
        };
        let width = request.beam_search.as_ref().map_or(1, |beams| beams.width.max(1));
        let capacity = self.config.positions_in(self.num_blocks / width) as usize + 1;
        let limit = match request.max_tokens {
            Some(max_tokens) => ids.ids.len() + max_tokens as usize,
            None => (self.config.max_model_len as usize).min(capacity.max(ids.ids.len() + 1)),
        };
        let mut draw_stop = || self.source.chance(20).then(|| self.source.between(1, 6) as usize);
        let choices = (0..request.n).map(|_| Choice { stop_after: draw_stop(), ..Choice::default() }).collect();
        Tracked {
            id: request.request_id.clone(),
            context: Context::of(request),
            prompt: ids.ids,
            sampling: request.sampling.clone().unwrap_or_default(),
            limit,
            n: request.n,
            first_sequence: None,
            aborted: false,
            prompt_logprobs: 0,
            pooling: request.pooling.as_ref().map(Pooling::tokens),
            beams: request.beam_search,
            choices,
        }
    }

    /// Guesses for whatever runs: right ones for the most part, of any length.
    fn propose(&mut self) {
        if self.config.speculative_tokens == 0 && self.source.chance(95) {
            return;
        }
        for (handle, (number, at)) in self.handles.clone() {
            let Some(tracked) = self.live.get(&number).filter(|_| self.source.chance(70)) else { continue };
            let Some(history) = self.scheduler.history(SequenceId(handle)) else { continue };
            assert_eq!(history.prompt, tracked.prompt);
            let known = history.output.len();
            let mut draft = Vec::new();
            if let Some(seed) = self.seeds.get(&tracked.id).and_then(|seeds| seeds.get(at)) {
                let sampling = Sampling { ignore_eos: true, stop_token_ids: Vec::new(), ..tracked.sampling.clone() };
                let (answer, _) =
                    oracle::answer(&tracked.context, &tracked.prompt, *seed, &sampling, tracked.limit + 9);
                let rest = &answer[known.min(answer.len())..];
                draft.extend(&rest[..rest.len().min(self.source.below(8) as usize)]);
            }
            for token in &mut draft {
                if self.source.chance(20) {
                    *token = self.source.below(oracle::VOCAB + 1);
                }
            }
            self.proposed += 1;
            match self.scheduler.propose(SequenceId(handle), &draft) {
                Ok(()) => {
                    let samples = tracked.pooling.is_none() && tracked.beams.is_none();
                    assert!(self.config.speculative_tokens > 0 && samples);
                }
                Err(DraftRefusal::Off) => assert_eq!(self.config.speculative_tokens, 0),
                Err(DraftRefusal::NotGenerating) => assert!(tracked.pooling.is_some() || tracked.beams.is_some()),
                Err(DraftRefusal::TokenOutOfRange { .. }) => assert!(draft.contains(&oracle::VOCAB)),
                Err(DraftRefusal::NotRunning | DraftRefusal::InFlight) => {}
            }
        }
    }

    pub(super) fn plan(&mut self) {
        let Some(plan) = self.scheduler.plan(self.now_us) else { return };
        let worker = self.worker.as_mut().expect("a plan without a group");
        let mut new_requests = Vec::new();
        for added in &plan.added {
            let number: u64 =
                added.request_id.split(CONTEXT_MARK).next().and_then(|id| id.parse().ok()).expect("number");
            let seeds = self.seeds.entry(added.request_id.clone()).or_default();
            if seeds.is_empty() {
                let context = added.request_id.split(CONTEXT_MARK).nth(1).unwrap_or_default();
                new_requests.push((oracle::Context::read(context).adapter, number));
            }
            if !seeds.contains(&added.seed) {
                seeds.push(added.seed);
            }
        }
        if self.config.policy == Policy::Fcfs {
            // Others may overtake what waits for a slot of its adapter.
            for (adapter, number) in new_requests {
                let newest = self.newest_started.entry(adapter).or_default();
                assert!(number > *newest, "{number} starts after {newest}");
                *newest = number;
            }
        }
        let result = worker.execute(&plan);
        self.copies += plan.copy_from.len() as u64;
        self.moves += plan.continued.iter().zip(&plan.continued_from).filter(|(to, from)| to != from).count() as u64;
        for slot in &plan.slot {
            let id = worker.request_id(*slot);
            assert!(self.live.values().any(|tracked| tracked.id == id), "a row of {id}, which is over");
        }
        self.coming.extend(plan.adapters);
        self.results.push_back(result);
        assert!(self.results.len() <= self.config.pipeline_depth as usize);
    }

    /// One of the adapters that are on their way has come.
    fn place_adapter(&mut self) {
        if self.coming.is_empty() {
            return;
        }
        let placed = self.coming.swap_remove(self.source.below(self.coming.len() as u32) as usize);
        self.scheduler.adapter_placed(placed.slot);
        self.worker.as_mut().expect("an adapter without a group").place_adapter(placed);
    }

    fn complete(&mut self) {
        let Some(result) = self.results.pop_front() else { return };
        if self.source.chance(3) {
            self.complete_wrongly(&result);
        }
        self.scheduler.complete(result, self.now_us).unwrap_or_else(|error| panic!("{error}"));
    }

    /// A result that does not answer the plan is refused and changes nothing.
    fn complete_wrongly(&mut self, result: &StepResult) {
        let before = self.scheduler.stats();
        let mut wrong = result.clone();
        let error = match self.source.below(5) {
            0 => {
                wrong.epoch += 1;
                self.scheduler.complete(wrong, self.now_us)
            }
            1 => {
                wrong.step += 1;
                self.scheduler.complete(wrong, self.now_us)
            }
            2 => {
                wrong.token.push(1);
                self.scheduler.complete(wrong, self.now_us)
            }
            3 => {
                match wrong.count.last_mut() {
                    Some(count) => *count += 1,
                    None => wrong.count.push(1),
                }
                wrong.slot.push(0);
                self.scheduler.complete(wrong, self.now_us)
            }
            _ => {
                wrong.prompt_logprobs.push(Default::default());
                self.scheduler.complete(wrong, self.now_us)
            }
        };
        assert!(matches!(
            error,
            Err(ProtocolError::Epoch { .. }
                | ProtocolError::Step { .. }
                | ProtocolError::Rows { .. }
                | ProtocolError::Logprobs { .. })
        ));
        assert_eq!(before, self.scheduler.stats());
    }

    fn draw_live(&mut self) -> Option<(u64, u64)> {
        self.listen();
        let at = self.source.below(self.live.len() as u32) as usize;
        self.live.keys().nth(at).map(|number| (*number, 1 + number % 3))
    }

    fn abort(&mut self) {
        let Some((number, gateway)) = self.draw_live() else {
            assert!(!self.scheduler.abort(&RequestKey { gateway: 9, number: 9 }, self.now_us));
            return;
        };
        self.live.get_mut(&number).expect("live").aborted = true;
        assert!(self.scheduler.abort(&RequestKey { gateway, number }, self.now_us));
        self.expect_gone(number);
    }

    fn abort_by_id(&mut self) {
        let Some((number, _)) = self.draw_live() else { return };
        let tracked = self.live.get_mut(&number).expect("live");
        tracked.aborted = true;
        assert!(self.scheduler.abort_by_id(&tracked.id.clone(), self.now_us));
        self.expect_gone(number);
    }

    fn gateway_gone(&mut self) {
        self.listen();
        let gateway = u64::from(self.source.between(1, 3));
        let theirs: Vec<u64> = self.live.keys().copied().filter(|number| 1 + number % 3 == gateway).collect();
        theirs.iter().for_each(|number| self.live.get_mut(number).expect("live").aborted = true);
        assert_eq!(self.scheduler.gateway_gone(gateway, self.now_us), theirs.len());
        theirs.into_iter().for_each(|number| self.expect_gone(number));
    }

    fn expect_gone(&mut self, number: u64) {
        self.listen();
        assert!(!self.live.contains_key(&number), "aborted, but still there");
    }

    /// The detokenizer reports the stop strings that it found so far.
    fn tell_stops(&mut self) {
        self.listen();
        let mut stopped = vec![u64::MAX]; // One that nobody knows.
        for tracked in self.live.values_mut() {
            for (index, choice) in tracked.choices.iter_mut().enumerate() {
                let found = choice.stop_after.is_some_and(|after| choice.tokens.len() >= after);
                // Now and then one that makes no sense, even before the first token.
                // A search that one of its choices is stopped of is over as a whole.
                let found = found && tracked.beams.is_none();
                let alone = tracked.n == 1 && self.source.chance(2);
                let due = !choice.over && (found || alone);
                if let Some(first) = tracked.first_sequence.filter(|_| due) {
                    choice.over = true;
                    stopped.push(first + index as u64);
                }
            }
        }
        self.scheduler.stopped(&stopped, self.now_us);
        self.forget_ended();
    }

    fn fail_all(&mut self) {
        self.listen();
        let failure = proto::Failure { message: "all".into(), ..Default::default() };
        assert_eq!(self.scheduler.fail_all(&failure, self.now_us), self.live.len());
        self.listen();
        assert!(self.live.is_empty());
    }

    fn lose_group(&mut self) {
        self.listen();
        self.results.clear();
        self.coming.clear();
        self.worker = None;
        self.scheduler.group_lost("worker lost", self.now_us);
        self.listen();
        assert!(self.live.is_empty());
        assert_eq!(self.scheduler.plan(self.now_us), None);
    }

    fn form_if_lost(&mut self) {
        if self.worker.is_none() {
            self.form();
        }
    }

    fn form(&mut self) {
        self.epoch += 1;
        self.worker = Some(Worker::new(self.epoch, self.num_blocks, &self.config));
        self.scheduler.group_formed(Epoch(self.epoch), self.num_blocks, self.now_us);
    }
}
