//! Waiting for peers, and dialling them.

use std::io;

use prost::Message;
use proto::Hello;
use tokio::sync::mpsc;

use crate::{
    address::Address,
    arrivals::{Arrivals, Listening},
    error::LinkError,
    grpc,
    link::{Established, Link},
    options::LinkOptions,
    ring,
};

/// Links that wait for `accept` at a time; more callers wait in their handshake.
const WAITING: usize = 16;

/// Waits for peers at one address or several.
pub struct Listener {
    established: mpsc::Receiver<Established>,
    /// One for each address.
    listening: Vec<Listening>,
    options: LinkOptions,
}

impl Listener {
    /// Listens at `address`, announcing `hello`. Replaces a socket file that a dead process left.
    pub async fn bind(address: &Address, hello: Hello, options: LinkOptions) -> Result<Self, LinkError> {
        Self::bind_all(std::slice::from_ref(address), hello, options).await
    }

    /// The same at each of these addresses, of which there is one at least.
    pub async fn bind_all(addresses: &[Address], hello: Hello, options: LinkOptions) -> Result<Self, LinkError> {
        if addresses.is_empty() {
            return Err(LinkError::Address { text: String::new() });
        }
        let (links, established) = mpsc::channel(WAITING);
        let mut listening = Vec::with_capacity(addresses.len());
        for address in addresses {
            let arrivals = Arrivals::new(hello.clone(), options.clone(), links.clone());
            listening.push(match address {
                Address::Ring(path) => ring::listen(path, arrivals).await?,
                Address::Grpc(host) => grpc::listen_tcp(host, arrivals).await?,
                Address::GrpcUnix(path) => grpc::listen_unix(path, arrivals).await?,
            });
        }
        Ok(Self { established, listening, options })
    }

    /// Where it listens: with the real port, when port 0 was asked for. Of several addresses the first.
    pub fn address(&self) -> &Address {
        // There is one: see `bind_all`.
        &self.listening[0].address
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
