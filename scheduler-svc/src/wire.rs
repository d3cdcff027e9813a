//! Links become events: one small task per link reads messages into the one bounded queue that [`crate::serve`] works
//! off.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use link::{Address, Link, Listener, Receiver, Sender};
use prost::Message;
use proto::{
    DetokenizerReply, EngineReport, FromWorker, Hello, Inbound, ToWorker, TokenBatch, inbound::Event as FromTokenizer,
};
use service_kit::{Process, control::Question};
use tokio::sync::{mpsc, oneshot};
use tracing::{info, warn};

use crate::{
    adapters::{AdapterCall, hub::Found},
    config::Args,
};

/// Events that may wait. Readers stop reading when it is full, and the rings behind them fill.
const QUEUE: usize = 4096;
/// Reports that may wait for a tokenizer that watches; one that is further behind is hung up on.
const REPORTS: usize = 1024;

/// All that can happen to the scheduler.
pub(crate) enum Event {
    /// A request, an abort, ... from a tokenizer.
    Inbound(Box<Inbound>),
    /// A tokenizer wants to know what happens here.
    Watched { connection: u64, reports: mpsc::Sender<EngineReport> },
    /// It has read this report of an engine that drains.
    DrainSeen { connection: u64, sequence: u64 },
    /// Its link ended.
    Unwatched { connection: u64 },
    /// A worker connected.
    WorkerUp { peer: Hello, sender: Sender<ToWorker>, connection: u64 },
    /// A worker said something.
    Worker { connection: u64, message: Box<FromWorker> },
    /// A worker's link ended.
    WorkerLost { connection: u64, reason: String },
    /// The detokenizer is there (again).
    DetokenizerUp(Sender<TokenBatch>),
    /// It found stop strings, or says what it has taken in.
    Detokenizer(DetokenizerReply),
    /// Its link ended.
    DetokenizerLost(String),
    /// Somebody asks through the control plane.
    Asked(Question),
    /// Somebody asks about adapters, or wants another one.
    Adapters(AdapterCall),
    /// An adapter was looked for at the hub.
    AdapterFound(Found),
    /// All cached prefixes are to be forgotten; answers when they are.
    ResetPrefixCache(oneshot::Sender<()>),
}

impl From<Question> for Event {
    fn from(question: Question) -> Self {
        Self::Asked(question)
    }
}

/// The scheduler's end of all links.
pub(crate) struct Wire {
    events: mpsc::Sender<Event>,
    /// The next link's number.
    connections: Arc<AtomicU64>,
}

impl Wire {
    /// An empty wire, and the queue that it fills.
    pub(crate) fn new() -> (Self, mpsc::Receiver<Event>) {
        let (events, queue) = mpsc::channel(QUEUE);
        (Self { events, connections: Arc::new(AtomicU64::new(1)) }, queue)
    }

    /// Another way into the queue.
    pub(crate) fn events(&self) -> mpsc::Sender<Event> {
        self.events.clone()
    }

    /// Accepts tokenizers at `address`.
    pub(crate) async fn listen_requests(
        &self,
        process: &Process,
        address: &Address,
        fingerprint: &str,
    ) -> Result<(), link::LinkError> {
        let hello = link::hello("scheduler-svc", "requests", fingerprint);
        let mut listener = Listener::bind(address, hello, process.links.clone()).await?;
        let (events, shutdown) = (self.events.clone(), process.shutdown.clone());
        let connections = self.connections.clone();
        tokio::spawn(shutdown.run_until_cancelled_owned(async move {
            loop {
                let connection = connections.fetch_add(1, Relaxed);
                match listener.accept::<EngineReport, Inbound>().await {
                    Ok(link) => drop(tokio::spawn(read_requests(link, connection, events.clone()))),
                    Err(error) => warn!("a tokenizer did not get through: {error}"),
                }
            }
        }));
        Ok(())
    }

    /// Accepts workers at all `addresses`.
    pub(crate) async fn listen_workers(
        &self,
        process: &Process,
        addresses: &[Address],
        fingerprint: &str,
    ) -> Result<(), link::LinkError> {
        let hello = link::hello("scheduler-svc", "steps", fingerprint);
        let mut listener = Listener::bind_all(addresses, hello, process.links.clone()).await?;
        let (events, shutdown) = (self.events.clone(), process.shutdown.clone());
        let connections = self.connections.clone();
        tokio::spawn(shutdown.run_until_cancelled_owned(async move {
            loop {
                let connection = connections.fetch_add(1, Relaxed);
                match listener.accept::<ToWorker, FromWorker>().await {
                    Ok(link) => drop(tokio::spawn(read_worker(link, connection, events.clone()))),
                    Err(error) => warn!("a worker did not get through: {error}"),
                }
            }
        }));
        Ok(())
    }

