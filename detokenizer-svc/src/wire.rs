//! The two kinds of link: one scheduler, many gateways.

use link::{Link, LinkError, LinkOptions, Listener, Receiver, Sender};
use proto::{DetokenizerReply, EventBatch, Inbound, TokenBatch};
use tokio::{
    sync::mpsc,
    task::{AbortHandle, JoinSet},
};
use tracing::warn;

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

/// The scheduler's link, while there is one.
pub(crate) struct Scheduler {
    listener: Listener,
    link: Option<Link<DetokenizerReply, TokenBatch>>,
    /// Sequences to be reported as stopped.
    stopped: Vec<u64>,
    /// Batches that this link has brought.
    batches: u64,
    /// Some of them ended requests, and are to be confirmed.
    confirm: bool,
}

/// What the scheduler did.
pub(crate) enum FromScheduler {
    /// It is there (again).
    Connected {
        pid: u32,
        /// Another one was there, and is lost.
        replaced: bool,
    },
    Batch(TokenBatch),
    Lost(LinkError),
}

impl Scheduler {
    pub(crate) fn new(listener: Listener) -> Self {
        Self { listener, link: None, stopped: Vec::new(), batches: 0, confirm: false }
    }

    /// What happens next. Cancel-safe.
    pub(crate) async fn next(&mut self) -> FromScheduler {
        loop {
            let Some(link) = &mut self.link else {
                match self.listener.accept().await {
                    Ok(link) => return self.connected(link),
                    Err(error) => warn!("a scheduler did not get through: {error}"),
                }
                continue;
            };
            tokio::select! {
                // What the old link still holds is read before a new one is looked at.
                biased;
                batch = link.receiver.recv() => match batch {
                    Ok(batch) => return FromScheduler::Batch(self.counted(batch)),
                    Err(reason) => return self.lost(reason),
                },
                link = self.listener.accept() => match link {
                    Ok(link) => return self.connected(link),
                    Err(error) => warn!("a scheduler did not get through: {error}"),
                },
            }
        }
    }

    /// A batch that is here already.
    pub(crate) fn try_batch(&mut self) -> Option<TokenBatch> {
        // An error is met again by `next`.
        let batch = self.link.as_mut()?.receiver.try_recv().ok().flatten()?;
        Some(self.counted(batch))
    }

    fn counted(&mut self, batch: TokenBatch) -> TokenBatch {
        self.batches += 1;
        self.confirm |= !(batch.finished.is_empty() && batch.failed.is_empty());
        batch
    }

    /// Tells the scheduler which sequences are to end, and which of its batches are taken in where requests ended in
    /// them. Never waits: what finds no room now goes with the next.
    pub(crate) fn reply(&mut self, stopped: &mut Vec<u64>) {
        let Some(link) = &mut self.link else { return stopped.clear() };
        self.stopped.append(stopped);
        if self.stopped.is_empty() && !self.confirm {
            return;
        }
        let reply = DetokenizerReply { stopped: std::mem::take(&mut self.stopped), batches: self.batches };
        // A lost link is met by `next`.
        match link.sender.try_send(&reply) {
            Ok(false) => self.stopped = reply.stopped,
            Ok(true) | Err(_) => self.confirm = false,
        }
    }

    fn connected(&mut self, link: Link<DetokenizerReply, TokenBatch>) -> FromScheduler {
        let pid = link.peer.pid;
        self.stopped.clear();
        (self.batches, self.confirm) = (0, false);
        let replaced = self.link.replace(link).is_some();
        FromScheduler::Connected { pid, replaced }
    }

    fn lost(&mut self, reason: LinkError) -> FromScheduler {
        self.link = None;
        FromScheduler::Lost(reason)
    }
}

/// Listens for the scheduler or for gateways.
pub(crate) async fn listen(
    address: &link::Address,
    channel: &str,
    fingerprint: &str,
    options: LinkOptions,
) -> Result<Listener, LinkError> {
    Listener::bind(address, link::hello("detokenizer-svc", channel, fingerprint), options).await
}
