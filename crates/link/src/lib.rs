//! One typed, bounded channel between two processes: a shared-memory ring on one host, a gRPC stream across hosts.
//!
//! The address chooses the transport; everything else is the same for both.

use std::{fmt, marker::PhantomData, path::PathBuf, str::FromStr, time::Duration};

use bytes::Bytes;
pub use proto::Hello;
use prost::Message;

/// Where a link listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// `ring:/path/to.sock`: shared-memory rings, handed over on this Unix socket.
    Ring(PathBuf),
    /// `grpc://host:port`.
    Grpc(String),
    /// `grpc+unix:/path/to.sock`.
    GrpcUnix(PathBuf),
}

impl FromStr for Address {
    type Err = LinkError;
    fn from_str(text: &str) -> Result<Self, LinkError> {
        if let Some(path) = text.strip_prefix("ring:") {
            Ok(Self::Ring(path.into()))
        } else if let Some(rest) = text.strip_prefix("grpc://") {
            Ok(Self::Grpc(rest.to_owned()))
        } else if let Some(path) = text.strip_prefix("grpc+unix:") {
            Ok(Self::GrpcUnix(path.into()))
        } else {
            Err(LinkError::Address { text: text.to_owned() })
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ring(path) => write!(f, "ring:{}", path.display()),
            Self::Grpc(host) => write!(f, "grpc://{host}"),
            Self::GrpcUnix(path) => write!(f, "grpc+unix:{}", path.display()),
        }
    }
}

/// Sizes and deadlines of a link.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Capacity of each direction, bytes; also bounds one message.
    pub capacity_bytes: usize,
    /// How long a send may wait for room.
    pub send_deadline: Duration,
    /// How long connecting and the handshake may take.
    pub connect_deadline: Duration,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            capacity_bytes: 8 << 20,
            send_deadline: Duration::from_secs(5),
            connect_deadline: Duration::from_secs(5),
        }
    }
}

/// Why a link did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// Not an address.
    #[error("`{text}` is not a link address (ring:/path, grpc://host:port or grpc+unix:/path)")]
    Address {
        /// What was given.
        text: String,
    },
    /// The peer refused the handshake.
    #[error("the peer refused the link: {reason}")]
    Refused {
        /// Its words.
        reason: String,
    },
    /// The peer is gone (killed, crashed, unreachable).
    #[error("the peer is gone")]
    PeerGone,
    /// No room, or no answer, within the deadline.
    #[error("deadline passed while {doing}")]
    Deadline {
        /// What was waited for.
        doing: &'static str,
    },
    /// The message can never fit the link.
    #[error("a message of {bytes} bytes does not fit a link of {limit} bytes")]
    TooLarge {
        /// Encoded size.
        bytes: usize,
        /// Largest size.
        limit: usize,
    },
    /// The peer sent bytes that are no message of this link.
    #[error("undecodable message: {0}")]
    Decode(#[from] prost::DecodeError),
    /// The operating system said no.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

/// An established link, seen from one end: sends `S`, receives `R`.
pub struct Link<S, R> {
    /// What the peer said of itself.
    pub peer: Hello,
    /// The outgoing direction.
    pub sender: Sender<S>,
    /// The incoming direction.
    pub receiver: Receiver<R>,
}

/// The outgoing direction of a link. Dropping it ends the link in order.
pub struct Sender<S> {
    message: PhantomData<fn(S)>,
}

impl<S: Message> Sender<S> {
    /// Sends one message, waiting for room until the deadline. Cancel-safe: sent wholly or not at all.
    pub async fn send(&mut self, _message: &S) -> Result<(), LinkError> {
        unimplemented!()
    }

    /// Sends one message if there is room now; `false` when there is none.
    pub fn try_send(&mut self, _message: &S) -> Result<bool, LinkError> {
        unimplemented!()
    }

    /// Sends a message that is already encoded (one plan to many ranks).
    pub async fn send_encoded(&mut self, _message: &Bytes) -> Result<(), LinkError> {
        unimplemented!()
    }
}

/// The incoming direction of a link.
pub struct Receiver<R> {
    message: PhantomData<fn() -> R>,
}

impl<R: Message + Default> Receiver<R> {
    /// The next message. `Err(PeerGone)` after the last one, however the peer ended. Cancel-safe.
    pub async fn recv(&mut self) -> Result<R, LinkError> {
        unimplemented!()
    }

    /// The next message if it is already here.
    pub fn try_recv(&mut self) -> Result<Option<R>, LinkError> {
        unimplemented!()
    }
}

/// Waits for peers at an address.
pub struct Listener {
    _private: (),
}

impl Listener {
    /// Listens at `address`, announcing `hello`. Replaces a socket file that a dead process left.
    pub async fn bind(_address: &Address, _hello: Hello, _options: LinkOptions) -> Result<Self, LinkError> {
        unimplemented!()
    }

    /// The next peer whose handshake succeeded. A peer that is refused or slow in its handshake delays nobody.
    pub async fn accept<S: Message, R: Message + Default>(&mut self) -> Result<Link<S, R>, LinkError> {
        unimplemented!()
    }
}

/// Connects to a listener.
pub async fn connect<S: Message, R: Message + Default>(
    _address: &Address,
    _hello: Hello,
    _options: &LinkOptions,
) -> Result<Link<S, R>, LinkError> {
    unimplemented!()
}

/// Connects, trying again with backoff until it succeeds. Cancel by dropping the future.
pub async fn redial<S: Message, R: Message + Default>(
    _address: &Address,
    _hello: Hello,
    _options: &LinkOptions,
) -> Link<S, R> {
    unimplemented!()
}

/// The `Hello` of this process on a channel; `instance` is drawn once per process.
pub fn hello(_service: &str, _channel: &str, _model_fingerprint: &str) -> Hello {
    unimplemented!()
}
