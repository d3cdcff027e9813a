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
pub const ROUTE: Route = route("/score", &[operation("score")]);

/// The same under another path.
pub const V1: Route = route("/v1/score", &[operation("create_score")]);

const fn route(path: &'static str, operations: &'static [Operation]) -> Route {
    Route { path, handlers: || post(answer), when: When::ALWAYS, operations }
}

const fn operation(id: &'static str) -> Operation {
    Operation {
        summary: "Scores of pairs of texts",
        answer: Answer::Json("Scores"),
        errors: Errors::GENERATING,
        ..Operation::post(id, &[Body::Score])
    }
}

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    pooling::answer(gateway, request, score::read).await
}
