//! `GET /v1/models`, and one of them by its name.

use std::sync::Arc;

use axum::{
    extract::{Path, State},
    response::Response,
    routing::get,
};
use http::StatusCode;
use serde_json::{Value, json};

use super::Handlers;
use crate::{
    error::{ApiError, Fault, json_response},
    gateway::Gateway,
};

/// The list's methods.
pub fn route() -> Handlers {
    get(list)
}

/// The methods of one model.
pub fn one() -> Handlers {
    get(retrieve)
}

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
