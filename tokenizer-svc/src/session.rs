//! Serving while there is a scheduler: from the first one's connecting to the last one's loss.
//!
//! Order is kept where it matters: what a gateway says of a request goes down after the request itself. An abort that
//! finds its request still being encoded ends it here, with `Rejected`, and nothing more of it follows.

use std::{
    collections::HashMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use jiff::Zoned;
use link::{LinkError, LinkOptions};
use prost::Message;
use proto::{Abort, Failure, Inbound, Rejected, Request, RequestKey, inbound::Event};
use service_kit::{Process, control::Question, trace};
use tokio::sync::{mpsc, oneshot};
use tracing::{Span, debug, info, info_span, warn};

use crate::{
    config::Args,
    encode,
    engines::{self, BlockNames, Engines},
    error,
    metrics::TokenizerMetrics,
    models::Models,
    pool::Pool,
    schedulers::{FromScheduler, Schedulers},
    wire::{FromGateway, Gateways},
};

/// Events handled before what they gave is sent.
const BURST: usize = 256;
/// Bytes that a request grows by as a message of a link, at most.
const WRAPPING: usize = 16;

/// What all sessions of the process share.
pub(crate) struct Shell {
    pub(crate) process: Process,
    pub(crate) models: Models,
    pub(crate) pool: Pool,
    pub(crate) metrics: TokenizerMetrics,
    /// Requests that may be in the pool's hands.
    pub(crate) max_pending: usize,
}

/// Why a session ended.
pub(crate) enum End {
    Shutdown,
    NoScheduler,
}

/// A request that is being encoded.
struct Pending {
    request_id: String,
    cancelled: Arc<AtomicBool>,
}

/// What a thread of the pool made of a request.
struct Encoded {
    key: RequestKey,
    outcome: Result<Box<Encoding>, Failure>,
    seconds: f64,
}

/// An encoded request.
struct Encoding {
    request: Request,
    /// Names of its prompt's blocks, where the choice of an engine depends on them.
    blocks: Vec<u64>,
}

pub(crate) struct Session<'a> {
    shell: &'a Shell,
    pending: HashMap<RequestKey, Pending>,
    /// The latest connection of each gateway.
    connections: HashMap<u64, u64>,
    engines: Engines,
    encoded: mpsc::Sender<Encoded>,
    results: mpsc::Receiver<Encoded>,
    awaiting_empty: Vec<oneshot::Sender<()>>,
    message_limit: usize,
}

impl<'a> Session<'a> {
    /// Begins with a scheduler's connecting.
    pub(crate) fn new(args: &Args, shell: &'a Shell, first: FromScheduler) -> Self {
        // Every pending request answers once, so that a thread of the pool never waits here.
        let (encoded, results) = mpsc::channel(shell.max_pending.max(1));
        let mut session = Self {
            shell,
            pending: HashMap::new(),
            connections: HashMap::new(),
            engines: Engines::new(args),
            encoded,
            results,
            awaiting_empty: Vec::new(),
            message_limit: LinkOptions::default().message_limit(),
        };
        session.scheduler(first);
        session
    }

    /// Serves until no scheduler is left or the process shuts down.
    pub(crate) async fn run(
        mut self,
        schedulers: &mut Schedulers,
        mut gateways: Gateways,
        questions: &mut mpsc::Receiver<Question>,
    ) -> End {
        let shutdown = self.shell.process.shutdown.clone();
        self.send().await;
        loop {
            tokio::select! {
                event = gateways.next() => self.gateway(event),
                Some(encoded) = self.results.recv() => self.encoded(encoded),
                Some(question) = questions.recv() => self.asked(question),
                event = schedulers.next() => self.scheduler(event),
                () = shutdown.cancelled() => return End::Shutdown,
            }
            for _ in 0..BURST {
                let Ok(encoded) = self.results.try_recv() else { break };
                self.encoded(encoded);
            }
            for _ in 0..BURST {
                let Some(event) = gateways.try_next() else { break };
                self.gateway(event);
            }
            for _ in 0..BURST {
                let Some(event) = schedulers.try_next() else { break };
                self.scheduler(event);
            }
            self.observe();
            self.send().await;
            if !self.engines.any_is_up() {
                return End::NoScheduler;
            }
        }
    }

