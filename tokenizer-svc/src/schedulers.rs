//! The schedulers' links, as one queue of events. Each is redialled for ever.

use link::{Address, Hello, Link, LinkError, LinkOptions, Sender};
use proto::{EngineReport, Inbound};
use tokio::{sync::mpsc, task::JoinSet};

use crate::config::Args;

/// Events that may wait to be handled. Readers stop reading when it is full, and the rings behind them fill.
const QUEUE: usize = 1024;

/// What a scheduler did.
pub(crate) enum FromScheduler {
    /// It is there (again).
    Up { engine: usize, pid: u32, sender: Sender<Inbound> },
    /// It says what happened in its engine.
    Reported { engine: usize, report: Box<EngineReport> },
    /// Its link ended.
    Lost { engine: usize, reason: LinkError },
}

/// All schedulers' links. Dropping it hangs up on them.
pub(crate) struct Schedulers {
    events: mpsc::Receiver<FromScheduler>,
    _dialers: JoinSet<()>,
}

impl Schedulers {
    /// Dials every scheduler.
    pub(crate) fn dial(args: &Args, links: &LinkOptions) -> Self {
        let hello = link::hello("tokenizer-svc", "requests", &args.fingerprint.model_fingerprint);
        let (send, events) = mpsc::channel(QUEUE);
        let mut dialers = JoinSet::new();
        for (engine, address) in args.scheduler.iter().cloned().enumerate() {
            let dialer = Dialer { engine, address, hello: hello.clone(), links: links.clone() };
            dialers.spawn(dialer.keep(send.clone()));
        }
        Self { events, _dialers: dialers }
    }

    /// What happens next. Cancel-safe.
    pub(crate) async fn next(&mut self) -> FromScheduler {
        match self.events.recv().await {
            Some(event) => event,
            // The dialers never end.
            None => std::future::pending().await,
        }
    }

    /// What has happened already.
    pub(crate) fn try_next(&mut self) -> Option<FromScheduler> {
        self.events.try_recv().ok()
    }
}

/// Dials one scheduler.
struct Dialer {
    engine: usize,
    address: Address,
    hello: Hello,
    links: LinkOptions,
}

impl Dialer {
    /// Keeps the link.
    async fn keep(self, events: mpsc::Sender<FromScheduler>) {
        let Self { engine, address, hello, links } = self;
        loop {
            let link = link::redial::<Inbound, EngineReport>(&address, hello.clone(), &links).await;
            let Link { peer, sender, mut receiver } = link;
            let mut event = FromScheduler::Up { engine, pid: peer.pid, sender };
            loop {
                let over = matches!(event, FromScheduler::Lost { .. });
                if events.send(event).await.is_err() {
                    return;
                }
                if over {
                    break;
                }
                event = match receiver.recv().await {
                    Ok(report) => FromScheduler::Reported { engine, report: Box::new(report) },
                    Err(reason) => FromScheduler::Lost { engine, reason },
                };
            }
        }
    }
}
