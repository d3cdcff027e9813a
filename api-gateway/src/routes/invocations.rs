//! `POST /invocations`, SageMaker's one route: a body with `messages` is a chat, one with `prompt` a completion.

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
    generate,
    openai::{
        chat,
        completion::{self, Envelope, Ready},
        fields::Fields,
        params::Limits,
    },
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/invocations",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "A chat or a completion, whichever the body is",
        answer: Answer::Streamable(&["ChatCompletion", "Completion"], &["ChatChunk", "Completion"]),
        errors: Errors::GENERATING,
        ..Operation::post("invocations", &[Body::Chat, Body::Completion])
    }],
};

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
