//! The two kinds of link: a scheduler for each engine, many gateways.

use futures::future::select_all;
use link::{Hello, Link, LinkError, LinkOptions, Listener, Receiver, Sender};
use proto::{DetokenizerReply, EventBatch, Inbound, TokenBatch};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
};
use tracing::warn;

use crate::config::Args;

/// Losses of gateways that may wait to be handled.
const QUEUE: usize = 64;

/// The end of one gateway's link.
pub(crate) struct Connection {
    pub(crate) gateway: u64,
    /// Counts links, so that a gateway's old and new one are told apart.
    pub(crate) number: u64,
    pub(crate) pid: u32,
    pub(crate) sender: Sender<EventBatch>,
    /// Ends the link when it is dropped.
    pub(crate) reader: Reader,
}

/// The task that waits for a gateway to leave.
pub(crate) struct Reader(AbortHandle);

impl Drop for Reader {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What a gateway did.
pub(crate) enum FromGateway {
    Connected(Connection),
    Left { gateway: u64, number: u64, reason: LinkError },
}

/// Accepts gateways, and tells when they leave.
pub(crate) struct Doors {
    listener: Listener,
    readers: JoinSet<()>,
    left: mpsc::Sender<FromGateway>,
    queue: mpsc::Receiver<FromGateway>,
    count: u64,
}

impl Doors {
    pub(crate) fn new(listener: Listener) -> Self {
        let (left, queue) = mpsc::channel(QUEUE);
        Self { listener, readers: JoinSet::new(), left, queue, count: 0 }
    }

    /// What happens next. Cancel-safe.
    pub(crate) async fn next(&mut self) -> FromGateway {
        loop {
            tokio::select! {
                link = self.listener.accept::<EventBatch, Inbound>() => match link {
                    Ok(link) => return FromGateway::Connected(self.connected(link)),
                    Err(error) => warn!("a gateway did not get through: {error}"),
                },
                Some(event) = self.queue.recv() => return event,
                Some(_) = self.readers.join_next() => {}
            }
        }
    }

    fn connected(&mut self, link: Link<EventBatch, Inbound>) -> Connection {
        self.count += 1;
        let Link { peer, sender, receiver } = link;
        let (gateway, number) = (peer.instance, self.count);
        let reader = self.readers.spawn(wait_for_end(receiver, gateway, number, self.left.clone()));
        Connection { gateway, number, pid: peer.pid, sender, reader: Reader(reader) }
    }
}

async fn wait_for_end(mut receiver: Receiver<Inbound>, gateway: u64, number: u64, left: mpsc::Sender<FromGateway>) {
    let reason = loop {
        // Gateways send nothing here; whatever comes is ignored.
        if let Err(reason) = receiver.recv().await {
            break reason;
        }
    };
    let _ = left.send(FromGateway::Left { gateway, number, reason }).await;
}

/// The schedulers' links, one for each engine that is there.
pub(crate) struct Schedulers {
    listener: Listener,
    links: Vec<Scheduler>,
}

/// The link of one engine's scheduler.
struct Scheduler {
    /// Its data-parallel rank.
    engine: u32,
    link: Link<DetokenizerReply, TokenBatch>,
    /// Sequences to be reported as stopped.
    stopped: Vec<u64>,
    /// Batches that this link has brought.
    batches: u64,
    /// Some of them ended requests, and are to be confirmed.
    confirm: bool,
}

/// What a scheduler did.
pub(crate) enum FromScheduler {
    /// It is there (again).
    Connected {
        engine: u32,
        pid: u32,
        /// Another one of this engine was there, and is lost.
        replaced: bool,
    },
    Batch {
        engine: u32,
        batch: TokenBatch,
    },
    Lost {
        engine: u32,
        reason: LinkError,
    },
}

impl Schedulers {
    pub(crate) fn new(listener: Listener) -> Self {
        Self { listener, links: Vec::new() }
    }

    /// Whether one of another engine is there.
    pub(crate) fn has_other_than(&self, engine: u32) -> bool {
        self.links.iter().any(|scheduler| scheduler.engine != engine)
    }

