//! `POST /tokenize`: a prompt or a conversation to token ids, by the tokenizer.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
    routing::post,
};
use http::StatusCode;
use proto::TokenizeRequest;
use serde_json::json;

use crate::{
    api::operation::{Answer, Body, Errors, Operation, Route, When},
    engine::{adapters, peers::refused},
    error::{ApiError, json_response},
    gateway::Gateway,
    openai::{
        chat::Conversation,
        completion::log_unread,
        fields::Fields,
        params::{Limits, check_model},
        prompt,
    },
    server::body,
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/tokenize",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "A prompt or a conversation as token ids",
        answer: Answer::Json("Tokens"),
        errors: Errors::READING,
        ..Operation::post("tokenize", &[Body::Tokenize])
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read_json(&gateway, &parts.headers, body).await?;
    let question = adapters::read_with(&gateway, &body, |limits| question(&body, limits)).await?;
    let with_strings = question.return_token_strs;
    let reply = gateway.peers.tokenizer_service()?.tokenize(question).await;
    let reply = reply.map_err(refused)?.into_inner();
    if let Some(failure) = reply.failure {
        return Err(failure.into());
    }
    let answer = json!({
        "count": reply.tokens.len(),
        "max_model_len": gateway.model.max_model_len(),
        "tokens": reply.tokens,
        "token_strs": with_strings.then_some(reply.token_strs),
    });
    Ok(json_response(StatusCode::OK, answer.to_string()))
}

/// Reads a body.
pub fn question(body: &[u8], limits: &Limits) -> Result<TokenizeRequest, ApiError> {
    let mut fields = Fields::parse(body)?;
    let adapter_tokenizer = check_model(&mut fields, limits)?.tokenizer;
    let return_token_strs = fields.flag("return_token_strs", false)?;
    let prompt = if fields.raw("messages").is_some() {
        Conversation::read(&mut fields, limits)?.prompt
    } else {
        let add_special_tokens = fields.flag("add_special_tokens", true)?;
        let mut prompts = prompt::read(&mut fields, limits, add_special_tokens)?;
        match (prompts.pop(), prompts.is_empty()) {
            (Some(prompt), true) => prompt,
            _ => return Err(ApiError::field("prompt", "`prompt` must be a single prompt.")),
        }
    };
    log_unread(&fields);
    Ok(TokenizeRequest { prompt: Some(prompt), return_token_strs, adapter_tokenizer })
}
