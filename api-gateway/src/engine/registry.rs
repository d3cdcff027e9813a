//! The requests that this gateway has in flight: plain data and small methods. It knows no sockets, tasks, metrics or
//! clock: what an event changes is returned as an outcome, which the caller delivers and counts.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
    time::{Duration, Instant},
};

use proto::{Admitted, Delta, Event, FinishReason, event};

use crate::{
    engine::{
        mailbox::{Delivery, Mailbox},
        timings::Timings,
    },
    metrics::{Abandoned, ChoiceEnd, Counted, Growth, GrowthEnd, RequestEnd, TokenTime},
};

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// As many as allowed are in flight.
    Full,
    /// Its events could not come: the detokenizer is not connected.
    NoEvents,
    /// The gateway is ending.
    Draining,
}

/// What the registry keeps of a new request.
pub struct NewEntry {
    /// Where its events go.
    pub mailbox: Arc<Mailbox>,
    /// Which of the answer's prompts it is; its choices follow those of the prompts before it.
    pub prompt: u32,
    /// How many choices it has, at least 1.
    pub n: u32,
    /// The id that the client sees.
    pub request_id: String,
    /// `max_tokens`, for the metrics.
    pub max_tokens: Option<u32>,
    /// When the gateway read it.
    pub arrival: Instant,
}

/// The stage of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Handed to the tokenizer's link.
    Sent,
    /// The engine has it: it survives the loss of the tokenizer.
    Admitted,
    /// Its terminal event came. It stays until its answer is written, so that slow readers count as load.
    Ended,
}

/// What an event changed.
#[must_use]
pub struct Outcome<'r> {
    /// The mailbox of the request's answer.
    pub mailbox: &'r Mailbox,
    /// To be delivered there.
    pub delivery: Delivery,
    /// To be counted.
    pub counted: Counted,
    /// The engine that has it, once one has.
    pub engine: Option<u32>,
}

/// A request that failed: its mailbox is to be told, and the failure counted.
#[must_use]
pub struct Failed {
    /// Its number.
    pub number: u64,
    /// The mailbox of its answer.
    pub mailbox: Arc<Mailbox>,
    /// The engine that had it, if one had.
    pub engine: Option<u32>,
}

/// A request that was removed.
#[must_use]
pub struct Removed {
    /// Its stage until then.
    pub stage: Stage,
    /// If it had not ended, the figures to count.
    pub abandoned: Option<Abandoned>,
    /// The engine that had it, if one had.
    pub engine: Option<u32>,
}

struct Entry {
    new: NewEntry,
    stage: Stage,
    engine: Option<u32>,
    admitted: Option<Instant>,
    prompt_tokens: u32,
    choices: Box<[Clock]>,
    unfinished: u32,
}

/// Times and tokens of a choice, for the metrics.
#[derive(Clone, Copy, Default)]
struct Clock {
    first: Option<Instant>,
    last: Option<Instant>,
    tokens: u32,
    finished: bool,
}

/// The requests in flight, by number.
pub struct Registry {
    entries: HashMap<u64, Entry, BuildHasherDefault<NumberHasher>>,
    next: u64,
    limit: usize,
    events_up: bool,
    draining: bool,
}

impl Registry {
    /// Takes at most `limit` requests. Events do not flow yet.
    pub fn new(limit: usize) -> Self {
        Self { entries: HashMap::default(), next: 1, limit, events_up: false, draining: false }
    }

    /// The number of requests in flight, unwritten answers included.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the events link is up.
    pub fn events_up(&self) -> bool {
        self.events_up
    }

    /// Events flow from now on.
    pub fn open(&mut self) {
        self.events_up = true;
    }

    /// Events stopped; new requests are refused.
    pub fn close(&mut self) {
        self.events_up = false;
    }

    /// The gateway ends; new requests are refused from now on.
    pub fn drain(&mut self) {
        self.draining = true;
    }

    /// Takes a request and names it. Numbers start at 1: 0 means "all".
    pub fn insert(&mut self, new: NewEntry) -> Result<u64, Refusal> {
        if self.draining {
            return Err(Refusal::Draining);
        }
        if !self.events_up {
            return Err(Refusal::NoEvents);
        }
        if self.entries.len() >= self.limit {
            return Err(Refusal::Full);
        }
        let number = self.next;
        self.next += 1;
        let n = new.n.max(1);
        let choices = vec![Clock::default(); n as usize].into_boxed_slice();
        self.entries.insert(
            number,
            Entry { new, stage: Stage::Sent, engine: None, admitted: None, prompt_tokens: 0, choices, unfinished: n },
        );
        Ok(number)
    }

