//! Peers that call: a bounded number of handshakes at a time, and links waiting to be accepted.

use std::io;

use proto::Hello;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
    time::{Duration, timeout},
};

use crate::{address::Address, error::LinkError, link::Established, options::LinkOptions, unix::SocketFile};

/// Handshakes that run at a time; more callers wait, under their deadline.
const HANDSHAKES: usize = 256;

/// A transport that accepts peers, until it is dropped.
pub(crate) struct Listening {
    pub(crate) accepting: JoinHandle<()>,
    pub(crate) address: Address,
    /// Removed when the listener goes.
    #[allow(dead_code, reason = "held for its drop")]
    pub(crate) file: Option<SocketFile>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// What a transport's accepting task knows, and where it puts the links that come about.
pub(crate) struct Arrivals {
    /// What the listener says of itself.
    pub(crate) hello: Hello,
    pub(crate) options: LinkOptions,
    links: mpsc::Sender<Established>,
    handshakes: Semaphore,
}

impl Arrivals {
    pub(crate) fn new(hello: Hello, options: LinkOptions, links: mpsc::Sender<Established>) -> Self {
        Self { hello, options, links, handshakes: Semaphore::new(HANDSHAKES) }
    }

    /// Waits until `accept` can take one link more.
    pub(crate) async fn place(&self) -> Result<mpsc::Permit<'_, Established>, LinkError> {
        self.links.reserve().await.map_err(|_| LinkError::PeerGone)
    }

    /// Runs one handshake under the deadline, beside a bounded number of others, and logs how it failed.
    pub(crate) async fn supervise<T>(
        &self,
        handshake: impl Future<Output = Result<T, LinkError>>,
    ) -> Result<T, LinkError> {
        let shaking = async {
            // Never closed, so never an error.
            let _slot = self.handshakes.acquire().await.map_err(|_| LinkError::PeerGone)?;
            handshake.await
        };
        let outcome = timeout(self.options.connect_deadline, shaking)
            .await
            .unwrap_or(Err(LinkError::Deadline { doing: "shaking hands" }));
        if let Err(error) = &outcome {
            log(&self.hello.channel, error);
        }
        outcome
    }
}

/// Logs that accepting failed and gives the cause, such as too many open files, time to pass.
pub(crate) async fn accept_failed(channel: &str, error: &io::Error) {
    tracing::warn!(channel, %error, "cannot accept a peer");
    // No event tells when a descriptor becomes free.
    tokio::time::sleep(Duration::from_millis(100)).await;
}

fn log(channel: &str, error: &LinkError) {
    match error {
        LinkError::Refused { reason } => tracing::warn!(channel, reason, "refused a peer"),
        // Somebody looked whether this listener lives.
        LinkError::PeerGone => tracing::debug!(channel, "a peer left during its handshake"),
        error => tracing::warn!(channel, %error, "a handshake failed"),
    }
}
