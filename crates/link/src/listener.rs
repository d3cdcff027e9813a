//! Waiting for peers, and dialling them.

use std::{future::Future, io, sync::Arc};

use prost::Message;
use proto::Hello;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinHandle,
    time::{Duration, timeout},
};

use crate::{
    address::Address,
    error::LinkError,
    link::{Established, Link},
    options::LinkOptions,
    ring,
    unix::SocketFile,
};

/// Handshakes that run at a time; more callers wait in the socket's backlog.
const HANDSHAKES: usize = 64;
/// Links that wait for `accept` at a time; more callers wait in their handshake.
const WAITING: usize = 16;

/// Waits for peers at an address.
pub struct Listener {
    established: mpsc::Receiver<Established>,
    accepting: JoinHandle<()>,
    options: LinkOptions,
    /// Removed when the listener goes.
    _file: Option<SocketFile>,
}

impl Listener {
    /// Listens at `address`, announcing `hello`. Replaces a socket file that a dead process left.
    pub async fn bind(address: &Address, hello: Hello, options: LinkOptions) -> Result<Self, LinkError> {
        let (links, established) = mpsc::channel(WAITING);
        let handshakes = Arc::new(Semaphore::new(HANDSHAKES));
        let arrivals = Arrivals { hello, options: options.clone(), links, handshakes };
        let (accepting, file) = match address {
            Address::Ring(path) => ring::listen(path, arrivals).await.map(|(task, file)| (task, Some(file)))?,
            Address::Grpc(_) | Address::GrpcUnix(_) => return Err(not_yet()),
        };
        Ok(Self { established, accepting, options, _file: file })
    }

    /// The next peer whose handshake succeeded. A peer that is refused or slow in its handshake delays nobody.
    /// Cancel-safe.
    pub async fn accept<S: Message, R: Message + Default>(&mut self) -> Result<Link<S, R>, LinkError> {
        match self.established.recv().await {
            Some(established) => Ok(Link::new(established, &self.options)),
            // The accepting task lives as long as this listener, so this is its runtime shutting down.
            None => Err(LinkError::Io { doing: "accepting", source: io::Error::other("the listener has stopped") }),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

/// Connects to a listener.
pub async fn connect<S: Message, R: Message + Default>(
    address: &Address,
    hello: Hello,
    options: &LinkOptions,
) -> Result<Link<S, R>, LinkError> {
    let established = match address {
        Address::Ring(path) => ring::connect(path, &hello, options).await?,
        Address::Grpc(_) | Address::GrpcUnix(_) => return Err(not_yet()),
    };
    Ok(Link::new(established, options))
}

fn not_yet() -> LinkError {
    LinkError::Io { doing: "connecting", source: io::ErrorKind::Unsupported.into() }
}

/// What a transport's accepting task knows, and where it puts the links that come about.
pub(crate) struct Arrivals {
    /// What the listener says of itself.
    pub(crate) hello: Hello,
    pub(crate) options: LinkOptions,
    links: mpsc::Sender<Established>,
    handshakes: Arc<Semaphore>,
}

impl Arrivals {
    /// Waits until `accept` can take one link more.
    pub(crate) async fn place(&self) -> Result<mpsc::Permit<'_, Established>, LinkError> {
        self.links.reserve().await.map_err(|_| LinkError::PeerGone)
    }

    /// Runs one handshake beside the others, under the deadline, and logs how it failed.
    pub(crate) async fn shake<F>(self: Arc<Self>, handshake: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = Result<(), LinkError>> + Send + 'static,
    {
        // Never closed, so never an error.
        let Ok(slot) = self.handshakes.clone().acquire_owned().await else { return };
        let deadline = self.options.connect_deadline;
        let running = handshake(self);
        tokio::spawn(async move {
            let outcome = timeout(deadline, running).await;
            drop(slot);
            log(outcome.unwrap_or(Err(LinkError::Deadline { doing: "shaking hands" })));
        });
    }

    /// Logs that accepting failed and gives the cause, such as too many open files, time to pass.
    pub(crate) async fn accept_failed(&self, error: &io::Error) {
        tracing::warn!(channel = self.hello.channel, %error, "cannot accept a peer");
        // No event tells when a descriptor becomes free.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn log(outcome: Result<(), LinkError>) {
    match outcome {
        Ok(()) => {}
        Err(LinkError::Refused { reason }) => tracing::warn!(reason, "refused a peer"),
        // Somebody looked whether this listener lives.
        Err(LinkError::PeerGone) => tracing::debug!("a peer left during its handshake"),
        Err(error) => tracing::warn!(%error, "a handshake failed"),
    }
}