    /// Removes a request whose answer is written, or whose client left.
    pub fn remove(&mut self, number: u64, now: Instant) -> Option<Removed> {
        let entry = self.entries.remove(&number)?;
        let abandoned = (entry.stage != Stage::Ended).then(|| entry.abandoned(now));
        Some(Removed { stage: entry.stage, abandoned, engine: entry.engine })
    }

    /// The numbers of the requests that a client knows as `request_id`; of an answer to several prompts each has its
    /// own, with the prompt's index behind.
    pub fn named(&self, request_id: &str) -> Vec<u64> {
        let is_named = |entry: &Entry| {
            let rest = entry.new.request_id.strip_prefix(request_id);
            let index = rest.map(|rest| rest.strip_prefix('-').and_then(|index| index.parse().ok()));
            entry.stage != Stage::Ended && (rest == Some("") || index == Some(Some(entry.new.prompt)))
        };
        self.entries.iter().filter(|(_, entry)| is_named(entry)).map(|(number, _)| *number).collect()
    }

    /// Applies an event of one request. Those of unknown or ended requests are dropped: their clients left.
    pub fn apply(&mut self, event: Event, now: Instant) -> Option<Outcome<'_>> {
        let entry = self.entries.get_mut(&event.number).filter(|entry| entry.stage != Stage::Ended)?;
        let (delivery, counted) = match event.kind? {
            event::Kind::Admitted(admitted) => entry.admit(admitted, now)?,
            event::Kind::Delta(delta) => entry.grow(delta, now)?,
            event::Kind::Failure(failure) => {
                entry.stage = Stage::Ended;
                (Delivery::Failure(failure), Counted::Failed)
            }
        };
        Some(Outcome { mailbox: &entry.new.mailbox, delivery, counted, engine: entry.engine })
    }

    /// Fails the requests that the engine did not admit: the tokenizer is lost. They are to be aborted once it is back.
    pub fn fail_sent(&mut self) -> Vec<Failed> {
        self.fail_where(|stage| stage == Stage::Sent)
    }

    /// Fails everything in flight.
    pub fn fail_all(&mut self) -> Vec<Failed> {
        self.fail_where(|stage| stage != Stage::Ended)
    }

    /// Fails one request that was never sent.
    pub fn fail_one(&mut self, number: u64) -> Option<Failed> {
        let entry = self.entries.get_mut(&number).filter(|entry| entry.stage != Stage::Ended)?;
        Some(entry.fail(number))
    }

    fn fail_where(&mut self, concerns: impl Fn(Stage) -> bool) -> Vec<Failed> {
        let concerned = self.entries.iter_mut().filter(|(_, entry)| concerns(entry.stage));
        concerned.map(|(number, entry)| entry.fail(*number)).collect()
    }
}

impl Entry {
    fn admit(&mut self, admitted: Box<Admitted>, now: Instant) -> Option<(Delivery, Counted)> {
        if self.stage != Stage::Sent {
            return None;
        }
        self.stage = Stage::Admitted;
        self.admitted = Some(now);
        self.prompt_tokens = admitted.prompt_tokens;
        self.engine = Some(admitted.engine);
        let Admitted { prompt_tokens, cached_tokens, .. } = *admitted;
        let delivery = Delivery::Admitted { prompt: self.new.prompt, admitted };
        Some((delivery, Counted::Admitted { prompt_tokens, cached_tokens }))
    }

    fn grow(&mut self, mut delta: Delta, now: Instant) -> Option<(Delivery, Counted)> {
        let choice = delta.choice;
        let clock = self.choices.get_mut(choice as usize).filter(|clock| !clock.finished)?;
        let time = clock.tick(delta.token_count, self.new.arrival, now);
        let mut growth = Growth { tokens: delta.token_count, time, end: None };
        let mut timings = None;
        if delta.finish() != FinishReason::Unspecified {
            clock.finished = true;
            growth.end = Some(Box::new(self.finish(choice as usize, delta.finish(), now)));
            timings = Some(Box::new(self.timings(choice as usize)));
        }
        // The mailbox counts the choices of all prompts of the answer; every prompt has the same n.
        delta.choice = self.new.prompt * self.new.n + choice;
        Some((Delivery::Delta { delta, timings }, Counted::Grown(growth)))
    }

    /// A choice ended, and with the last one the request.
    fn finish(&mut self, choice: usize, reason: FinishReason, now: Instant) -> GrowthEnd {
        self.unfinished -= 1;
        if self.unfinished == 0 {
            self.stage = Stage::Ended;
        }
        let request = (self.unfinished == 0).then(|| self.request_end());
        GrowthEnd { choice: self.choice_end(choice, reason, now), request }
    }

