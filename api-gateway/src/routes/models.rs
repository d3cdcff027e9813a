//! `GET /v1/models`, and one of them by its name.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::Response,
    routing::get,
};
use http::StatusCode;
use proto::ServedAdapter;
use serde_json::{Value, json};

use crate::{
    api::operation::{Answer, Errors, Operation, Route, When},
    engine::adapters,
    error::{ApiError, Fault, json_response},
    gateway::Gateway,
};

/// The list.
pub const ROUTE: Route = Route {
    path: "/v1/models",
    handlers: || get(list),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "The served models",
        answer: Answer::Json("ModelList"),
        ..Operation::get("list_models")
    }],
};

/// One model.
pub const ONE: Route = Route {
    path: "/v1/models/{*model}",
    handlers: || get(retrieve),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "One served model",
        answer: Answer::Json("Model"),
        errors: Errors::of(&[Fault::NotFound]),
        ..Operation::get("retrieve_model")
    }],
};

async fn list(State(gateway): State<Arc<Gateway>>) -> Response {
    let mut cards: Vec<Value> = gateway.config.served_names.iter().map(|name| card(&gateway, name)).collect();
    match adapters::list(&gateway, "").await {
        Ok(adapters) => cards.extend(adapters.iter().map(|adapter| adapter_card(&gateway, adapter))),
        // The model is served all the same.
        Err(error) => tracing::warn!("the list of models is without adapters: {error}"),
    }
    json_response(StatusCode::OK, json!({ "object": "list", "data": cards }).to_string())
}

async fn retrieve(State(gateway): State<Arc<Gateway>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    if gateway.config.served_names.contains(&name) {
        return Ok(json_response(StatusCode::OK, card(&gateway, &name).to_string()));
    }
    let adapters = adapters::list(&gateway, &name).await?;
    if let Some(adapter) = adapters.iter().find(|adapter| adapter.name == name) {
        return Ok(json_response(StatusCode::OK, adapter_card(&gateway, adapter).to_string()));
    }
    Err(ApiError {
        param: Some("model".into()),
        ..ApiError::new(Fault::NotFound, format!("The model `{name}` does not exist."))
    })
}

/// An adapter's card: its root is its folder, its parent the model.
fn adapter_card(gateway: &Gateway, adapter: &ServedAdapter) -> Value {
    let mut card = card(gateway, &adapter.name);
    let base = gateway.config.model_name();
    card["root"] = adapter.path.as_str().into();
    card["parent"] = if adapter.base_model_name.is_empty() { base } else { &adapter.base_model_name }.into();
    card["max_model_len"] = Value::Null;
    card
}

/// vLLM's ModelCard. Where there is no prefix cache, it says why.
fn card(gateway: &Gateway, name: &str) -> Value {
    let root = if gateway.config.answers.model.is_empty() { name } else { &gateway.config.answers.model };
    let mut card = json!({
        "id": name,
        "object": "model",
        "created": gateway.started,
        "owned_by": "vllm",
        "root": root,
        "parent": null,
        "max_model_len": gateway.model.max_model_len(),
        "permission": [{
            "id": format!("modelperm-{}", uuid::Uuid::new_v4().simple()),
            "object": "model_permission",
            "created": gateway.started,
            "allow_create_engine": false,
            "allow_sampling": true,
            "allow_logprobs": true,
            "allow_search_indices": false,
            "allow_view": true,
            "allow_fine_tuning": false,
            "organization": "*",
            "group": null,
            "is_blocking": false,
        }],
    });
    if let Some(reason) = gateway.model.prefix_cache_off() {
        card["prefix_cache_off"] = reason.into();
    }
    card
}
