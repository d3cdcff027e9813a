//! All-reduce and friends between the workers of one group.

/// What ranks of a group do together. Every rank makes the same calls in the same order.
pub trait Collective: Send {
    /// This process's place in the group, `0 .. world_size`.
    fn rank(&self) -> usize;
    /// Ranks in the group.
    fn world_size(&self) -> usize;
    /// `data = sum over ranks of data`, added in rank order, so that all ranks hold the same bits.
    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError>;
    /// `all = [mine of rank 0 | mine of rank 1 | ...]`.
    fn all_gather(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), CollectiveError>;
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
    /// Shared memory could not be set up.
    #[error("{doing}: {reason}")]
    Setup {
        /// What was tried.
        doing: &'static str,
        /// What went wrong.
        reason: String,
    },
}
