//! The scheduler as a state machine: events in, step plans and terminal events out.
//!
//! It is nano-vllm's loop (`waiting`, `running`, a block manager with a hash map) grown up: the same queues and the
//! same block tables, plus what a service needs on top. Read it in this order:
//!
//! 1. [`Config`] and [`Refusal`]: what is accepted.
//! 2. `requests/`: `request.rs` has what the choices of a request share, `sequence.rs` one choice: its tokens, what is
//!    computed of it, what is planned. `queue.rs` is their order.
//! 3. `blocks/`: `pool.rs` says who holds which KV block (found again by its [`block_hash`]), `table.rs` which blocks
//!    a sequence has, and `groups.rs` how many it needs where layers have windows.
//! 4. `plan/`: what runs next. `mod.rs` plans decodes, then prompt chunks, then new requests; `start.rs` says what a
//!    new one shares, `allocate.rs` where blocks come from, `adapters.rs` which
//!    adapters the workers hold, `prefill_budget.rs` how many prompt tokens decodes may have
//!    to wait for.
//! 5. `flight.rs`: what is remembered of a plan until its result is there. `complete.rs`: what the result means.
//!    Tokens, accepted drafts, pooled outputs, confirmed positions, ends, cache entries.
//! 6. `beam/`: beam search. `search.rs` decides which beams go on, `plan/beams.rs` how they share blocks.
//! 7. `scheduler.rs`: the facade, where all other events come in. `invariants.rs`: what holds between any two of them.
//!
//! # The five kinds of row
//!
//! A row computes positions of one sequence. Beside that it gives nothing (a prompt that goes on), a sampled token, as
//! many of its drafted tokens as are right and one more, a pooled output, or candidates that may continue a beam.
//! Positions are counted twice: `scheduled` by plans, `computed` by results. A block can be found again when its
//! positions are computed and their tokens are accepted.
//!
//! There is no clock, socket, thread or random source inside: time (`now_us`, microseconds of any origin) and seeds are
//! arguments, so a run is repeated exactly by repeating its events. `tests/simulation.rs` does so by the million.
//!
//! # The life of a request
//!
//! [`Scheduler::admit`] queues it or refuses it at once. [`Scheduler::plan`] starts it when a slot and blocks for all
//! it knows are free; [`Scheduler::complete`] appends what was sampled, or passes on what was pooled, and ends it.
//! Everything that others must hear comes out of [`Scheduler::take_output`], where each admitted request ends exactly
//! once: every choice `Finished` (or stopped by the detokenizer, who knows), or the whole request `Failed`.
//!
//! # Why freed blocks and slots can be given away at once
//!
//! With plans in flight, a sequence may be aborted, preempted or finished while a plan that still contains it is on its
//! way to the workers. Its blocks and its slot are nevertheless free immediately. That is safe because workers execute
//! plans strictly in order, and because of three rules:
//!
//! * *Write before read.* A sequence reads only positions that it wrote itself, that it got as a cache hit, or that a
//!   sibling had computed in an earlier plan. A stale row of plan *k* writes before anything of plan *k + 1* runs, so a
//!   new owner (planned in *k + 1* at the earliest) overwrites what the stale row left.
//! * *Cached blocks are never written.* A block becomes findable only in `complete`, when every position in it was
//!   really computed and all its tokens are accepted. Rows write only behind that point, so neither a live nor a stale
//!   row ever touches a cached block. Rejected drafted tokens lie behind it, too, and the sequence's next row
//!   overwrites them. Aborts, stops and preemptions merely drop blocks that were not yet findable.
//! * *Results are matched by incarnation.* Each start of a sequence draws a new number; results for an older one are
//!   dropped. A slot that is reused gets its `removed` before its `added`, in one plan if need be.
//!
//! A lost group voids all of it: blocks, cache, slots and plans in flight.

mod beam;
mod blocks;
mod complete;
mod config;
mod error;
mod flight;
mod invariants;
mod jump;
mod plan;
mod requests;
mod scheduler;
mod slab;
mod stats;

pub use blocks::changes::{BlockChange, BlockName, StoredBlock};
pub use config::{Config, ConfigError, Features, MixedPrefill, Policy, PrefillBudget};
pub use error::{Broken, DraftRefusal, ProtocolError, QueueBound, Refusal};
pub use plan::adapters::AdapterUse;
pub use scheduler::{History, Scheduler};
pub use stats::{End, EndCounts, FinishedChoice, Stats, Totals};
