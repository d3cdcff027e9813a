//! What can go wrong with a ring, with the data that tells whose fault it is.

/// Why a ring did not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RingError {
    /// The record can never fit.
    #[error("a record of {bytes} bytes does not fit a ring that takes {limit}")]
    TooLarge {
        /// Size of the record.
        bytes: usize,
        /// Largest record of this ring.
        limit: usize,
    },
    /// The other side is gone, and all that it had published has been read.
    #[error("the peer is gone")]
    Gone,
    /// The other side wrote a position or length that cannot be.
    #[error("the peer corrupted the ring: {what} is {value}")]
    Corrupt {
        /// Which word is wrong.
        what: &'static str,
        /// What it holds.
        value: u64,
    },
    /// What the other side handed over is no ring of this version.
    #[error("not a ring of this version: {what} is {found}, not {expected}")]
    Foreign {
        /// Which field is wrong.
        what: &'static str,
        /// What it holds.
        found: u64,
        /// What it should hold.
        expected: u64,
    },
    /// The operating system said no.
    #[error("{doing}: {source}")]
    Io {
        /// What was tried.
        doing: &'static str,
        /// Its error.
        source: std::io::Error,
    },
}

#[cfg(not(loom))]
impl RingError {
    /// Wraps an error of the operating system with what was tried.
    pub(crate) fn io(doing: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        move |source| Self::Io { doing, source }
    }
}
