//! `POST /v1/completions`

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
    routing::post,
};

use crate::{
    api::operation::{Answer, Body, Errors, Operation, Route, When},
    gateway::Gateway,
    generate,
    openai::completion,
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/v1/completions",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Continues prompts",
        answer: Answer::Streamable(&["Completion"], &["Completion"]),
        errors: Errors::GENERATING,
        ..Operation::post("create_completion", &[Body::Completion])
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    generate::answer(gateway, request, completion::read).await
}
