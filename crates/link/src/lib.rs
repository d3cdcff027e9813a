//! One typed, bounded channel between two processes: a shared-memory ring on one host, a gRPC stream across hosts.
//!
//! The address chooses the transport; everything else is the same for both:
//!
//! - A [`Listener`] and a dialer ([`connect`], [`redial`]) exchange a [`Hello`] each. Different protocol versions,
//!   different channels, or two known but different models are refused with a reason that both sides log.
//! - Messages arrive in order, once, and whole. A full link makes [`Sender::send`] wait, up to its deadline.
//! - Over TCP, both may share a [`Token`], or show certificates of one authority ([`Tls`]): a stranger gets nothing.
//! - However the peer ends (in order, by kill -9, with its host), [`Receiver::recv`] first gives what it had sent and
//!   then [`LinkError::PeerGone`]; a sender that waits for room learns it too. Over gRPC, what a killed peer had sent
//!   may be lost from its own buffers; what arrived is in order and whole.
//! - `send` and `recv` are cancel-safe: they may stand in `tokio::select!`.

mod address;
mod arrivals;
mod error;
mod grpc;
mod handshake;
mod hello;
mod link;
mod listener;
mod options;
mod queue;
mod redial;
mod ring;
mod split;
mod stream;
mod tcp;
mod unix;

pub use address::Address;
pub use error::LinkError;
pub use hello::hello;
pub use link::{Link, Receiver, Sender};
pub use listener::{Listener, connect};
pub use options::LinkOptions;
pub use proto::Hello;
pub use redial::redial;
pub use split::split;
pub use tcp::channel::{Channel, ShowToken, channel};
pub use tcp::guard::Guard;
pub use tcp::socket::{Peer, Socket};
pub use tcp::tls::{Tls, TlsError, TlsFile, TlsFiles};
pub use tcp::token::{Token, TokenError};
