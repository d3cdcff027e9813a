//! `POST /v1/chat/completions`

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
    openai::chat,
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/v1/chat/completions",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Answers a conversation",
        answer: Answer::Streamable(&["ChatCompletion"], &["ChatChunk"]),
        errors: Errors::GENERATING,
        ..Operation::post("create_chat_completion", &[Body::Chat])
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    generate::answer(gateway, request, chat::read).await
}