    fn fail(&mut self, number: u64) -> Failed {
        self.stage = Stage::Ended;
        Failed { number, mailbox: self.new.mailbox.clone(), engine: self.engine }
    }

    /// The client left.
    fn abandoned(&self, now: Instant) -> Abandoned {
        let unfinished = (0..self.choices.len()).filter(|choice| !self.choices[*choice].finished);
        let choices = unfinished.map(|choice| self.choice_end(choice, FinishReason::Abort, now)).collect();
        Abandoned { choices, request: self.request_end() }
    }

    fn request_end(&self) -> RequestEnd {
        RequestEnd { n: self.new.n, longest: self.choices.iter().map(|clock| clock.tokens).max().unwrap_or(0) }
    }

    fn timings(&self, choice: usize) -> Timings {
        let Clock { first, tokens, .. } = self.choices[choice];
        let admitted = self.admitted.unwrap_or(self.new.arrival);
        Timings {
            queue: admitted.saturating_duration_since(self.new.arrival),
            first_token: first.map_or(Duration::ZERO, |first| first.saturating_duration_since(admitted)),
            generation: self.choices[choice].decode(),
            tokens,
        }
    }

    fn choice_end(&self, choice: usize, reason: FinishReason, now: Instant) -> ChoiceEnd {
        let clock = &self.choices[choice];
        ChoiceEnd {
            reason,
            e2e: now.saturating_duration_since(self.new.arrival),
            decode: clock.decode(),
            prompt_tokens: self.prompt_tokens,
            generated: clock.tokens,
            max_tokens: self.new.max_tokens,
        }
    }
}

impl Clock {
    fn tick(&mut self, tokens: u32, arrival: Instant, now: Instant) -> Option<TokenTime> {
        if tokens == 0 {
            return None;
        }
        self.tokens += tokens;
        Some(match self.last.replace(now) {
            Some(last) => TokenTime::Next(now.saturating_duration_since(last)),
            None => {
                self.first = Some(now);
                TokenTime::First(now.saturating_duration_since(arrival))
            }
        })
    }

    fn decode(&self) -> Duration {
        match (self.first, self.last) {
            (Some(first), Some(last)) => last.saturating_duration_since(first),
            _ => Duration::ZERO,
        }
    }
}

