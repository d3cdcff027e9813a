//! `GET /version`

use axum::{response::Response, routing::get};
use http::StatusCode;
use serde_json::json;

use super::Handlers;
use crate::error::json_response;

/// The route's methods.
pub fn route() -> Handlers {
    get(answer)
}

async fn answer() -> Response {
    json_response(StatusCode::OK, json!({ "version": service_kit::VERSION }).to_string())
}
