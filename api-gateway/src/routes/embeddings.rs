//! `POST /v1/embeddings`

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
    pooling::{self, embeddings},
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/v1/embeddings",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Texts as vectors",
        answer: Answer::Json("Embeddings"),
        errors: Errors::GENERATING,
        ..Operation::post("create_embedding", &[Body::Embeddings])
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    pooling::answer(gateway, request, embeddings::read).await
}
