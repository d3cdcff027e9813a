//! `POST /v1/completions`

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::Response,
    routing::post,
};

use super::Handlers;
use crate::{gateway::Gateway, generate, openai::completion};

/// The route's methods.
pub fn route() -> Handlers {
    post(answer)
}

async fn answer(State(gateway): State<Arc<Gateway>>, request: Request) -> Response {
    generate::answer(gateway, request, completion::read).await
}