    /// Keeps a link to the detokenizer.
    pub(crate) fn dial_detokenizer(&self, process: &Process, args: &Args) {
        let (events, shutdown, address) = (self.events.clone(), process.shutdown.clone(), args.detokenizer.clone());
        let hello = link::hello("scheduler-svc", "tokens", &args.fingerprint.model_fingerprint);
        let hello = Hello { rank: args.replica.data_parallel_rank, ..hello };
        let links = process.links.clone();
        tokio::spawn(shutdown.run_until_cancelled_owned(async move {
            loop {
                let link = link::redial(&address, hello.clone(), &links).await;
                if read_detokenizer(link, &events).await.is_err() {
                    return;
                }
            }
        }));
    }
}

/// The event queue is closed: the process is ending.
struct Ending;

async fn read_requests(link: Link<EngineReport, Inbound>, connection: u64, events: mpsc::Sender<Event>) {
    let Link { peer, sender, mut receiver } = link;
    info!(pid = peer.pid, "tokenizer connected");
    // Dropping it would end the link.
    let mut sender = Some(sender);
    let reason = loop {
        let event = match receiver.recv().await {
            Ok(Inbound { event: Some(FromTokenizer::Watch(_)) }) => {
                let Some(sender) = sender.take() else { continue };
                let (reports, queue) = mpsc::channel(REPORTS);
                tokio::spawn(send_reports(sender, queue));
                Event::Watched { connection, reports }
            }
            Ok(Inbound { event: Some(FromTokenizer::DrainSeen(seen)) }) => {
                Event::DrainSeen { connection, sequence: seen.sequence }
            }
            Ok(message) => Event::Inbound(Box::new(message)),
            Err(error) => break error,
        };
        if events.send(event).await.is_err() {
            return;
        }
    };
    info!(pid = peer.pid, "tokenizer left: {reason}");
    if sender.is_none() {
        let _ = events.send(Event::Unwatched { connection }).await;
    }
}

/// Sends reports beside the loop: a tokenizer that does not read delays no step. Ends with the link, or
/// when the engine gives the watcher up.
async fn send_reports(mut sender: Sender<EngineReport>, mut queue: mpsc::Receiver<EngineReport>) {
    let mut reports = Vec::new();
    while queue.recv_many(&mut reports, REPORTS).await > 0 {
        if let Err(error) = sender.send_many(&reports).await {
            warn!("the tokenizer takes no reports: {error}");
            return;
        }
        reports.clear();
    }
}

async fn read_worker(link: Link<ToWorker, FromWorker>, connection: u64, events: mpsc::Sender<Event>) {
    let Link { peer, sender, receiver } = link;
    if events.send(Event::WorkerUp { peer, sender, connection }).await.is_err() {
        return;
    }
    let reason = forward(receiver, &events, |message| Event::Worker { connection, message: Box::new(message) }).await;
    let _ = events.send(Event::WorkerLost { connection, reason }).await;
}

async fn read_detokenizer(
    link: Link<TokenBatch, DetokenizerReply>,
    events: &mpsc::Sender<Event>,
) -> Result<(), Ending> {
    let Link { peer, sender, receiver } = link;
    info!(pid = peer.pid, "detokenizer connected");
    events.send(Event::DetokenizerUp(sender)).await.map_err(|_| Ending)?;
    let reason = forward(receiver, events, Event::Detokenizer).await;
    events.send(Event::DetokenizerLost(reason)).await.map_err(|_| Ending)
}

/// Reads until the link ends; returns why it did.
async fn forward<R: Message + Default>(
    mut receiver: Receiver<R>,
    events: &mpsc::Sender<Event>,
    event: impl Fn(R) -> Event,
) -> String {
    loop {
        match receiver.recv().await {
            Ok(message) => {
                if events.send(event(message)).await.is_err() {
                    return "this process is ending".into();
                }
            }
            Err(error) => return error.to_string(),
        }
    }
}
