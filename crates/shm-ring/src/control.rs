//! The words that both sides share, and how a ring lies in memory.
//!
//! ```text
//! byte 0      ┌───────────────────────────────────────────────────────────┐
//!             │ identity: magic, version, capacity        (segments only) │
//!        128  ├───────────────────────────────────────────────────────────┤
//!             │ tail: bytes ever published              producer writes   │
//!        256  ├───────────────────────────────────────────────────────────┤
//!             │ head: bytes ever consumed               consumer writes   │
//!        384  ├───────────────────────────────────────────────────────────┤
//!             │ consumer: waiting, closed               rarely written    │
//!        512  ├───────────────────────────────────────────────────────────┤
//!             │ producer: waiting, closed               rarely written    │
//!       4096  ├───────────────────────────────────────────────────────────┤
//!             │ data: `capacity` bytes, a power of two                    │
//!             │                                                           │
//!             │        head                        tail       staged      │
//!             │          ▼                           ▼           ▼        │
//!             │ ░░░░░░░░░┌────┬───────┬──┬────┬──────┬───────────┬░░░░░░░ │
//!             │   free   │len │payload│pd│len │ …    │unpublished│  free  │
//!             │ ░░░░░░░░░└────┴───────┴──┴────┴──────┴───────────┴░░░░░░░ │
//!             └───────────────────────────────────────────────────────────┘
//! ```
//!
//! Positions count bytes since the ring was made and never wrap in practice (2^64); a byte's place is its position
//! modulo the capacity. A record is a `u32` length, the payload, and padding to 8 bytes, so a length word never lies
//! across the end; a payload may, and is then copied in two pieces. Each word that changes often has a pair of cache
//! lines to itself (128 bytes: processors prefetch lines in pairs). The `waiting` words live apart from the
//! positions, because each publish reads one and it seldom changes.

use crate::sync::{AtomicU32, AtomicU64};

/// A position, alone in its pair of cache lines.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(crate) struct Position(pub(crate) AtomicU64);

/// Whether one side sleeps or has left.
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub(crate) struct Side {
    /// 1 while the side sleeps, or is about to; whoever takes it to 0 must wake it.
    pub(crate) waiting: AtomicU32,
    /// 1 once the side has left in order.
    pub(crate) closed: AtomicU32,
}

/// The shared words of a ring. All zero is a valid, empty ring.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Control {
    pub(crate) tail: Position,
    pub(crate) head: Position,
    pub(crate) consumer: Side,
    pub(crate) producer: Side,
}
