//! `GET /v1/models`, and one of them by its name.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::Response,
    routing::get,
};
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    api::operation::{Answer, Errors, Operation, Route, When},
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
    let cards: Vec<Value> = gateway.config.served_names.iter().map(|name| card(&gateway, name)).collect();
    json_response(StatusCode::OK, json!({ "object": "list", "data": cards }).to_string())
}

async fn retrieve(State(gateway): State<Arc<Gateway>>, Path(name): Path<String>) -> Result<Response, ApiError> {
    if gateway.config.served_names.contains(&name) {
        return Ok(json_response(StatusCode::OK, card(&gateway, &name).to_string()));
    }
    Err(ApiError {
        param: Some("model".into()),
        ..ApiError::new(Fault::NotFound, format!("The model `{name}` does not exist."))
    })
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
