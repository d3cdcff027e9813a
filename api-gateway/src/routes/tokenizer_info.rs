//! `GET /tokenizer_info`: the tokenizer's settings as its files have them, with `--enable-tokenizer-info-endpoint`.

use std::sync::Arc;

use axum::{extract::State, response::Response, routing::get};
use http::StatusCode;

use crate::{
    api::operation::{Answer, Errors, Operation, Route, When},
    error::{ApiError, Fault, json_response},
    gateway::Gateway,
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/tokenizer_info",
    handlers: || get(answer),
    when: When {
        words: "with `--enable-tokenizer-info-endpoint`",
        holds: |config| config.answers.enable_tokenizer_info_endpoint,
        ..When::ALWAYS
    },
    operations: &[Operation {
        summary: "The model's tokenizer_config.json",
        answer: Answer::Json("TokenizerInfo"),
        errors: Errors::of(&[Fault::NotFound, Fault::Unavailable]),
        ..Operation::get("tokenizer_info")
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>) -> Result<Response, ApiError> {
    let away = || ApiError::unavailable("The tokenizer is not available, try again.");
    let tokenizer = gateway.peers.tokenizer().ok_or_else(away)?;
    let info = tokenizer.info().await.map_err(|_| away())?;
    let settings = info.model.ok_or_else(away)?.tokenizer_config_json;
    if settings.is_empty() {
        return Err(ApiError::new(Fault::NotFound, "The model has no tokenizer_config.json."));
    }
    Ok(json_response(StatusCode::OK, settings))
}
