//! All-reduce and friends between the workers of one group.
//!
//! [`Solo`] is a group of one. [`SharedMemory`] joins processes of one host through a segment of shared memory; every
//! wait has a deadline, and an [`AbortHandle`] ends it at once from another thread. [`Threads`] joins threads of one
//! process, in tests and benchmarks. Every sum is added in rank order, so all ranks hold the same bits.

mod abort;
mod segment;
mod shared_memory;
mod solo;
mod threads;
mod turn;

pub use abort::AbortHandle;
pub use shared_memory::{RankPlacement, SharedMemory};
pub use solo::Solo;
pub use threads::Threads;

/// What ranks of a group do together. Every rank makes the same calls in the same order.
///
/// After an error the group is lost: every further call fails too, and the ranks must meet anew under another name.
pub trait Collective: Send {
    /// This process's place in the group, `0 .. world_size`.
    fn rank(&self) -> usize;
    /// Ranks in the group.
    fn world_size(&self) -> usize;
    /// `data = sum over ranks of data`, added in rank order, so that all ranks hold the same bits.
    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError>;
    /// `all = [mine of rank 0 | mine of rank 1 | ...]`.
    fn all_gather(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), CollectiveError>;

    /// The bytes that each rank gave, in rank order. All give as many. For what ranks tell each other once, not in
    /// every step.
    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError>;

    /// Gives bytes to the same rank of the next stage. Of groups that are a stage of a pipeline, but the last one.
    fn give_next(&mut self, bytes: &[u8]) -> Result<(), CollectiveError> {
        let _ = bytes;
        Err(CollectiveError::NoStage { which: "after" })
    }

    /// Waits for what the same rank of the stage before has given next, which is as long. Of groups that are a stage of
    /// a pipeline, but the first one.
    fn take_before(&mut self, bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let _ = bytes;
        Err(CollectiveError::NoStage { which: "before" })
    }
}

/// Why a collective did not finish.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A rank died or left.
    #[error("rank {rank} is gone")]
    PeerGone {
        /// Who.
        rank: usize,
    },
    /// Not all ranks came in time.
    #[error("ranks did not meet within {deadline_ms} ms")]
    Deadline {
        /// The deadline.
        deadline_ms: u64,
    },
    /// This rank or another gave the group up.
    #[error("the group was given up")]
    Aborted,
    /// The caller's buffers do not fit each other.
    #[error("gathering {mine} elements from each of {world_size} ranks into {all}")]
    Sizes {
        /// Elements given.
        mine: usize,
        /// Elements of the target.
        all: usize,
        /// Ranks.
        world_size: usize,
    },
    /// There is no such stage in the pipeline.
    #[error("there is no stage {which} this one")]
    NoStage {
        /// Before or after.
        which: &'static str,
    },
    /// The link to another stage broke, or brought what was not expected.
    #[error("the stage of rank {rank}: {reason}")]
    Stage {
        /// The rank at its other end.
        rank: usize,
        /// What happened.
        reason: String,
    },
    /// Shared memory could not be set up.
    #[error("{doing}: {reason}")]
    Setup {
        /// What was tried.
        doing: &'static str,
        /// What went wrong.
        reason: String,
    },
}
