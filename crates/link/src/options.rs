//! Sizes and deadlines of a link.

use std::time::Duration;

use crate::{tcp::tls::Tls, tcp::token::Token};

/// Sizes and deadlines of a link.
#[derive(Clone, Debug)]
pub struct LinkOptions {
    /// Capacity of each direction, bytes; also bounds one message.
    pub capacity_bytes: usize,
    /// How long a send may wait for room.
    pub send_deadline: Duration,
    /// How long connecting and the handshake may take.
    pub connect_deadline: Duration,
    /// What a peer on another host must show, over `grpc://`. Unix sockets are guarded by their folder's permissions.
    pub token: Option<Token>,
    /// Certificates that both ends of a link over `grpc://` show; absent: plain text.
    pub tls: Option<Tls>,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            capacity_bytes: 8 << 20,
            send_deadline: Duration::from_secs(5),
            connect_deadline: Duration::from_secs(5),
            token: None,
            tls: None,
        }
    }
}

impl LinkOptions {
    /// Bytes of the largest message, encoded, on either transport.
    pub fn message_limit(&self) -> usize {
        self.capacity().saturating_sub(RESERVED)
    }

    /// The capacity that is really used: a ring's is a power of two.
    pub(crate) fn capacity(&self) -> usize {
        self.capacity_bytes.clamp(SMALLEST, LARGEST).next_power_of_two()
    }
}

/// Bytes of the capacity that a record's own length word takes in a ring.
const RESERVED: usize = 8;
/// Smallest capacity: one page.
const SMALLEST: usize = 4 << 10;
/// Largest capacity: a record's length is a `u32`, and nobody wants more.
const LARGEST: usize = 1 << 30;
