//! The gateways' links, as one queue of events.

use std::time::Duration;

use link::{Hello, Link, LinkError, LinkOptions, Listener};
use proto::Inbound;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};
use tracing::warn;

use crate::config::Args;

/// Messages that may wait to be handled. Readers stop reading when it is full, and the rings behind them fill.
const QUEUE: usize = 1024;
/// A port or socket that this process has just let go may be taken again after at most this long.
const REBIND: Duration = Duration::from_secs(2);

/// What a gateway did.
pub(crate) enum FromGateway {
    Connected { gateway: u64, connection: u64, pid: u32 },
    Sent { gateway: u64, message: Box<Inbound> },
    Lost { gateway: u64, connection: u64, reason: LinkError },
}

/// All gateways' links. Dropping it hangs up on them.
pub(crate) struct Gateways {
    listener: Listener,
    readers: JoinSet<()>,
    events: mpsc::Sender<FromGateway>,
    queue: mpsc::Receiver<FromGateway>,
    connections: u64,
}

impl Gateways {
    /// Listens for gateways.
    pub(crate) async fn listen(args: &Args, links: &LinkOptions) -> Result<Self, LinkError> {
        let hello = link::hello("tokenizer-svc", "requests", &args.fingerprint.model_fingerprint);
        let hello = Hello { server: args.server.server_id, ..hello };
        let began = Instant::now();
        let listener = loop {
            match Listener::bind_all(&args.listen, hello.clone(), links.clone()).await {
                Ok(listener) => break listener,
                Err(error) if began.elapsed() > REBIND => return Err(error),
                // The previous listener's socket is being closed by another task, which does not say when.
                Err(_) => sleep(Duration::from_millis(20)).await,
            }
        };
        let (events, queue) = mpsc::channel(QUEUE);
        Ok(Self { listener, readers: JoinSet::new(), events, queue, connections: 0 })
    }

    /// What happens next. Cancel-safe.
    pub(crate) async fn next(&mut self) -> FromGateway {
        loop {
            tokio::select! {
                link = self.listener.accept::<Inbound, Inbound>() => match link {
                    Ok(link) => return self.connected(link),
                    Err(error) => warn!("a gateway did not get through: {error}"),
                },
                Some(event) = self.queue.recv() => return event,
                Some(_) = self.readers.join_next() => {}
            }
        }
    }

    /// What has happened already.
    pub(crate) fn try_next(&mut self) -> Option<FromGateway> {
        self.queue.try_recv().ok()
    }

    fn connected(&mut self, link: Link<Inbound, Inbound>) -> FromGateway {
        self.connections += 1;
        let (gateway, connection, pid) = (link.peer.instance, self.connections, link.peer.pid);
        self.readers.spawn(read(link, connection, self.events.clone()));
        FromGateway::Connected { gateway, connection, pid }
    }
}

async fn read(link: Link<Inbound, Inbound>, connection: u64, events: mpsc::Sender<FromGateway>) {
    // The sender is never used, but dropping it would end the link.
    let Link { peer, sender: _open, mut receiver } = link;
    let gateway = peer.instance;
    loop {
        let event = match receiver.recv().await {
            Ok(message) => FromGateway::Sent { gateway, message: Box::new(message) },
            Err(reason) => FromGateway::Lost { gateway, connection, reason },
        };
        let last = matches!(event, FromGateway::Lost { .. });
        if events.send(event).await.is_err() || last {
            return;
        }
    }
}
