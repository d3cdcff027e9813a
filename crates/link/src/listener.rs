//! Waiting for peers, and dialling them.

use std::io;

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
    grpc,
    link::{Established, Link},
    options::LinkOptions,
    ring,
    unix::SocketFile,
};

/// Handshakes that run at a time; more callers wait, under their deadline.
const HANDSHAKES: usize = 256;
/// Links that wait for `accept` at a time; more callers wait in their handshake.
const WAITING: usize = 16;

/// Waits for peers at an address.
pub struct Listener {
    established: mpsc::Receiver<Established>,
    listening: Listening,
    options: LinkOptions,
}

/// A transport that accepts peers, until it is dropped.
pub(crate) struct Listening {
    pub(crate) accepting: JoinHandle<()>,
    pub(crate) address: Address,
    /// Removed when the listener goes.
    #[allow(dead_code, reason = "held for its drop")]
    pub(crate) file: Option<SocketFile>,
}

impl Listener {
    /// Listens at `address`, announcing `hello`. Replaces a socket file that a dead process left.
    pub async fn bind(address: &Address, hello: Hello, options: LinkOptions) -> Result<Self, LinkError> {
        let (links, established) = mpsc::channel(WAITING);
        let handshakes = Semaphore::new(HANDSHAKES);
        let arrivals = Arrivals { hello, options: options.clone(), links, handshakes };
        let listening = match address {
            Address::Ring(path) => ring::listen(path, arrivals).await?,
            Address::Grpc(host) => grpc::listen_tcp(host, arrivals).await?,
            Address::GrpcUnix(path) => grpc::listen_unix(path, arrivals).await?,
        };
        Ok(Self { established, listening, options })
    }

    /// Where it listens: with the real port, when port 0 was asked for.
    pub fn address(&self) -> &Address {
        &self.listening.address
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

impl Drop for Listening {
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
        Address::Grpc(_) | Address::GrpcUnix(_) => grpc::connect(address, &hello, options).await?,
    };
    Ok(Link::new(established, options))
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

    /// Logs that accepting failed and gives the cause, such as too many open files, time to pass.
    pub(crate) async fn accept_failed(&self, error: &io::Error) {
        tracing::warn!(channel = self.hello.channel, %error, "cannot accept a peer");
        // No event tells when a descriptor becomes free.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn log(channel: &str, error: &LinkError) {
    match error {
        LinkError::Refused { reason } => tracing::warn!(channel, reason, "refused a peer"),
        // Somebody looked whether this listener lives.
        LinkError::PeerGone => tracing::debug!(channel, "a peer left during its handshake"),
        error => tracing::warn!(channel, %error, "a handshake failed"),
    }
}
