//! Failures that the scheduler hands to clients, in words.

use proto::{Failed, Failure, Rejected, Request, failure::Kind, prompt};

/// The scheduler is ending or draining.
pub(crate) fn ending() -> Failure {
    unavailable("The engine is shutting down; try again.".into())
}

/// No worker group is formed.
pub(crate) fn no_workers(waits_for: &str) -> Failure {
    unavailable(format!("The engine is not ready ({waits_for}); try again."))
}

/// The group was lost while requests ran: the message of their failure.
pub(crate) fn workers_lost(reason: &str) -> String {
    format!("The engine lost its workers: {reason}; try again.")
}

/// The detokenizer was lost while requests ran.
pub(crate) fn detokenizer_lost() -> Failure {
    unavailable("The detokenizer was lost; try again.".into())
}

/// A request that the tokenizer refused, as the terminal event it becomes.
pub(crate) fn rejected(rejected: Rejected) -> Failed {
    Failed { key: rejected.key, failure: rejected.failure, request_id: String::new() }
}

/// Tokens of a request's prompt.
pub(crate) fn prompt_tokens(request: &Request) -> usize {
    match request.prompt.as_ref().and_then(|prompt| prompt.kind.as_ref()) {
        Some(prompt::Kind::Ids(ids)) => ids.ids.len(),
        _ => 0,
    }
}

fn unavailable(message: String) -> Failure {
    Failure { kind: Kind::Unavailable.into(), message, param: String::new() }
}
