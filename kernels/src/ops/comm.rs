//! Collectives between the devices of a group's ranks.

use super::{Act, DType};

/// A rank's position in its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankPlacement {
    /// This rank.
    pub rank: usize,
    /// Ranks in the group.
    pub size: usize,
}

/// Another rank could not be reached; whoever provides the [`Exchange`] knows why.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("another rank of the group is gone")]
pub struct ExchangeFailed;

/// Publishes this rank's bytes and returns those of all ranks, in rank order. All ranks give equally many bytes.
pub type Exchange<'a> = &'a mut dyn FnMut(&[u8]) -> Result<Vec<Vec<u8>>, ExchangeFailed>;

/// The way to the same rank of a neighbouring pipeline stage, while a link between their devices is made.
pub enum StageLink<'a> {
    /// To the stage after: gives it bytes.
    After(&'a mut dyn FnMut(&[u8]) -> Result<(), ExchangeFailed>),
    /// From the stage before: waits for as many bytes.
    Before(&'a mut dyn FnMut(&mut [u8]) -> Result<(), ExchangeFailed>),
}

/// Why a communicator could not be initialised.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommError {
    /// The backend leaves to the host what ranks exchange.
    #[error("rank {} of {}: this backend leaves to the host what ranks exchange", .0.rank, .0.size)]
    Unsupported(RankPlacement),
    /// The device was opened for a group of one.
    #[error("this GPU was opened to work alone")]
    OpenedAlone,
    /// The device has a communicator, of this or an earlier group.
    #[error("this GPU was in a group before; only a new process can join another")]
    InitialisedBefore,
    /// Ranks have different versions of the communication library.
    #[error("the ranks have different versions of {0}; install the same everywhere")]
    DifferentVersions(&'static str),
    /// Another rank published something that makes no sense; the text says what was expected.
    #[error("{0}")]
    Protocol(&'static str),
    /// Another rank is gone.
    #[error(transparent)]
    Exchange(#[from] ExchangeFailed),
    /// The communication library failed; the text says at what.
    #[error("{0}")]
    Library(String),
    /// The device failed; the text is its fault.
    #[error("{0}")]
    Device(String),
}

/// Collectives and links between stages on the device. Where a device cannot, the host carries what ranks exchange.
pub trait Comm {
    /// Whether devices of several ranks can communicate ([`Comm::init_comm`]).
    fn can_init_comm(&self) -> bool {
        false
    }

    /// Initialises the communicator that the collectives use. Once in a backend's life; all ranks call it.
    fn init_comm(&mut self, placement: RankPlacement, exchange: Exchange<'_>) -> Result<(), CommError> {
        let _ = exchange;
        Err(CommError::Unsupported(placement))
    }

    /// `x = sum over ranks of x`, the same bits on all of them. Every rank calls it with a buffer of the same shape,
    /// and the same `wire`: the element type that its part may be rounded to on its way.
    fn all_reduce(&mut self, x: Act, wire: DType) {
        unreachable!("{x:?} ({wire:?}) of a backend without a communicator");
    }

    /// `out[row] = [x[row] of rank 0 | x[row] of rank 1 | ...]`, cut to `out`'s width. Called like
    /// [`Comm::all_reduce`].
    fn all_gather(&mut self, x: Act, out: Act) {
        unreachable!("{x:?} and {out:?} of a backend without a communicator");
    }

    /// Initialises the link to the device of a neighbouring stage, which has the other end. Once in a backend's life
    /// for either end; a stage that has both begins with the one before it.
    fn init_stage_link(&mut self, link: StageLink<'_>) -> Result<(), CommError> {
        let _ = link;
        Err(CommError::OpenedAlone)
    }

    /// Gives the first `rows` rows of `x` to the stage after, behind all operations so far. Does not wait.
    fn send(&mut self, x: Act, rows: usize) {
        unreachable!("{rows} rows of {x:?} of a backend without a stage after it");
    }

    /// Makes the first `rows` rows of `x` what the stage before sends next. Operations that follow wait for them, the
    /// host does not.
    fn receive(&mut self, x: Act, rows: usize) {
        unreachable!("{rows} rows of {x:?} of a backend without a stage before it");
    }
}
