//! `GET /openapi.json` and `GET /docs`: what this server's API is, for programs and for people.

use std::sync::Arc;

use axum::{
    extract::State,
    response::{Html, Response},
    routing::get,
};
use http::StatusCode;

use super::ROUTES;
use crate::{
    api::{
        openapi::{self, Serving},
        operation::{Answer, Errors, Operation, Purpose, Route, When},
        page,
    },
    error::{ApiError, Fault, json_response},
    gateway::Gateway,
};

const SHOWN: When = When {
    words: "unless `--disable-fastapi-docs`",
    holds: |config| !config.answers.disable_fastapi_docs,
    ..When::ALWAYS
};

/// The page.
pub const PAGE: Route = Route {
    path: "/docs",
    handlers: || get(html),
    when: SHOWN,
    operations: &[Operation {
        summary: "This API as a page for people",
        answer: Answer::Text("text/html"),
        ..Operation::get("docs")
    }],
};

/// The document.
pub const OPENAPI: Route = Route {
    path: "/openapi.json",
    handlers: || get(document),
    when: SHOWN,
    operations: &[Operation {
        summary: "This API as an OpenAPI document",
        answer: Answer::Json("OpenApi"),
        errors: Errors::of(&[Fault::Internal]),
        ..Operation::get("openapi")
    }],
};

async fn html(State(gateway): State<Arc<Gateway>>) -> Html<String> {
    Html(page::page(&gateway.config, &ROUTES))
}

async fn document(State(gateway): State<Arc<Gateway>>) -> Result<Response, ApiError> {
    // Before the model is known, all routes are there.
    let purpose =
        gateway.model.pooling().ok().map(|pools| if pools.is_some() { Purpose::Pool } else { Purpose::Generate });
    let serving = Serving { routes: &ROUTES, config: &gateway.config, limits: &gateway.model.described(), purpose };
    let json = openapi::document(&serving).to_json();
    let json = json.map_err(|error| ApiError::new(Fault::Internal, error.to_string()))?;
    Ok(json_response(StatusCode::OK, json))
}