    /// Sends what there is to send; of an engine that is lost over it, to others.
    async fn send(&mut self) {
        loop {
            let lost = self.engines.send().await;
            if lost.is_empty() {
                return;
            }
            lost.into_iter().for_each(|(engine, reason)| self.engine_lost(engine, &reason));
        }
    }

    fn scheduler(&mut self, event: FromScheduler) {
        match event {
            FromScheduler::Up { engine, pid, sender } => {
                info!(engine, pid, "scheduler connected");
                self.engines.up(engine, sender);
            }
            FromScheduler::Reported { engine, report } => self.engines.reported(engine, *report),
            FromScheduler::Lost { engine, reason } => self.engine_lost(engine, &reason),
        }
    }

    fn engine_lost(&mut self, engine: usize, reason: &LinkError) {
        warn!(engine, "scheduler lost: {reason}");
        self.engines.lost(engine);
    }

    fn gateway(&mut self, event: FromGateway) {
        match event {
            FromGateway::Connected { gateway, connection, pid } => {
                info!(gateway, pid, "gateway connected");
                self.connections.insert(gateway, connection);
            }
            FromGateway::Sent { gateway, message } => self.message(gateway, *message),
            FromGateway::Lost { gateway, connection, reason } => {
                info!(gateway, "gateway left: {reason}");
                // One that is back already keeps its requests.
                if self.connections.get(&gateway) == Some(&connection) {
                    self.connections.remove(&gateway);
                    self.gone(gateway);
                }
            }
        }
    }

    fn message(&mut self, gateway: u64, message: Inbound) {
        self.shell.process.status.advance();
        match message.event {
            Some(Event::Request(request)) => self.request(request),
            Some(Event::Abort(Abort { key: Some(key) })) => self.abort(key),
            _ => warn!(gateway, "a gateway sent what no gateway should send"),
        }
    }

    fn request(&mut self, request: Request) {
        let Some(key) = request.key else {
            warn!(request_id = request.request_id, "a request without a key is dropped");
            return;
        };
        if self.pending.contains_key(&key) {
            warn!(request_id = request.request_id, "a request that is here already is dropped");
            return;
        }
        debug!(request_id = request.request_id, "request arrived");
        if self.shell.process.status.is_draining() {
            return self.reject(key, &request.request_id, error::draining());
        }
        let bytes = encode::text_bytes(&request);
        if bytes == 0 {
            return self.encode_here(key, request);
        }
        if self.pending.len() >= self.shell.max_pending {
            return self.reject(key, &request.request_id, error::overloaded());
        }
        let request_id = request.request_id.clone();
        let cancelled = Arc::new(AtomicBool::new(false));
        let work = self.work(key, request, cancelled.clone());
        match self.shell.pool.submit(bytes, work) {
            Ok(()) => drop(self.pending.insert(key, Pending { request_id, cancelled })),
            Err(_) => self.reject(key, &request_id, error::overloaded()),
        }
    }

    /// Token ids need no encoding; what is left to do is not worth another thread.
    fn encode_here(&mut self, key: RequestKey, request: Request) {
        let request_id = request.request_id.clone();
        match encode_caught(&self.shell.models, request, self.engines.block_names().as_deref()) {
            Ok(encoding) => self.hand_on(key, encoding),
            Err(failure) => self.reject(key, &request_id, failure),
        }
    }

