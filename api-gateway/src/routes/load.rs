//! `GET /load`: how many requests are in flight.

use std::sync::Arc;

use axum::{extract::State, response::Response, routing::get};
use http::StatusCode;
use serde_json::json;

use super::Handlers;
use crate::{error::json_response, gateway::Gateway};

/// The route's methods.
pub fn route() -> Handlers {
    get(answer)
}

async fn answer(State(gateway): State<Arc<Gateway>>) -> Response {
    let load = json!({ "server_load": gateway.pipeline.in_flight() });
    json_response(StatusCode::OK, load.to_string())
}
