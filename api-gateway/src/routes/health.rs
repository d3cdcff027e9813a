//! `GET /health`: 200 only when a request would be served; else a 503 that says what is missing.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{IntoResponse, Response},
    routing::get,
};
use http::StatusCode;

use super::Handlers;
use crate::{error::ApiError, gateway::Gateway};

/// The route's methods.
pub fn route() -> Handlers {
    get(answer)
}

/// Also what `/ping` answers.
pub async fn answer(State(gateway): State<Arc<Gateway>>) -> Result<Response, ApiError> {
    match gateway.not_ready_reason().await {
        None => Ok((StatusCode::OK, ()).into_response()),
        Some(reason) => Err(ApiError::unavailable(format!("Not ready: {reason}"))),
    }
}
