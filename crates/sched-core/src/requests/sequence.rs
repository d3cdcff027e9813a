//! One choice of one request: its tokens, its blocks, how far it is computed, and how far plans reach.

use crate::{
    blocks::table::Table,
    config::Config,
    flight::{FlightRow, Want},
    requests::queue::QueueKey,
    requests::request::{self, Request, Task},
};
use block_hash::BlockHash;
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
///  tokens      0 ...... prompt_len ...... known_len      planned_len      limit
///              |  prompt  |  output (known) |  in flight  |   not yet      |
///  positions   |<---- computed ---->|<--- scheduled, not confirmed --->|
/// ```
///
/// A plan moves `scheduled`, its result moves `computed`. They meet when nothing is in flight. Rejected drafted tokens
/// move `scheduled` back to `computed`; no plan is on top of them, because such a sequence is `in_order`.
///
/// The output of a request that is pooled counts like a token: one is in flight when the prompt's end is planned, and
/// `limit` is one past the prompt. So `limit - 1` positions are computed at most, whatever the task. Candidates for a
/// beam's next token count so, too; the token itself comes with the plan that continues the beam.
#[derive(Debug)]
pub(crate) struct Sequence {
    /// Number of this start; results of earlier starts are dropped. 0 while not running.
    pub incarnation: u64,
    /// The plan with its latest row.
    pub row_in: u64,
    /// The plan that computed the end of the prompt, in this incarnation; 0: none yet. From the next plan on,
    /// siblings may take the prompt's blocks.
    pub prompt_done_in: u64,
    pub slot: SlotId,
    pub prompt_len: u32,
    /// Positions that plans so far compute.
    pub scheduled: u32,
    /// Positions that results have confirmed.
    pub computed: u32,
    /// Tokens that plans in flight bring at most.
    pub in_flight: u32,
    /// Rows in flight that will give nothing: what they sample came with an earlier row (see `jump.rs`).
    pub silent: u32,
    /// Tokens that plans have told the workers. Only of use where workers are in stages (see `plan/stages.rs`).
    pub told: u32,
    /// Tokens it may have, prompt and output together.
    pub limit: u32,
    /// Positions that every table has a block for.
    pub allocated: u32,
    /// Leading blocks of the tables that were offered to the prefix cache in this incarnation.
    pub hashed: u32,
    /// What the row gives that computes the last of its tokens.
    pub wants: Want,
    pub status: Status,
    /// Where its next row begins depends on what the last one gives, or a stage computes it that does not sample: it
    /// has no row while tokens are in flight.
    pub in_order: bool,
    /// Off for what was running when the cache was reset.
    pub cacheable: bool,

    pub output: Vec<u32>,
    pub id: SequenceId,
    pub request: u32,
    pub choice: u32,
    /// By group of layers.
    pub tables: Vec<Table>,

    pub times: Times,

    /// Tokens that a proposer expects next, for the next row to verify.
    pub draft: Vec<u32>,
    /// Hashes of the full blocks behind the prompt's.
    pub output_hashes: Vec<BlockHash>,
    pub key: QueueKey,
    pub seed: u64,
    /// Last prompt position whose log-probabilities went out.
    pub prompt_logprobs_sent: u32,
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
    /// Choice number `choice` of `request`, which is at `index` of the request table.
    pub fn new(index: u32, request: &Request, choice: u32, config: &Config) -> Self {
        let id = SequenceId(request.first_sequence.0 + u64::from(choice));
        Self {
            incarnation: 0,
            slot: SlotId(0),
            prompt_len: request.prompt.len() as u32,
            scheduled: 0,
            computed: 0,
            in_flight: 0,
            silent: 0,
            told: 0,
            limit: request.limit,
            allocated: 0,
            row_in: 0,
            tables: vec![Table::default(); config.windows.len()],
            output: Vec::new(),
            hashed: 0,
            cacheable: true,
            in_order: request.beams.is_some()
                || (config.speculative_tokens > 0 || config.stages > 1) && request.task == Task::Generate,
            wants: if request.beams.is_some() { Want::Candidates } else { request.task.want() },
            draft: Vec::new(),
            status: Status::Deferred,
            id,
            request: index,
            choice,
            key: QueueKey::new(config.policy, request.priority, id.0),
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

    /// Tokens it has once all plans so far have run, at most.
    #[inline]
    pub fn planned_len(&self) -> u32 {
        self.known_len() + self.in_flight
    }

    /// A result confirmed a row that wants something and gave `tokens` (a pooled output counts as one).
    #[inline]
    pub fn confirm(&mut self, row: &FlightRow, tokens: u32) {
        let drafted = row.want.drafted();
        self.in_flight -= row.want.most();
        self.computed = row.end;
        if drafted > 0 {
            // The last token was only sampled; its keys and values are the next row's.
            self.computed = row.end - drafted + (tokens - 1);
            self.scheduled = self.computed;
        }
    }

    /// Whether confirmed positions fill a block that has not been offered to the prefix cache.
    #[inline]
    pub fn has_full_block(&self, block_size: u32) -> bool {
        (self.hashed + 1) * block_size <= self.computed
    }

    /// Drafted tokens that its next row may verify: one token more than those must be within the limit.
    pub fn draft_len(&self) -> u32 {
        (self.draft.len() as u32).min(self.limit - self.planned_len() - 1)
    }

    /// Looks again how far the tables reach.
    pub fn count_allocated(&mut self, block_size: u32) {
        let entries = self.tables.iter().map(Table::len).min().unwrap_or(0);
        self.allocated = entries.saturating_mul(block_size);
    }

    /// Forgets everything that lives on the workers. The caller has freed slot and blocks.
    pub fn forget_workers(&mut self) {
        self.incarnation = 0;
        self.scheduled = 0;
        self.computed = 0;
        self.in_flight = 0;
        self.silent = 0;
        self.draft.clear();
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