/// Numbers count up and are ours: one multiplication spreads them well enough.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte) ^ self.0);
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(26);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use proto::{Failure, failure};

    use super::*;
    use crate::engine::mailbox::{Ending, Update, WakeAt};

    struct Bench {
        registry: Registry,
        start: Instant,
    }

    impl Bench {
        fn new(limit: usize) -> Self {
            let mut registry = Registry::new(limit);
            registry.open();
            Self { registry, start: Instant::now() }
        }

        fn insert(&mut self, n: u32) -> Result<(u64, Arc<Mailbox>), Refusal> {
            let mailbox = Arc::new(Mailbox::new(n, WakeAt::Update));
            let new = NewEntry {
                mailbox: mailbox.clone(),
                prompt: 0,
                n,
                request_id: "cmpl-1".into(),
                max_tokens: Some(4),
                arrival: self.start,
            };
            Ok((self.registry.insert(new)?, mailbox))
        }

        /// Applies an event and delivers its outcome; what is to be counted.
        fn event(&mut self, number: u64, kind: event::Kind) -> Option<Counted> {
            let event = Event { number, kind: Some(kind) };
            let Outcome { mailbox, delivery, counted, .. } = self.registry.apply(event, self.start)?;
            mailbox.deliver(delivery);
            Some(counted)
        }

        fn stage(&mut self, number: u64) -> Option<Stage> {
            self.registry.remove(number, self.start).map(|removed| removed.stage)
        }
    }

    fn delta(choice: u32, finish: FinishReason) -> event::Kind {
        let finish = finish.into();
        event::Kind::Delta(Delta { choice, text: "x".into(), token_count: 1, finish, ..Delta::default() })
    }

    fn lost() -> Failure {
        Failure { kind: failure::Kind::Unavailable.into(), message: "lost".into(), param: String::new() }
    }

    fn look(mailbox: &Mailbox) -> Option<Update> {
        let mut update = Update::default();
        mailbox.poll(&mut Context::from_waker(Waker::noop()), &mut update).is_ready().then_some(update)
    }

    #[test]
    fn a_request_lives_until_its_answer_is_written() {
        let mut bench = Bench::new(1);
        let (number, mailbox) = bench.insert(2).unwrap();
        assert_eq!(number, 1);
        bench.event(number, event::Kind::Admitted(Admitted { prompt_tokens: 3, ..Admitted::default() }.into()));
        bench.event(number, delta(1, FinishReason::Stop));
        assert_eq!(bench.event(number, delta(1, FinishReason::Stop)), None, "nothing follows a finish");
        assert_eq!(bench.event(number, delta(7, FinishReason::Stop)), None, "there is no such choice");
        assert_eq!(look(&mailbox).unwrap().ending, None);
        bench.event(number, delta(0, FinishReason::Length));
        assert_eq!(look(&mailbox).unwrap().ending, Some(Ending::Complete));
        assert_eq!(bench.insert(1).err(), Some(Refusal::Full));
        assert_eq!(bench.stage(number), Some(Stage::Ended));
        assert!(bench.registry.is_empty());
        bench.event(number, delta(0, FinishReason::Unspecified));
        assert_eq!(bench.stage(number), None);
    }

    #[test]
    fn losing_the_tokenizer_spares_what_was_admitted() {
        let mut bench = Bench::new(9);
        let (sent, sent_box) = bench.insert(1).unwrap();
        let (admitted, admitted_box) = bench.insert(1).unwrap();
        bench.event(admitted, event::Kind::Admitted(Box::default()));
        let failed = bench.registry.fail_sent();
        assert_eq!(failed.iter().map(|failed| failed.number).collect::<Vec<_>>(), [sent]);
        assert!(Arc::ptr_eq(&failed[0].mailbox, &sent_box));
        assert_eq!(look(&admitted_box).unwrap().ending, None);
        bench.event(sent, delta(0, FinishReason::Stop)); // too late
        assert!(look(&sent_box).is_none(), "the caller delivers the failure");
        assert_eq!(bench.stage(admitted), Some(Stage::Admitted));
    }

    #[test]
    fn everything_in_flight_fails_once() {
        let mut bench = Bench::new(9);
        let numbers: Vec<u64> = (0..3).map(|_| bench.insert(1).unwrap().0).collect();
        let mut failed: Vec<u64> = bench.registry.fail_all().iter().map(|failed| failed.number).collect();
        failed.sort_unstable();
        assert_eq!(failed, numbers);
        assert!(bench.registry.fail_all().is_empty());
        assert!(bench.registry.fail_one(numbers[0]).is_none());
    }

    #[test]
    fn outcomes_say_what_is_to_be_counted() {
        let mut bench = Bench::new(9);
        let (number, _) = bench.insert(2).unwrap();
        let admitted = Admitted { prompt_tokens: 3, cached_tokens: 2, ..Admitted::default() };
        let counted = bench.event(number, event::Kind::Admitted(admitted.into()));
        assert_eq!(counted, Some(Counted::Admitted { prompt_tokens: 3, cached_tokens: 2 }));
        let time = |counted: Option<Counted>| match counted {
            Some(Counted::Grown(growth)) => (growth.time, growth.end.map(|end| end.request)),
            other => panic!("{other:?}"),
        };
        let first = time(bench.event(number, delta(0, FinishReason::Unspecified)));
        assert_eq!(first, (Some(TokenTime::First(Duration::ZERO)), None));
        let next = time(bench.event(number, delta(0, FinishReason::Stop)));
        assert_eq!(next, (Some(TokenTime::Next(Duration::ZERO)), Some(None)));
        let abandoned = bench.registry.remove(number, bench.start).unwrap().abandoned.unwrap();
        assert_eq!(abandoned.choices.len(), 1);
        assert_eq!(abandoned.choices[0].reason, FinishReason::Abort);
        assert_eq!(abandoned.request, RequestEnd { n: 2, longest: 2 });
    }

    #[test]
    fn nothing_is_taken_without_events_or_while_draining() {
        let mut bench = Bench::new(9);
        bench.registry.close();
        assert_eq!(bench.insert(1).err(), Some(Refusal::NoEvents));
        bench.registry.open();
        bench.registry.drain();
        assert_eq!(bench.insert(1).err(), Some(Refusal::Draining));
    }

    #[test]
    fn requests_are_found_by_the_clients_name() {
        let mut bench = Bench::new(9);
        let (number, _) = bench.insert(1).unwrap();
        assert_eq!(bench.registry.named("cmpl-1"), [number]);
        assert!(bench.registry.named("cmpl-2").is_empty());
        bench.event(number, event::Kind::Failure(lost()));
        assert!(bench.registry.named("cmpl-1").is_empty());
    }
}