    /// Whether there is none.
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// What happens next. Cancel-safe.
    pub(crate) async fn next(&mut self) -> FromScheduler {
        loop {
            tokio::select! {
                // What the old links still hold is read before a new one is looked at.
                biased;
                (index, batch) = any_batch(&mut self.links) => return match batch {
                    Ok(batch) => self.brought(index, batch),
                    Err(reason) => FromScheduler::Lost { engine: self.links.remove(index).engine, reason },
                },
                link = self.listener.accept() => match link {
                    Ok(link) => return self.connected(link),
                    Err(error) => warn!("a scheduler did not get through: {error}"),
                },
            }
        }
    }

    fn brought(&mut self, index: usize, batch: TokenBatch) -> FromScheduler {
        let engine = self.links[index].engine;
        let batch = self.links[index].counted(batch);
        // The others come first next time.
        self.links.rotate_left(index + 1);
        FromScheduler::Batch { engine, batch }
    }

    /// A batch of an engine that is here already.
    pub(crate) fn try_batch(&mut self, engine: u32) -> Option<TokenBatch> {
        let scheduler = self.of(engine)?;
        // An error is met again by `next`.
        let batch = scheduler.link.receiver.try_recv().ok().flatten()?;
        Some(scheduler.counted(batch))
    }

    /// Tells an engine's scheduler which sequences are to end, and which of its batches are taken in where requests
    /// ended in them. Never waits: what finds no room now goes with the next.
    pub(crate) fn reply(&mut self, engine: u32, stopped: &mut Vec<u64>) {
        match self.of(engine) {
            Some(scheduler) => scheduler.reply(stopped),
            None => stopped.clear(),
        }
    }

    fn of(&mut self, engine: u32) -> Option<&mut Scheduler> {
        self.links.iter_mut().find(|scheduler| scheduler.engine == engine)
    }

    fn connected(&mut self, link: Link<DetokenizerReply, TokenBatch>) -> FromScheduler {
        let (engine, pid) = (link.peer.rank, link.peer.pid);
        let before = self.links.len();
        self.links.retain(|scheduler| scheduler.engine != engine);
        let replaced = self.links.len() < before;
        self.links.push(Scheduler { engine, link, stopped: Vec::new(), batches: 0, confirm: false });
        FromScheduler::Connected { engine, pid, replaced }
    }
}

/// The next batch of any scheduler, and whose it is; pending for ever where there is none. Cancel-safe.
async fn any_batch(links: &mut [Scheduler]) -> (usize, Result<TokenBatch, LinkError>) {
    match links {
        [] => std::future::pending().await,
        [one] => (0, one.link.receiver.recv().await),
        several => {
            let batches = several.iter_mut().map(|scheduler| Box::pin(scheduler.link.receiver.recv()));
            let (batch, index, _) = select_all(batches).await;
            (index, batch)
        }
    }
}

impl Scheduler {
    fn counted(&mut self, batch: TokenBatch) -> TokenBatch {
        self.batches += 1;
        self.confirm |= !(batch.finished.is_empty() && batch.failed.is_empty());
        batch
    }

    fn reply(&mut self, stopped: &mut Vec<u64>) {
        self.stopped.append(stopped);
        if self.stopped.is_empty() && !self.confirm {
            return;
        }
        let reply = DetokenizerReply { stopped: std::mem::take(&mut self.stopped), batches: self.batches };
        // A lost link is met by `next`.
        match self.link.sender.try_send(&reply) {
            Ok(false) => self.stopped = reply.stopped,
            Ok(true) | Err(_) => self.confirm = false,
        }
    }
}

/// Listens for schedulers or for gateways.
pub(crate) async fn listen(
    addresses: &[link::Address],
    channel: &str,
    args: &Args,
    options: LinkOptions,
) -> Result<Listener, LinkError> {
    let hello = link::hello("detokenizer-svc", channel, &args.fingerprint.model_fingerprint);
    Listener::bind_all(addresses, Hello { server: args.server.server_id, ..hello }, options).await
}
