//! A task a link: it connects, and moves rows between the link and the compute thread.

use std::{sync::Arc, time::Duration};

use link::{Hello, Link, LinkOptions, Listener};
use proto::StageRows;
use tokio::{
    sync::{Mutex, mpsc},
    time::timeout,
};
use tracing::{debug, warn};

use super::{Brought, parse};

/// How long a dialer may take to say which group it is of.
const FIRST_WORD: Duration = Duration::from_secs(5);

type StageLink = Link<StageRows, StageRows>;

/// The compute thread's ends of a link to the next stage.
pub(super) struct Outgoing {
    pub outgoing: mpsc::Receiver<StageRows>,
    pub says: mpsc::Sender<Brought>,
}

/// The stage before, that is to dial.
pub(super) struct Awaited {
    pub rank: u32,
    pub epoch: u64,
    /// How long it may take.
    pub wait: Duration,
}

/// Waits for the stage before, then brings its rows until the link ends.
pub(super) async fn receive(listener: Arc<Mutex<Listener>>, awaited: Awaited, out: mpsc::Sender<Brought>) {
    let Awaited { rank, epoch, wait } = awaited;
    let found = timeout(wait, arrival(&listener, rank, epoch)).await;
    let Ok(StageLink { sender: _open, mut receiver, .. }) = found else {
        let _ = out.send(Err(format!("it has not dialled within {} s", wait.as_secs()))).await;
        return;
    };
    debug!(rank, epoch, "the stage before is connected");
    // A closed queue: the group is over.
    if out.send(Ok(StageRows { epoch, ..StageRows::default() })).await.is_err() {
        return;
    }
    loop {
        let brought = receiver.recv().await.map_err(|error| error.to_string());
        let is_over = brought.is_err();
        if out.send(brought).await.is_err() || is_over {
            return;
        }
    }
}

/// The link of this rank and epoch; all others are dropped.
async fn arrival(listener: &Mutex<Listener>, rank: u32, epoch: u64) -> StageLink {
    let mut listener = listener.lock().await;
    loop {
        let mut link: StageLink = match listener.accept().await {
            Ok(link) => link,
            Err(error) => {
                warn!("the stage before did not get through: {error}");
                continue;
            }
        };
        let first = timeout(FIRST_WORD, link.receiver.recv()).await;
        match first {
            Ok(Ok(rows)) if rows.epoch == epoch && link.peer.rank == rank => return link,
            _ => debug!(rank = link.peer.rank, "a link of another group is dropped"),
        }
    }
}

/// Whom to dial, and how.
pub(super) struct Dialer {
    /// Where the next stage says that it listens.
    pub address: String,
    pub hello: Hello,
    pub options: LinkOptions,
}

/// Dials the next stage, then takes rows to it until the link or the group ends.
pub(super) async fn send(dialer: Dialer, epoch: u64, Outgoing { mut outgoing, says }: Outgoing) {
    let ended = async {
        let Dialer { address, hello, options } = dialer;
        let address = parse(&address)?;
        // A send waits as long as a group does at all.
        let dialled = timeout(options.send_deadline, link::redial(&address, hello, &options)).await;
        let waited = options.send_deadline.as_secs();
        let StageLink { mut sender, mut receiver, .. } =
            dialled.map_err(|_| format!("it does not answer at {address} within {waited} s"))?;
        sender.send(&StageRows { epoch, ..StageRows::default() }).await.map_err(|error| error.to_string())?;
        let _ = says.send(Ok(StageRows::default())).await;
        loop {
            tokio::select! {
                rows = outgoing.recv() => match rows {
                    Some(rows) => sender.send(&rows).await.map_err(|error| error.to_string())?,
                    None => return Ok(()),
                },
                // It never sends anything, but its end is heard.
                said = receiver.recv() => match said {
                    Ok(_) => {}
                    Err(error) => return Err(error.to_string()),
                },
            }
        }
    };
    let ended: Result<(), String> = ended.await;
    if let Err(reason) = ended {
        let _ = says.send(Err(reason)).await;
    }
}
