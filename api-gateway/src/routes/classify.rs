//! `POST /classify`

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
    pooling::{self, classify},
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/classify",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Texts as class probabilities",
        answer: Answer::Json("Classes"),
        errors: Errors::GENERATING,
        ..Operation::post("classify", &[Body::Classify])
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    pooling::answer(gateway, request, classify::read).await
}
