//! Messages and services that Quire's processes exchange, generated from `quire/v1/*.proto`.
//!
//! The comments of the `.proto` files are the reference: read those.

/// Version of the messages on all links; two ends that differ refuse each other.
pub const PROTOCOL_VERSION: u32 = 5;

/// Tokens that a grammar may force behind one that is sampled, in one row's outcome.
pub const MOST_FORCED_TOKENS: u32 = 64;

mod ready;
mod step;
mod stream;

/// The package `quire.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic)]
pub mod v1 {
    tonic::include_proto!("quire.v1");
}

pub use v1::*;
