//! The gateway's end of the pipeline: requests go out through an outbox, events come in through the registry.
//!
//! Routes call [`Pipeline::submit`] and hold the [`InFlight`] that it gives for as long as somebody reads the answer.
//! Dropping it, for whatever reason, forgets the requests, and aborts those that still run. So nothing leaks, and no
//! request runs on without a client.

use std::{
    sync::Arc,
    task::Waker,
    time::{Instant, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use proto::{Abort, Event, EventBatch, Failure, Inbound, Request, RequestKey, event, failure, inbound};
use tokio::sync::Notify;

use crate::{
    engine::{
        mailbox::{Delivery, Mailbox, WakeAt},
        outbox::Outbox,
        registry::{Failed, NewEntry, Outcome, Refusal, Registry, Removed, Stage},
    },
    error::ApiError,
    metrics::{Counted, RequestMetrics},
};

/// The number of an event that is about all requests.
const ALL: u64 = 0;

/// Requests out, events in; shared by routes and link tasks.
pub struct Pipeline {
    gateway: u64,
    registry: Mutex<Registry>,
    outbox: Outbox,
    metrics: RequestMetrics,
    /// Told whenever a request is forgotten while the gateway drains.
    emptied: Notify,
}

/// When the gateway read a request.
#[derive(Clone, Copy, Debug)]
pub struct Arrival {
    /// For durations.
    pub instant: Instant,
    /// As answers carry it.
    unix_seconds: u64,
}

impl Arrival {
    /// Now.
    pub fn now() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { instant: Instant::now(), unix_seconds: unix.as_secs() }
    }

    /// Unix time in seconds, as answers carry it.
    pub fn unix_seconds(self) -> u64 {
        self.unix_seconds
    }
}

impl Pipeline {
    /// The pipeline of gateway `gateway`, for at most `limit` requests at a time. Links are down until told otherwise.
    pub fn new(gateway: u64, limit: usize, metrics: RequestMetrics) -> Self {
        Self {
            gateway,
            registry: Mutex::new(Registry::new(limit)),
            outbox: Outbox::new(limit),
            metrics,
            emptied: Notify::new(),
        }
    }

    /// What is to be sent to the tokenizer.
    pub fn outbox(&self) -> &Outbox {
        &self.outbox
    }

    /// How many requests are in flight.
    pub fn in_flight(&self) -> usize {
        self.registry.lock().len()
    }

    /// Why requests cannot be served now, as far as the links tell.
    pub fn not_ready_reason(&self) -> Option<&'static str> {
        if !self.outbox.is_up() {
            Some("the tokenizer is not connected")
        } else if !self.registry.lock().events_up() {
            Some("the detokenizer is not connected")
        } else {
            None
        }
    }

    /// Sends the requests of one answer, one per prompt, all with the same `n`. Sets their keys; other fields are the
    /// caller's.
    pub fn submit(
        self: &Arc<Self>,
        requests: Vec<Request>,
        wake_at: WakeAt,
        arrival: Arrival,
    ) -> Result<InFlight, ApiError> {
        if !self.outbox.is_up() {
            return Err(tokenizer_away());
        }
        let choices: u64 = requests.iter().map(|request| u64::from(request.n)).sum();
        let choices = u32::try_from(choices).map_err(|_| ApiError::field("n", "too many choices"))?;
        let mailbox = Arc::new(Mailbox::new(choices, wake_at));
        let span = tracing::Span::current();
        let mut in_flight = InFlight { pipeline: self.clone(), numbers: Vec::new(), mailbox, _span: span };
        let mut registry = self.registry.lock();
        for (prompt, request) in requests.iter().enumerate() {
            let new = NewEntry {
                mailbox: in_flight.mailbox.clone(),
                prompt: prompt as u32,
                n: request.n,
                request_id: request.request_id.clone(),
                max_tokens: request.max_tokens,
                arrival: arrival.instant,
            };
            match registry.insert(new) {
                Ok(number) => in_flight.numbers.push(number),
                Err(refusal) => {
                    drop(registry);
                    return Err(self.refuse(refusal));
                }
            }
        }
        self.metrics.in_flight(registry.len());
        drop(registry);
        for (mut request, number) in requests.into_iter().zip(&in_flight.numbers) {
            request.key = Some(self.key(*number));
            if !self.outbox.push(Inbound { event: Some(inbound::Event::Request(request)) }) {
                return Err(tokenizer_away());
            }
        }
        Ok(in_flight)
    }

    fn refuse(&self, refusal: Refusal) -> ApiError {
        match refusal {
            Refusal::Full => {
                self.metrics.refused("max_inflight");
                ApiError::unavailable("The server is at its limit of requests in flight, try again later.")
            }
            Refusal::NoEvents => ApiError::unavailable("The detokenizer is not available, try again."),
            Refusal::Draining => ApiError::unavailable("The server is shutting down."),
        }
    }

    fn key(&self, number: u64) -> RequestKey {
        RequestKey { gateway: self.gateway, number }
    }

    fn abort(&self, number: u64) {
        let key = Some(self.key(number));
        self.outbox.push_abort(Inbound { event: Some(inbound::Event::Abort(Abort { key })) });
    }

    fn forget(&self, numbers: &[u64]) {
        let now = Instant::now();
        let mut running = Vec::new();
        {
            let mut registry = self.registry.lock();
            for number in numbers {
                let Some(Removed { stage, abandoned, engine }) = registry.remove(*number, now) else { continue };
                abandoned.iter().for_each(|abandoned| self.metrics.abandoned(engine, abandoned));
                match stage {
                    Stage::Sent | Stage::Admitted => running.push(*number),
                    Stage::Ended => {}
                }
            }
            self.metrics.in_flight(registry.len());
            if registry.is_empty() {
                self.emptied.notify_waiters();
            }
        }
        running.into_iter().for_each(|number| self.abort(number));
    }

    /// Delivers batches of events: one look-up per event, one wake-up per answer.
    pub fn deliver(&self, batches: impl Iterator<Item = EventBatch>) {
        let now = Instant::now();
        let mut wakers = Vec::new();
        {
            let mut registry = self.registry.lock();
            for event in batches.flat_map(|batch| batch.events) {
                if event.number == ALL {
                    self.fail_everything(&mut registry, event, &mut wakers);
                } else if let Some(Outcome { mailbox, delivery, counted, engine }) = registry.apply(event, now) {
                    self.metrics.count(engine, &counted);
                    wakers.extend(mailbox.deliver(delivery));
                }
            }
        }
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The detokenizer says that all requests failed.
    fn fail_everything(&self, registry: &mut Registry, event: Event, wakers: &mut Vec<Waker>) {
        if let Some(event::Kind::Failure(failure)) = event.kind {
            wakers.extend(registry.fail_all().iter().filter_map(|failed| self.tell(failed, &failure)));
        }
    }

    /// Counts a failed request and tells its mailbox. Returns whom to wake.
    fn tell(&self, failed: &Failed, failure: &Failure) -> Option<Waker> {
        self.metrics.count(failed.engine, &Counted::Failed);
        failed.mailbox.deliver(Delivery::Failure(failure.clone()))
    }

    /// The events link is up.
    pub fn events_up(&self) {
        self.registry.lock().open();
    }

    /// The events link is lost, and with it everything in flight.
    pub fn events_lost(&self) {
        self.fail("A part of the server was lost, try again.", |registry| {
            registry.close();
            registry.fail_all()
        });
    }

    /// The tokenizer's link is lost: what it may still have had fails, and is aborted once it is back.
    pub fn requests_lost(&self) {
        self.outbox.down();
        self.fail("A part of the server was lost, try again.", Registry::fail_sent);
    }

    /// Fails requests of the registry with `message`, and has them aborted.
    fn fail(&self, message: &str, choose: impl FnOnce(&mut Registry) -> Vec<Failed>) {
        let failure = unavailable(message);
        let failed = choose(&mut self.registry.lock());
        failed.iter().for_each(|failed| self.abort(failed.number));
        failed.iter().filter_map(|failed| self.tell(failed, &failure)).for_each(Waker::wake);
    }

    /// A message could not be sent. The request that it carried fails with `refusal`, or with the link when there is
    /// none; an abort stays to be sent.
    pub fn unsent(&self, message: Inbound, refusal: Option<Failure>) {
        match (&message.event, refusal) {
            (Some(inbound::Event::Abort(_)), _) => self.outbox.push_abort(message),
            (Some(inbound::Event::Request(Request { key: Some(key), .. })), Some(failure)) => {
                let failed = self.registry.lock().fail_one(key.number);
                failed.iter().filter_map(|failed| self.tell(failed, &failure)).for_each(Waker::wake);
            }
            _ => {}
        }
    }

    /// An operator aborts a request by its public id; the engine ends it with reason "abort". Whether there is one.
    pub fn abort_named(&self, request_id: &str) -> bool {
        let numbers = self.registry.lock().named(request_id);
        numbers.iter().for_each(|number| self.abort(*number));
        !numbers.is_empty()
    }

    /// Refuses new requests from now on.
    pub fn drain(&self) {
        self.registry.lock().drain();
    }

    /// Returns when nothing is in flight.
    pub async fn emptied(&self) {
        loop {
            let notified = self.emptied.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.registry.lock().is_empty() {
                return;
            }
            notified.await;
        }
    }

    /// Ends what still runs, with an error: the gateway's time is over.
    pub fn end_all(&self) {
        self.fail("The server is shutting down.", Registry::fail_all);
    }
}

fn tokenizer_away() -> ApiError {
    ApiError::unavailable("The tokenizer is not available, try again.")
}

/// A retryable failure.
pub fn unavailable(message: &str) -> Failure {
    Failure { kind: failure::Kind::Unavailable.into(), message: message.into(), param: String::new() }
}

/// The requests of one answer that somebody waits for.
pub struct InFlight {
    pipeline: Arc<Pipeline>,
    numbers: Vec<u64>,
    mailbox: Arc<Mailbox>,
    /// The request's, which lasts as long as its answer.
    _span: tracing::Span,
}

impl InFlight {
    /// Where their events are.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.pipeline.forget(&self.numbers);
    }
}
