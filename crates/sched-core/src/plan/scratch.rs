//! What planning keeps from plan to plan.

use crate::{blocks::table::Table, requests::queue::QueueKey};

/// Buffers and notes that live from plan to plan.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// Running sequences with more than one token to compute.
    pub prefills: Vec<u32>,
    /// Blocks that a new request shares, by group.
    pub shared: Vec<Table>,
    /// Requests whose prompt the current plan completes.
    pub prompts_done: Vec<u32>,
    /// The queue's head and the pool's release count when it last did not fit: until either changes, neither does the
    /// answer, and a long prompt's cache lookup is spared.
    pub blocked: Option<(QueueKey, u64)>,
}
