//! `POST /v1/messages` and `POST /v1/messages/count_tokens`, Anthropic's API.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
    routing::post,
};
use http::StatusCode;
use proto::TokenizeRequest;
use serde_json::json;

use super::Handlers;
use crate::{
    anthropic::{refuse, request},
    engine::peers::refused,
    error::{ApiError, json_response},
    gateway::Gateway,
    generate,
    server::body,
};

/// The methods of `/v1/messages`.
pub fn route() -> Handlers {
    post(answer)
}

/// The methods of `/v1/messages/count_tokens`.
pub fn count() -> Handlers {
    post(count_tokens)
}

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    generate::attempt(gateway, request, request::read).await.unwrap_or_else(|error| refuse(&error))
}

async fn count_tokens(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    count_of(&gateway, request).await.unwrap_or_else(|error| refuse(&error))
}

async fn count_of(gateway: &Gateway, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read_json(gateway, &parts.headers, body).await?;
    let prompt = request::read_prompt(&body, &gateway.model.limits())?;
    let question = TokenizeRequest { prompt: Some(prompt), return_token_strs: false };
    let reply = gateway.peers.tokenizer_service()?.tokenize(question).await.map_err(refused)?.into_inner();
    match reply.failure {
        Some(failure) => Err(failure.into()),
        None => Ok(json_response(StatusCode::OK, json!({"input_tokens": reply.tokens.len()}).to_string())),
    }
}
