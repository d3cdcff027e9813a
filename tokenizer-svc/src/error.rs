//! Failures that a request can meet here, in the words that its client reads.

use chat_format::ChatError;
use proto::{Failure, failure::Kind};
use router::NoEngine;
use tokenizer::TokenizerError;

/// The request is at fault.
pub(crate) fn invalid(param: &str, message: impl Into<String>) -> Failure {
    Failure { kind: Kind::Invalid.into(), message: message.into(), param: param.into() }
}

/// The chat template refused or failed; nearly always that is the request's doing.
pub(crate) fn chat(error: &ChatError) -> Failure {
    match error.param() {
        Some(param) => invalid(param, error.to_string()),
        None => internal(error.to_string()),
    }
}

/// The text cannot be encoded.
pub(crate) fn encoding(error: &TokenizerError) -> Failure {
    invalid("prompt", error.to_string())
}

/// Too many requests wait here.
pub(crate) fn overloaded() -> Failure {
    let message = "The tokenizer's queue is full. Try again later.".into();
    Failure { kind: Kind::Overloaded.into(), message, param: String::new() }
}

/// The process refuses new work.
pub(crate) fn draining() -> Failure {
    unavailable("The server is shutting down.")
}

/// An abort overtook the encoding.
pub(crate) fn aborted() -> Failure {
    unavailable("The request was aborted.")
}

/// No engine takes a request.
pub(crate) fn no_engine(reason: NoEngine) -> Failure {
    match reason {
        NoEngine::NoSuchRank { .. } => invalid("X-data-parallel-rank", reason.to_string()),
        NoEngine::RankAway { .. } | NoEngine::AllAway => unavailable(&reason.to_string()),
    }
}

/// A request names a rank that the one engine does not have.
pub(crate) fn not_our_rank(rank: u32, ours: u32) -> Failure {
    invalid("X-data-parallel-rank", format!("There is no data-parallel rank {rank}: the one engine here has {ours}."))
}

/// The engine that had a request is lost.
pub(crate) fn engine_lost() -> Failure {
    unavailable("The engine was lost before it began the request. Try again.")
}

/// The process cannot do it now.
pub(crate) fn unavailable(message: &str) -> Failure {
    Failure { kind: Kind::Unavailable.into(), message: message.into(), param: String::new() }
}

/// A bug, or a model folder that is broken.
pub(crate) fn internal(message: impl Into<String>) -> Failure {
    Failure { kind: Kind::Internal.into(), message: message.into(), param: String::new() }
}
