//! The requests that this gateway has in flight: plain data and small methods. It knows no sockets, tasks or clock.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    sync::Arc,
    task::Waker,
    time::{Duration, Instant},
};

use proto::{Admitted, Delta, Event, Failure, FinishReason, event};

use crate::{
    engine::mailbox::Mailbox,
    metrics::{ChoiceEnd, RequestMetrics},
};

/// Why a request is not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// As many as allowed are in flight.
    Full,
    /// Nobody would bring its events.
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

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Handed to the tokenizer's link.
    Sent,
    /// The engine has it: it survives the loss of the tokenizer.
    Admitted,
    /// Its terminal event came. It stays until its answer is written, so that slow readers count as load.
    Ended,
}

struct Entry {
    new: NewEntry,
    stage: Stage,
    prompt_tokens: u32,
    choices: Box<[Clock]>,
    unfinished: u32,
}

/// What the metrics need of a choice.
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

    /// How many requests are in flight, unwritten answers included.
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
        self.entries.insert(number, Entry { new, stage: Stage::Sent, prompt_tokens: 0, choices, unfinished: n });
        Ok(number)
    }

    /// Forgets a request whose answer is written or not wanted any more. Tells how far it was.
    pub fn remove(&mut self, number: u64, now: Instant, metrics: &RequestMetrics) -> Option<Stage> {
        let entry = self.entries.remove(&number)?;
        if entry.stage != Stage::Ended {
            entry.abandoned(now, metrics);
        }
        Some(entry.stage)
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

    /// Delivers one event. Those of unknown or ended requests are dropped: their clients left. Adds whom to wake to
    /// `wakers`.
    pub fn apply(&mut self, event: Event, now: Instant, metrics: &RequestMetrics, wakers: &mut Vec<Waker>) {
        let number = event.number;
        let Some(kind) = event.kind else { return };
        if number == 0 {
            if let event::Kind::Failure(failure) = kind {
                self.fail_all(&failure, metrics, wakers);
            }
            return;
        }
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let waker = match kind {
            _ if entry.stage == Stage::Ended => None,
            event::Kind::Admitted(admitted) => entry.admit(admitted, metrics),
            event::Kind::Delta(delta) => entry.grow(delta, now, metrics),
            event::Kind::Failure(failure) => entry.fail(failure, metrics),
        };
        wakers.extend(waker);
    }

    /// The tokenizer is lost: fails what the engine did not admit. Returns their numbers, to be aborted once it is
    /// back.
    pub fn fail_sent(&mut self, failure: &Failure, metrics: &RequestMetrics, wakers: &mut Vec<Waker>) -> Vec<u64> {
        self.fail_where(|stage| stage == Stage::Sent, failure, metrics, wakers)
    }

    /// Everything in flight is lost. Returns the numbers.
    pub fn fail_all(&mut self, failure: &Failure, metrics: &RequestMetrics, wakers: &mut Vec<Waker>) -> Vec<u64> {
        self.fail_where(|stage| stage != Stage::Ended, failure, metrics, wakers)
    }

    /// Fails one request that never left. Returns whom to wake.
    pub fn fail_one(&mut self, number: u64, failure: Failure, metrics: &RequestMetrics) -> Option<Waker> {
        let entry = self.entries.get_mut(&number).filter(|entry| entry.stage != Stage::Ended)?;
        entry.fail(failure, metrics)
    }

    fn fail_where(
        &mut self,
        concerns: impl Fn(Stage) -> bool,
        failure: &Failure,
        metrics: &RequestMetrics,
        wakers: &mut Vec<Waker>,
    ) -> Vec<u64> {
        let mut failed = Vec::new();
        for (number, entry) in self.entries.iter_mut().filter(|(_, entry)| concerns(entry.stage)) {
            failed.push(*number);
            wakers.extend(entry.fail(failure.clone(), metrics));
        }
        failed
    }
}

impl Entry {
    fn admit(&mut self, admitted: Admitted, metrics: &RequestMetrics) -> Option<Waker> {
        if self.stage != Stage::Sent {
            return None;
        }
        self.stage = Stage::Admitted;
        self.prompt_tokens = admitted.prompt_tokens;
        metrics.admitted(admitted.prompt_tokens, admitted.cached_tokens);
        self.new.mailbox.admit(self.new.prompt, admitted)
    }

