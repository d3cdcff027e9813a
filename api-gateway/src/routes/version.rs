//! `GET /version`

use axum::{response::Response, routing::get};
use http::StatusCode;
use serde_json::json;

use crate::{
    api::operation::{Answer, Operation, Route, When},
    error::json_response,
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/version",
    handlers: || get(answer),
    when: When::ALWAYS.for_operators(),
    operations: &[Operation {
        summary: "The version of this server",
        answer: Answer::Json("Version"),
        ..Operation::get("version")
    }],
};

async fn answer() -> Response {
    json_response(StatusCode::OK, json!({ "version": service_kit::VERSION }).to_string())
}
