//! `POST /score` and `/v1/score`

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
    routing::post,
};

use crate::{
    api::operation::{Answer, Body, Errors, Operation, Route, When},
    error::ApiError,
    gateway::Gateway,
    pooling::{self, score},
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/score",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Scores of pairs of texts",
        answer: Answer::Json("Scores"),
        errors: Errors::GENERATING,
        ..Operation::post("score", &[Body::Score])
    }],
};

/// The same under another path.
pub const V1: Route = Route {
    path: "/v1/score",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Scores of pairs of texts",
        answer: Answer::Json("Scores"),
        errors: Errors::GENERATING,
        ..Operation::post("create_score", &[Body::Score])
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    pooling::answer(gateway, request, score::read).await
}
