//! Bounded single-producer single-consumer rings of byte records in shared memory.
//!
//! [`ring`] holds the protocol, over any [`Memory`]: [`Heap`] for tests, loom and miri, a sealed memfd between
//! processes. [`Sender`] and [`Receiver`] add what a process needs to live with it: wake-up by eventfd, awaited through
//! tokio's `AsyncFd` (no thread polls, no timer ticks), and word of a dead peer. A pair of rings is handed from process
//! to process on a Unix socket: one end calls [`offer`], the other [`take`].
//!
//! The peer is not trusted: its positions and lengths are checked against this side's own, and what does not fit is an
//! error, never a wild read. What a killed writer had not yet published is never seen.

pub mod control;
pub mod error;
pub mod heap;
pub mod memory;
pub mod ring;
mod sync;

#[cfg(not(loom))]
mod channel;
#[cfg(not(loom))]
mod event;
#[cfg(not(loom))]
mod handover;
#[cfg(not(loom))]
mod peer;
#[cfg(not(loom))]
mod segment;
#[cfg(not(loom))]
mod spin;

pub use control::Control;
pub use error::RingError;
pub use heap::Heap;
pub use memory::Memory;
pub use ring::{Consumer, Producer};

#[cfg(not(loom))]
pub use channel::{Receiver, Sender};
#[cfg(not(loom))]
pub use handover::{offer, take};
