//! Failures that a request can meet here, in the words that its client reads.

use proto::{Failure, failure::Kind};
use tokenizer::TokenizerError;

/// The engine behind all requests is lost.
pub(crate) fn engine_lost() -> Failure {
    let message = "The engine was lost while it served the request. Try again.".into();
    Failure { kind: Kind::Unavailable.into(), message, param: String::new() }
}

/// The process is ending.
pub(crate) fn ending() -> Failure {
    Failure { kind: Kind::Unavailable.into(), message: "The server is shutting down.".into(), param: String::new() }
}

/// One event is larger than any message can be: of a prompt that is echoed, or of the log-probabilities of a single
/// position.
pub(crate) fn too_large(bytes: usize, limit: usize) -> Failure {
    let message = format!(
        "The answer is too large: a part of it that cannot be divided has {bytes} bytes, the limit is {limit}. Ask for \
         fewer log-probabilities, or send a shorter prompt where its text is asked for."
    );
    Failure { kind: Kind::Invalid.into(), message, param: String::new() }
}

/// The end of the prompt cannot be decoded, so neither can what follows.
pub(crate) fn undecodable(error: &TokenizerError) -> Failure {
    Failure { kind: Kind::Internal.into(), message: error.to_string(), param: String::new() }
}
