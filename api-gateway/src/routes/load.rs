//! `GET /load`: how many requests are in flight.

use std::sync::Arc;

use axum::{extract::State, response::Response, routing::get};
use http::StatusCode;
use serde_json::json;

use crate::{
    api::operation::{Answer, Operation, Route, When},
    error::json_response,
    gateway::Gateway,
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/load",
    handlers: || get(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "How many requests are in flight",
        answer: Answer::Json("Load"),
        ..Operation::get("load")
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>) -> Response {
    let load = json!({ "server_load": gateway.pipeline.in_flight() });
    json_response(StatusCode::OK, load.to_string())
}
