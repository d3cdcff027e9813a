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
pub const ROUTE: Route = route("/rerank", &[operation("rerank")]);

/// The same under another path.
pub const V1: Route = route("/v1/rerank", &[operation("create_ranking")]);

/// The same under another path.
pub const V2: Route = route("/v2/rerank", &[operation("create_ranking_v2")]);

const fn route(path: &'static str, operations: &'static [Operation]) -> Route {
    Route { path, handlers: || post(answer), when: When::ALWAYS, operations }
}

const fn operation(id: &'static str) -> Operation {
    Operation {
        summary: "Documents in the order of their relevance",
        answer: Answer::Json("Ranking"),
        errors: Errors::GENERATING,
        ..Operation::post(id, &[Body::Rerank])
    }
}

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    pooling::answer(gateway, request, rerank::read).await
}
