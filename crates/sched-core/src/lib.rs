//! The scheduler as a state machine: events in, step plans and terminal events out.
//!
//! It is nano-vllm's loop (`waiting`, `running`, a block manager with a hash map) grown up: the same queues and the same
//! block tables, plus what a service needs on top. Read it in this order:
//!
//! 1. [`Config`] and [`Refusal`]: what is accepted.
//! 2. `sequence.rs`, `request.rs`: what is known about one choice, and about the request that its choices share.
//! 3. `blocks.rs`, `prefix.rs`: where KV blocks are, who holds them, which of them can be found again.
//! 4. `plan.rs`, `start.rs`, `room.rs`: what runs next. Decodes, then prompt chunks, then newcomers; what a newcomer shares, and
//!    where blocks come from. `groups.rs`, `table.rs`: layers with a window keep only the blocks that it covers.
//! 5. `complete.rs`: what a finished step means. Tokens, ends, cache entries.
//! 6. `scheduler.rs`: the facade, where all other events come in.
//!
//! There is no clock, socket, thread or random source inside: time (`now_us`, microseconds of any origin) and seeds are
//! arguments, so a run is repeated exactly by repeating its events. `tests/simulation.rs` does so by the million.
//!
//! # The life of a request
//!
//! [`Scheduler::admit`] queues it or refuses it at once. [`Scheduler::plan`] starts it when a slot and blocks for all it
//! knows are free; [`Scheduler::complete`] appends what was sampled and ends it. Everything that others must hear comes
//! out of [`Scheduler::take_output`], where each admitted request ends exactly once: every choice `Finished` (or stopped
//! by the detokenizer, who knows), or the whole request `Failed`.
//!
//! # Why freed blocks and slots can be given away at once
//!
//! With run-ahead, a sequence may be aborted, preempted or finished while a plan that still contains it is on its way to
//! the workers. Its blocks and its slot are nevertheless free immediately. That is safe because workers execute plans
//! strictly in order, and because of three rules:
//!
//! * *Write before read.* A sequence reads only positions that it wrote itself, that it got as a cache hit, or that a
//!   sibling had computed in an earlier plan. A stale row of plan *k* writes before anything of plan *k + 1* runs, so a
//!   new owner (planned in *k + 1* at the earliest) overwrites what the stale row left.
//! * *Cached blocks are never written.* A block becomes findable only in `complete`, when every position in it was really
//!   computed and all its tokens are known. Rows write only behind that point, so neither a live nor a stale row ever
//!   touches a cached block. Aborts, stops and preemptions merely drop blocks that were not yet findable.
//! * *Results are matched by incarnation.* Each start of a sequence draws a new number; results for an older one are
//!   dropped. A slot that is reused gets its `removed` before its `added`, in one plan if need be.
//!
//! A lost group voids all of it: blocks, cache, slots and plans in flight.

mod blocks;
mod complete;
mod config;
mod error;
mod flight;
mod invariants;
mod plan;
mod requests;
mod scheduler;
mod slab;
mod stats;

pub use config::{Config, ConfigError, MixedPrefill, Pipeline, Policy, PrefillBudget};
pub use error::{Broken, ProtocolError, QueueBound, Refusal};
pub use scheduler::Scheduler;
pub use stats::{End, EndCounts, FinishedChoice, Stats, Totals};
