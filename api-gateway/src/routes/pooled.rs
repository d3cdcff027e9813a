//! `POST /pooling`

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
    pooling::{self, pooled},
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/pooling",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "What a model gives that pools, of prompts or of their tokens",
        answer: Answer::Json("Pooled"),
        errors: Errors::GENERATING,
        ..Operation::post("pooling", &[Body::Pooling])
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    pooling::answer(gateway, request, pooled::read).await
}
