//! Adapters: the scheduler knows which are served; this gateway remembers their names, and asks again when a request
//! names one that it does not know.

use proto::{Failure, ListAdaptersReply, ServeAdapterRequest, ServedAdapter};

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
    let Some(scheduler) = gateway.peers.scheduler() else { return Ok(ListAdaptersReply::default()) };
    let reply = scheduler.adapters(name).await.map_err(|status| unavailable(&status))?;
    gateway.model.learn_adapters(&reply.adapters);
    Ok(reply)
}

/// Serves another adapter.
pub async fn serve(gateway: &Gateway, request: ServeAdapterRequest) -> Result<(), ApiError> {
    let name = request.adapter.as_ref().map_or_else(String::new, |adapter| adapter.name.clone());
    if gateway.config.served_names.contains(&name) {
        return Err(ApiError::field("lora_name", format!("`{name}` is the name of the model itself.")));
    }
    let failure = scheduler(gateway)?.serve_adapter(request).await.map_err(|status| unavailable(&status))?;
    done(gateway, failure).await
}

/// Serves an adapter no longer.
pub async fn remove(gateway: &Gateway, name: &str) -> Result<(), ApiError> {
    let failure = scheduler(gateway)?.remove_adapter(name).await.map_err(|status| unavailable(&status))?;
    done(gateway, failure).await
}

async fn done(gateway: &Gateway, failure: Option<Failure>) -> Result<(), ApiError> {
    match failure {
        Some(failure) => Err(failure.into()),
        None => list(gateway, "").await.map(drop),
    }
}

fn scheduler(gateway: &Gateway) -> Result<&service_kit::control::ControlClient, ApiError> {
    gateway.peers.scheduler().ok_or_else(|| ApiError::unavailable("The scheduler's address is not configured."))
}

fn unavailable(status: &tonic::Status) -> ApiError {
    tracing::warn!(code = ?status.code(), message = status.message(), "the scheduler did not answer");
    ApiError::unavailable("The scheduler is not available, try again.")
}
