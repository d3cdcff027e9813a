//! End-to-end tests: each starts a real `quire serve` and looks at it from outside, as its users do.
//!
//! `cargo xtask test` builds the command first and runs these one after the other.

mod adapters;
mod beams;
mod clients;
mod deploy;
mod failures;
mod faults;
mod folders;
mod garbage;
mod greedy;
mod hangs;
mod idle;
mod long_prompts;
mod metrics;
mod models;
mod parallel;
#[expect(dead_code, reason = "other tests use all of it")]
#[path = "../../crates/models/tests/loading/pickle.rs"]
mod pickle;
mod pooling;
mod profile;
mod second_workers;
mod smollm2;
mod streaming;
mod structured;
mod surface;
mod traces;
