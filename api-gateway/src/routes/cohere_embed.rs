//! `POST /v2/embed`

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
    pooling::{self, cohere},
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/v2/embed",
    handlers: || post(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "Texts as vectors, in Cohere's shapes",
        answer: Answer::Json("CohereEmbeddings"),
        errors: Errors::GENERATING,
        ..Operation::post("cohere_embed", &[Body::CohereEmbed])
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    pooling::answer(gateway, request, cohere::read).await
}
