//! Why a link did not do what was asked, with the data that tells whose fault it is.

use shm_ring::RingError;

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
    /// No TLS link: a certificate is not one of this engine, or one end speaks plain text.
    #[error("no TLS link: {problem}")]
    Tls {
        /// What is wrong, in the words of the end that refused.
        problem: String,
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
    /// The peer broke the rules of the shared memory.
    #[error("the peer broke the ring: {0}")]
    Ring(#[source] RingError),
    /// The peer broke the rules of the stream or of the handshake.
    #[error("the peer broke the protocol: {what}")]
    Protocol {
        /// What it did.
        what: String,
    },
}

impl LinkError {
    /// Wraps an error of the operating system with what was tried.
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}

impl From<RingError> for LinkError {
    fn from(error: RingError) -> Self {
        match error {
            RingError::TooLarge { bytes, limit } => Self::TooLarge { bytes, limit },
            RingError::Gone => Self::PeerGone,
            RingError::Io { doing, source } => Self::Io { doing, source },
            other => Self::Ring(other),
        }
    }
}