    fn grow(&mut self, mut delta: Delta, now: Instant, metrics: &RequestMetrics) -> Option<Waker> {
        let choice = delta.choice;
        let clock = self.choices.get_mut(choice as usize).filter(|clock| !clock.finished)?;
        clock.tick(delta.token_count, self.new.arrival, now, metrics);
        let reason = delta.finish();
        if reason != FinishReason::Unspecified {
            clock.finished = true;
            self.unfinished -= 1;
            metrics.choice_ended(&self.choice_end(choice as usize, reason, now));
            if self.unfinished == 0 {
                self.stage = Stage::Ended;
                self.ended(metrics);
            }
        }
        // The mailbox counts the choices of all prompts of the answer; every prompt has the same n.
        delta.choice = self.new.prompt * self.new.n + choice;
        self.new.mailbox.grow(delta.choice, delta)
    }

    fn fail(&mut self, failure: Failure, metrics: &RequestMetrics) -> Option<Waker> {
        self.stage = Stage::Ended;
        metrics.failed();
        self.new.mailbox.fail(failure)
    }

    /// The client left.
    fn abandoned(&self, now: Instant, metrics: &RequestMetrics) {
        for choice in (0..self.choices.len()).filter(|choice| !self.choices[*choice].finished) {
            metrics.choice_ended(&self.choice_end(choice, FinishReason::Abort, now));
        }
        self.ended(metrics);
    }

    fn ended(&self, metrics: &RequestMetrics) {
        let longest = self.choices.iter().map(|clock| clock.tokens).max().unwrap_or(0);
        metrics.request_ended(self.new.n, longest);
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
    fn tick(&mut self, tokens: u32, arrival: Instant, now: Instant, metrics: &RequestMetrics) {
        if tokens == 0 {
            return;
        }
        metrics.generated(tokens);
        self.tokens += tokens;
        match self.last.replace(now) {
            Some(last) => metrics.next_tokens(tokens, now.saturating_duration_since(last)),
            None => {
                self.first = Some(now);
                metrics.first_token(now.saturating_duration_since(arrival));
            }
        }
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

    use proto::failure;

    use super::*;
    use crate::engine::mailbox::{Ending, Update, WakeAt};

    struct Bench {
        registry: Registry,
        metrics: RequestMetrics,
        start: Instant,
    }

    impl Bench {
        fn new(limit: usize) -> Self {
            let mut registry = Registry::new(limit);
            registry.open();
            Self { registry, metrics: RequestMetrics::default(), start: Instant::now() }
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

        fn event(&mut self, number: u64, kind: event::Kind) {
            let event = Event { number, kind: Some(kind) };
            self.registry.apply(event, self.start, &self.metrics, &mut Vec::new());
        }

        fn stage(&mut self, number: u64) -> Option<Stage> {
            self.registry.remove(number, self.start, &self.metrics)
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
        bench.event(number, event::Kind::Admitted(Admitted { prompt_tokens: 3, ..Admitted::default() }));
        bench.event(number, delta(1, FinishReason::Stop));
        bench.event(number, delta(1, FinishReason::Stop)); // nothing follows a finish
        bench.event(number, delta(7, FinishReason::Stop)); // no such choice
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
        bench.event(admitted, event::Kind::Admitted(Admitted::default()));
        let failed = bench.registry.fail_sent(&lost(), &bench.metrics, &mut Vec::new());
        assert_eq!(failed, [sent]);
        assert_eq!(look(&sent_box).unwrap().ending, Some(Ending::Failed(lost())));
        assert_eq!(look(&admitted_box).unwrap().ending, None);
        bench.event(sent, delta(0, FinishReason::Stop)); // too late
        assert!(look(&sent_box).is_none_or(|update| update.grown.is_empty()));
        assert_eq!(bench.stage(admitted), Some(Stage::Admitted));
    }

    #[test]
    fn event_number_zero_fails_everything() {
        let mut bench = Bench::new(9);
        let boxes: Vec<_> = (0..3).map(|_| bench.insert(1).unwrap().1).collect();
        bench.event(0, event::Kind::Failure(lost()));
        for mailbox in boxes {
            assert_eq!(look(&mailbox).unwrap().ending, Some(Ending::Failed(lost())));
        }
        assert!(bench.registry.fail_all(&lost(), &bench.metrics, &mut Vec::new()).is_empty());
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
