//! `GET /health`: 200 only when a request would be served; else a 503 that says what is missing.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use http::StatusCode;

use crate::{
    api::operation::{Errors, Operation, Route, When},
    error::{ApiError, Fault},
    gateway::Gateway,
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/health",
    handlers: || get(answer),
    when: When::ALWAYS.for_operators(),
    operations: &[Operation {
        summary: "Whether a request would be served now",
        errors: Errors::of(&[Fault::Unavailable]),
        ..Operation::get("health")
    }],
};

/// Also what `/ping` answers.
pub async fn answer(State(gateway): State<Arc<Gateway>>) -> Result<Response, ApiError> {
    match gateway.not_ready_reason().await {
        None => Ok((StatusCode::OK, ()).into_response()),
        Some(reason) => Err(ApiError::unavailable(format!("Not ready: {reason}"))),
    }
}
