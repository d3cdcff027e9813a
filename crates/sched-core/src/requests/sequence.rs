//! One choice of one request: its tokens, its blocks, and how far it is planned.

use crate::{
    blocks::hash::BlockHash,
    blocks::table::Table,
    config::Policy,
    requests::queue::QueueKey,
    requests::request::{self, Request},
};
use ids::{SequenceId, SlotId};

/// Where a sequence is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Status {
    /// A choice whose sibling computes the prompt for it.
    Deferred,
    /// In the queue.
    Waiting,
    /// On the workers.
    Running,
}

/// One choice. Its prompt is in the request; see [`crate::requests::request::Request`].
///
/// ```text
///  position   0 ...... prompt_len ...... known_len      planned_len      limit
///             |  prompt  |  output (known) |  in flight  |   not yet      |
///             |<------ computed (planned rows cover it) ------>|
/// ```
#[derive(Debug)]
pub(crate) struct Sequence {
    // What planning a decode touches comes first.
    /// Number of this start; results of earlier starts are dropped. 0 while not running.
    pub incarnation: u64,
    pub slot: SlotId,
    pub prompt_len: u32,
    /// Positions that plans so far compute.
    pub computed: u32,
    /// Sampled tokens whose value is not known yet.
    pub in_flight: u32,
    /// Tokens it may have, prompt and output together.
    pub limit: u32,
    /// Positions that every table has a block for.
    pub allocated: u32,
    /// The plan with its latest row.
    pub row_in: u64,
    /// By group of layers.
    pub tables: Vec<Table>,
    pub output: Vec<u32>,
    /// Leading blocks of the tables that were offered to the prefix cache in this incarnation.
    pub hashed: u32,
    /// Off for what was running when the cache was reset.
    pub cacheable: bool,
    pub status: Status,

    pub id: SequenceId,
    pub request: u32,
    pub choice: u32,
    pub key: QueueKey,
    pub seed: u64,
    /// The plan that computed the end of the prompt, in this incarnation; 0: none yet. From the next plan on,
    /// siblings may take the prompt's blocks.
    pub prompt_done_in: u64,
    /// Hashes of the full blocks behind the prompt's.
    pub output_hashes: Vec<BlockHash>,
    /// Last prompt position whose log-probabilities went out.
    pub prompt_logprobs_sent: u32,
    pub times: Times,
}

/// When things happened to a choice, microseconds of the caller's clock.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Times {
    pub queued_us: u64,
    pub scheduled_us: Option<u64>,
    pub first_token_us: Option<u64>,
    pub last_token_us: u64,
    pub preemptions: u32,
}

impl Sequence {
    /// Choice number `choice` of `request`, which is at `index` of the request table; with so many block tables.
    pub fn new(index: u32, request: &Request, choice: u32, groups: usize, policy: Policy) -> Self {
        let id = SequenceId(request.first_sequence.0 + u64::from(choice));
        Self {
            incarnation: 0,
            slot: SlotId(0),
            prompt_len: request.prompt.len() as u32,
            computed: 0,
            in_flight: 0,
            limit: request.limit,
            allocated: 0,
            row_in: 0,
            tables: vec![Table::default(); groups],
            output: Vec::new(),
            hashed: 0,
            cacheable: true,
            status: Status::Deferred,
            id,
            request: index,
            choice,
            key: QueueKey::new(policy, request.priority, id.0),
            seed: request::choice_seed(request.seed, choice),
            prompt_done_in: 0,
            output_hashes: Vec::new(),
            prompt_logprobs_sent: 0,
            times: Times { queued_us: request.queued_us, ..Times::default() },
        }
    }

    /// Tokens whose value is known.
    #[inline]
    pub fn known_len(&self) -> u32 {
        self.prompt_len + self.output.len() as u32
    }

    /// Tokens it has once all plans so far have run.
    #[inline]
    pub fn planned_len(&self) -> u32 {
        self.known_len() + self.in_flight
    }

    /// Looks again how far the tables reach.
    pub fn count_allocated(&mut self, block_size: u32) {
        let entries = self.tables.iter().map(Table::len).min().unwrap_or(0);
        self.allocated = entries.saturating_mul(block_size);
    }

    /// Forgets everything that lives on the workers. The caller has freed slot and blocks.
    pub fn forget_workers(&mut self) {
        self.incarnation = 0;
        self.computed = 0;
        self.in_flight = 0;
        self.hashed = 0;
        self.prompt_done_in = 0;
        self.allocated = 0;
        self.row_in = 0;
        self.tables.iter_mut().for_each(|table| table.begin(0));
    }

    /// Whether the workers still have to compute log-probabilities of the prompt. Once for all choices, and not again
    /// after the first token: they come with it at the latest.
    pub fn wants_prompt_logprobs(&self, sampling: &proto::Sampling) -> bool {
        self.choice == 0 && sampling.prompt_logprobs.is_some() && self.output.is_empty()
    }
}