    /// What a thread of the pool shall do with a request.
    fn work(&self, key: RequestKey, request: Request, cancelled: Arc<AtomicBool>) -> impl FnOnce() + Send + 'static {
        let (models, encoded) = (self.shell.models.clone(), self.encoded.clone());
        let names = self.engines.block_names();
        let span = span(&request);
        move || {
            if cancelled.load(Ordering::Relaxed) {
                return;
            }
            let began = Instant::now();
            let outcome = span.in_scope(|| encode_caught(&models, request, names.as_deref()));
            drop(span);
            let seconds = began.elapsed().as_secs_f64();
            let outcome = outcome.map(Box::new);
            // Fails when the scheduler was lost meanwhile; then the request has failed already.
            let _ = encoded.blocking_send(Encoded { key, outcome, seconds });
        }
    }

    fn encoded(&mut self, encoded: Encoded) {
        // Aborted meanwhile, and answered.
        let Some(pending) = self.pending.remove(&encoded.key) else { return };
        self.shell.metrics.seconds.observe(encoded.seconds);
        match encoded.outcome {
            Ok(encoding) => self.hand_on(encoded.key, *encoding),
            Err(failure) => self.reject(encoded.key, &pending.request_id, failure),
        }
    }

    fn hand_on(&mut self, key: RequestKey, Encoding { request, blocks }: Encoding) {
        let tokens = engines::tokens(&request);
        let request_id = request.request_id.clone();
        if request.encoded_len() + WRAPPING > self.message_limit {
            let text = format!("The prompt is too long to be handled: {tokens} tokens.");
            return self.reject(key, &request_id, error::invalid("prompt", text));
        }
        match self.engines.place(key, request, &blocks) {
            Ok(engine) => {
                debug!(request_id, tokens, engine, "request encoded");
                self.shell.metrics.tokens.inc_by(tokens.into());
                self.shell.metrics.request("encoded");
                self.shell.metrics.routed(engine);
            }
            Err(failure) => self.reject(key, &request_id, failure),
        }
    }

    fn reject(&mut self, key: RequestKey, request_id: &str, failure: Failure) {
        debug!(request_id, reason = failure.message, "request rejected");
        let overloaded = failure.kind() == proto::failure::Kind::Overloaded;
        self.shell.metrics.request(if overloaded { "overloaded" } else { "rejected" });
        self.push_rejected(key, failure);
    }

    fn push_rejected(&mut self, key: RequestKey, failure: Failure) {
        self.engines.reject(Rejected { key: Some(key), failure: Some(failure) });
    }

    fn abort(&mut self, key: RequestKey) {
        match self.pending.remove(&key) {
            Some(pending) => {
                debug!(request_id = pending.request_id, "request aborted while being encoded");
                pending.cancelled.store(true, Ordering::Relaxed);
                self.shell.metrics.request("aborted");
                self.push_rejected(key, error::aborted());
            }
            None => self.engines.abort(key),
        }
    }

    fn gone(&mut self, gateway: u64) {
        self.pending.retain(|key, pending| {
            let stays = key.gateway != gateway;
            if !stays {
                pending.cancelled.store(true, Ordering::Relaxed);
            }
            stays
        });
        self.engines.gateway_gone(gateway);
    }

    fn asked(&mut self, question: Question) {
        match question {
            Question::Abort { request_id, found } => {
                let key =
                    self.pending.iter().find(|(_, pending)| pending.request_id == request_id).map(|(key, _)| *key);
                if let Some(key) = key {
                    self.abort(key);
                }
                let _ = found.send(key.is_some());
            }
            Question::Drained { done } => self.awaiting_empty.push(done),
            Question::Unfinished { count } => drop(count.send(self.pending.len() as u32)),
        }
    }

    fn observe(&mut self) {
        self.shell.metrics.in_flight.set(self.pending.len() as i64);
        self.shell.metrics.gateways.set(self.connections.len() as i64);
        if self.pending.is_empty() {
            for done in self.awaiting_empty.drain(..) {
                let _ = done.send(());
            }
        }
    }
}

impl Drop for Session<'_> {
    /// The engine that these requests were for is lost, and their gateways are told by the loss of their links.
    fn drop(&mut self) {
        for pending in self.pending.values() {
            pending.cancelled.store(true, Ordering::Relaxed);
        }
        self.pending.clear();
        self.connections.clear();
        self.observe();
    }
}

/// Encodes; a panic inside becomes a failure of this request alone.
fn encode_caught(models: &Models, mut request: Request, names: Option<&BlockNames>) -> Result<Encoding, Failure> {
    let encoding = AssertUnwindSafe(|| {
        encode::request(models, &mut request, &Zoned::now())?;
        let blocks = names.map_or_else(Vec::new, |names| names.of(&request));
        Ok(Encoding { request, blocks })
    });
    catch_unwind(encoding).unwrap_or_else(|_| Err(error::internal("Encoding the prompt failed.")))
}

/// A span for a traced request; others cost nothing.
fn span(request: &Request) -> Span {
    if request.traceparent.is_empty() {
        return Span::none();
    }
    let span = info_span!("tokenize", request_id = request.request_id);
    trace::set_parent(&span, &request.traceparent);
    span
}
