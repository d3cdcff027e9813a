//! `POST /start_profile` and `POST /stop_profile`, only with `--profiler-config`: a trace of all processes.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::post,
};
use http::StatusCode;

use crate::{
    api::operation::{Body, Errors, Operation, Route, When},
    error::{ApiError, Fault},
    gateway::Gateway,
    profile::settings,
    server::body,
};

const CONFIGURED: When =
    When { words: "with `--profiler-config`", holds: |config| config.profiler.is_some(), ..When::ALWAYS }
        .for_operators();

/// Begins a profile.
pub const START: Route = Route {
    path: "/start_profile",
    handlers: || post(start),
    when: CONFIGURED,
    operations: &[Operation {
        summary: "Begins to record what every process does",
        errors: Errors::of(&[Fault::BadRequest, Fault::Timeout, Fault::TooLarge, Fault::Unavailable, Fault::Internal]),
        ..Operation::post("start_profile", &[Body::StartProfile])
    }],
};

/// Ends it.
pub const STOP: Route = Route {
    path: "/stop_profile",
    handlers: || post(stop),
    when: CONFIGURED,
    operations: &[Operation {
        summary: "Ends the profile and writes it as a Chrome trace",
        errors: Errors::of(&[Fault::BadRequest, Fault::Internal]),
        ..Operation::post("stop_profile", &[])
    }],
};

async fn start(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read_optional(&gateway, &parts.headers, body).await?;
    let overrides = settings::overrides(&body)?;
    gateway.profiler.start(&gateway.peers, overrides).await?;
    Ok((StatusCode::OK, ()).into_response())
}

async fn stop(State(gateway): State<Arc<Gateway>>) -> Result<Response, ApiError> {
    gateway.profiler.stop(&gateway.peers).await?;
    Ok((StatusCode::OK, ()).into_response())
}
