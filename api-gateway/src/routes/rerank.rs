//! `POST /rerank`, `/v1/rerank` and `/v2/rerank`

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
    pooling::{self, rerank},
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/rerank",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Documents in the order of their relevance",
        answer: Answer::Json("Ranking"),
        errors: Errors::GENERATING,
        ..Operation::post("rerank", &[Body::Rerank])
    }],
};

/// The same under another path.
pub const V1: Route = Route {
    path: "/v1/rerank",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Documents in the order of their relevance",
        answer: Answer::Json("Ranking"),
        errors: Errors::GENERATING,
        ..Operation::post("create_ranking", &[Body::Rerank])
    }],
};

/// The same under another path.
pub const V2: Route = Route {
    path: "/v2/rerank",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Documents in the order of their relevance",
        answer: Answer::Json("Ranking"),
        errors: Errors::GENERATING,
        ..Operation::post("create_ranking_v2", &[Body::Rerank])
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    pooling::answer(gateway, request, rerank::read).await
}
