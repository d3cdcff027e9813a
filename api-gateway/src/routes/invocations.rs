//! `POST /invocations`, SageMaker's one route: a body with `messages` is a chat, one with `prompt` a completion.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
    routing::post,
};

use super::Handlers;
use crate::{
    error::ApiError,
    gateway::Gateway,
    generate,
    openai::{
        chat,
        completion::{self, Envelope, Ready},
        fields::Fields,
        params::Limits,
    },
};

/// The route's methods.
pub fn route() -> Handlers {
    post(answer)
}

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    generate::answer(gateway, request, read).await
}

fn read(body: &[u8], limits: &Limits, envelope: &Envelope) -> Result<Ready, ApiError> {
    let mut fields = Fields::parse(body)?;
    if fields.raw("messages").is_some() {
        return chat::read(body, limits, envelope);
    }
    if fields.raw("prompt").is_some() {
        return completion::read(body, limits, envelope);
    }
    Err(ApiError::body("The request body needs `messages` (a chat) or `prompt` (a completion)."))
}
