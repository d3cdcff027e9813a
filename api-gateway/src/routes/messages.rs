//! `POST /v1/messages` and `POST /v1/messages/count_tokens`, Anthropic's API.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
    routing::post,
};
use http::StatusCode;
use serde_json::json;

use crate::{
    anthropic::{refuse, request},
    api::operation::{Answer, Body, Errors, Operation, Route, When},
    engine::{adapters, peers::refused},
    error::{ApiError, json_response},
    gateway::Gateway,
    generate,
    server::body,
};

/// The conversation.
pub const ROUTE: Route = Route {
    path: "/v1/messages",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Answers a conversation, in Anthropic's words",
        answer: Answer::Streamable(&["Message"], &["event of Anthropic's Messages API"]),
        errors: Errors::ANTHROPIC,
        ..Operation::post("create_message", &[Body::Messages])
    }],
};

/// Its length.
pub const COUNT: Route = Route {
    path: "/v1/messages/count_tokens",
    handlers: || post(count_tokens),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "How many tokens a conversation has",
        answer: Answer::Json("TokenCount"),
        errors: Errors::ANTHROPIC,
        ..Operation::post("count_message_tokens", &[Body::CountTokens])
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    generate::attempt(gateway, request, request::read).await.unwrap_or_else(|error| refuse(&error))
}

async fn count_tokens(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    count_of(&gateway, request).await.unwrap_or_else(|error| refuse(&error))
}

async fn count_of(gateway: &Gateway, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read_json(gateway, &parts.headers, body).await?;
    let question = adapters::read_with(gateway, &body, |limits| request::read_prompt(&body, limits)).await?;
    let reply = gateway.peers.tokenizer_service()?.tokenize(question).await.map_err(refused)?.into_inner();
    match reply.failure {
        Some(failure) => Err(failure.into()),
        None => Ok(json_response(StatusCode::OK, json!({"input_tokens": reply.tokens.len()}).to_string())),
    }
}
