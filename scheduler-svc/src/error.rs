//! Failures that the scheduler hands to clients, in words.

use crate::adapters::LoadFailed;
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

/// What a request names is neither the model nor an adapter.
pub(crate) fn no_such_model(name: &str) -> Failure {
    let message = format!("The model `{name}` does not exist.");
    Failure { kind: Kind::NotFound.into(), message, param: "model".into() }
}

/// No adapter of that name is served.
pub(crate) fn no_such_adapter(name: &str) -> Failure {
    let message = format!("The lora adapter '{name}' cannot be found.");
    Failure { kind: Kind::NotFound.into(), message, param: String::new() }
}

/// The client of a request that had not begun is gone.
pub(crate) fn aborted() -> Failure {
    unavailable("The request was aborted.".into())
}

/// An adapter that was asked for cannot be loaded.
pub(crate) fn not_loaded(name: &str, path: &str, failed: &LoadFailed) -> Failure {
    match failed.not_found {
        true => {
            let message = format!("Loading lora {name} failed: No adapter found for {path}");
            Failure { kind: Kind::NotFound.into(), message, param: String::new() }
        }
        false => invalid(failed.reason.clone()),
    }
}

/// An adapter that a name stands for cannot be loaded.
pub(crate) fn not_resolved(name: &str, failed: &LoadFailed) -> Failure {
    invalid(format!("LoRA adapter '{name}' was found but could not be loaded: {}", failed.reason))
}

/// The prompt of a request was split before its adapter was loaded with another tokenizer.
pub(crate) fn another_tokenizer(name: &str) -> Failure {
    unavailable(format!("The lora adapter '{name}' was loaded with another tokenizer meanwhile; try again."))
}

/// As many wait for adapters as may.
pub(crate) fn busy_loading(most: usize) -> Failure {
    unavailable(format!("{most} calls wait for adapters that are being loaded; try again."))
}

/// An adapter of this name is served.
pub(crate) fn already_loaded(name: &str) -> Failure {
    let message = format!(
        "The lora adapter '{name}' has already been loaded. If you want to load the adapter in place, set \
         'load_inplace' to True."
    );
    Failure { kind: Kind::InvalidUserInput.into(), message, param: String::new() }
}

/// Something that cannot be done as it was asked for.
pub(crate) fn invalid(message: String) -> Failure {
    Failure { kind: Kind::Invalid.into(), message, param: String::new() }
}

fn unavailable(message: String) -> Failure {
    Failure { kind: Kind::Unavailable.into(), message, param: String::new() }
}
