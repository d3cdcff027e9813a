//! Adapters: the scheduler knows which are served; this gateway remembers their names, and asks again when a request
//! names one that it does not know.

use futures::future::join_all;
use proto::{Failure, ListAdaptersReply, ServeAdapterRequest, ServedAdapter};

use service_kit::control::ControlClient;

use crate::{
    error::{ApiError, Fault},
    gateway::Gateway,
    openai::{fields::Fields, params::Limits},
};

/// Reads a body, which no route can do in another way; where it names a model that this gateway does not know, asks for
/// it and reads once more.
pub async fn read_with<T>(
    gateway: &Gateway,
    body: &[u8],
    read: impl Fn(&Limits) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    if let Some(limits) = limits_of_own_tokens(gateway, body).await? {
        return read(&limits);
    }
    let refused = match read(&gateway.model.limits()) {
        Err(refused) if is_unknown_model(&refused) && gateway.config.access.enable_lora => refused,
        result => return result,
    };
    let named = Fields::parse(body).and_then(|mut fields| fields.text("model"));
    let Ok(Some(name)) = named else { return Err(refused) };
    match resolve(gateway, &name).await? {
        ListAdaptersReply { failure: Some(failure), .. } => Err(failure.into()),
        reply if reply.adapters.iter().any(|adapter| adapter.name == name) => read(&gateway.model.limits()),
        _ => Err(refused),
    }
}

/// What a body is checked against that names an adapter, where adapters may have tokens of their own. The scheduler is
/// asked each time: another gateway may have had the adapter loaded again, with another tokenizer.
async fn limits_of_own_tokens(gateway: &Gateway, body: &[u8]) -> Result<Option<Limits>, ApiError> {
    if !gateway.model.has_own_tokens() {
        return Ok(None);
    }
    let named = Fields::parse(body).and_then(|mut fields| fields.text("model"));
    let is_adapter = |name: &String| !name.is_empty() && !gateway.config.served_names.contains(name);
    let Some(name) = named.ok().flatten().filter(is_adapter) else { return Ok(None) };
    let reply = resolve(gateway, &name).await?;
    if let Some(failure) = reply.failure {
        return Err(failure.into());
    }
    let limits = Limits::clone(&gateway.model.limits());
    Ok(reply.adapters.into_iter().find(|adapter| adapter.name == name).map(|adapter| Limits {
        vocab_size: if adapter.vocab_size > 0 { adapter.vocab_size } else { limits.vocab_size },
        own_tokenizer: adapter.tokenizer,
        ..limits
    }))
}

fn is_unknown_model(error: &ApiError) -> bool {
    error.fault == Fault::NotFound && error.param.as_deref() == Some("model")
}

/// The adapters that are served; `name`: one to look for first, or empty.
pub async fn list(gateway: &Gateway, name: &str) -> Result<Vec<ServedAdapter>, ApiError> {
    resolve(gateway, name).await.map(|reply| reply.adapters)
}

async fn resolve(gateway: &Gateway, name: &str) -> Result<ListAdaptersReply, ApiError> {
    if !gateway.config.access.enable_lora {
        return Ok(ListAdaptersReply::default());
    }
    // Each engine finds adapters itself; those of the first one that answers are told.
    let replies = join_all(gateway.peers.schedulers().iter().map(|scheduler| scheduler.adapters(name))).await;
    let (replies, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(Result::is_ok);
    let reply = match (replies.into_iter().flatten().next(), refused.into_iter().find_map(Result::err)) {
        (Some(reply), _) => reply,
        (None, Some(status)) => return Err(unavailable(&status)),
        (None, None) => return Ok(ListAdaptersReply::default()),
    };
    gateway.model.learn_adapters(&reply.adapters);
    Ok(reply)
}

/// Serves another adapter.
pub async fn serve(gateway: &Gateway, request: ServeAdapterRequest) -> Result<(), ApiError> {
    let name = request.adapter.as_ref().map_or_else(String::new, |adapter| adapter.name.clone());
    if gateway.config.served_names.contains(&name) {
        return Err(ApiError::field("lora_name", format!("`{name}` is the name of the model itself.")));
    }
    let calls = schedulers(gateway)?.iter().map(|scheduler| scheduler.serve_adapter(request.clone()));
    done(gateway, join_all(calls).await).await
}

/// Serves an adapter no longer.
pub async fn remove(gateway: &Gateway, name: &str) -> Result<(), ApiError> {
    let calls = schedulers(gateway)?.iter().map(|scheduler| scheduler.remove_adapter(name));
    done(gateway, join_all(calls).await).await
}

/// Every engine must have done it; what one of them says against it is the answer.
async fn done(gateway: &Gateway, answers: Vec<Result<Option<Failure>, tonic::Status>>) -> Result<(), ApiError> {
    for answer in answers {
        if let Some(failure) = answer.map_err(|status| unavailable(&status))? {
            return Err(failure.into());
        }
    }
    list(gateway, "").await.map(drop)
}

fn schedulers(gateway: &Gateway) -> Result<&[ControlClient], ApiError> {
    match gateway.peers.schedulers() {
        [] => Err(ApiError::unavailable("The scheduler's address is not configured.")),
        schedulers => Ok(schedulers),
    }
}

fn unavailable(status: &tonic::Status) -> ApiError {
    tracing::warn!(code = ?status.code(), message = status.message(), "the scheduler did not answer");
    ApiError::unavailable("The scheduler is not available, try again.")
}
