//! `POST /detokenize`: token ids to text, by the tokenizer.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
    routing::post,
};
use http::StatusCode;
use proto::DetokenizeRequest;
use serde_json::json;

use crate::{
    api::operation::{Answer, Body, Errors, Operation, Route, When},
    engine::{adapters, peers::refused},
    error::{ApiError, json_response},
    gateway::Gateway,
    openai::{
        completion::log_unread,
        fields::Fields,
        params::{Limits, check_model},
    },
    server::body,
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/detokenize",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Token ids as text",
        answer: Answer::Json("Untokenized"),
        errors: Errors::READING,
        ..Operation::post("detokenize", &[Body::Detokenize])
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read_json(&gateway, &parts.headers, body).await?;
    let question = adapters::read_with(&gateway, &body, |limits| question(&body, limits)).await?;
    let reply = gateway.peers.tokenizer_service()?.detokenize(question).await;
    let reply = reply.map_err(refused)?.into_inner();
    match reply.failure {
        Some(failure) => Err(failure.into()),
        None => Ok(json_response(StatusCode::OK, json!({ "prompt": reply.text }).to_string())),
    }
}

/// Reads a body.
pub fn question(body: &[u8], limits: &Limits) -> Result<DetokenizeRequest, ApiError> {
    let mut fields = Fields::parse(body)?;
    let adapter_tokenizer = check_model(&mut fields, limits)?.tokenizer;
    let tokens = fields.token_ids("tokens")?.ok_or_else(|| ApiError::field("tokens", "`tokens` must be provided."))?;
    tokens.iter().try_for_each(|token| limits.check_token("tokens", *token))?;
    log_unread(&fields);
    Ok(DetokenizeRequest { tokens, adapter_tokenizer })
}
