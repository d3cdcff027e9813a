//! Routes for development and operation by hand, only with `--server-dev-mode` (`VLLM_SERVER_DEV_MODE=1`):
//! `POST /abort_requests`, `POST /reset_prefix_cache`, `GET /server_info`.

use std::sync::Arc;

use axum::{
    extract::{Request, State},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use futures::future::join_all;
use http::StatusCode;
use serde_json::{Value, json};

use crate::{
    api::operation::{Answer, Body, Errors, Operation, Route, When},
    error::{ApiError, Fault, json_response},
    gateway::Gateway,
    openai::{completion::log_unread, fields::Fields},
    server::body,
};

const DEV: When =
    When { words: "with `VLLM_SERVER_DEV_MODE=1`", holds: |config| config.access.server_dev_mode, ..When::ALWAYS };

/// Ends requests.
pub const ABORT: Route = Route {
    path: "/abort_requests",
    handlers: || post(abort),
    when: DEV,
    operations: &[Operation {
        summary: "Ends requests, as if their clients had left",
        errors: Errors::of(&[Fault::BadRequest, Fault::Timeout, Fault::TooLarge]),
        ..Operation::post("abort_requests", &[Body::AbortRequests])
    }],
};

/// Forgets cached prefixes.
pub const RESET_CACHE: Route = Route {
    path: "/reset_prefix_cache",
    handlers: || post(reset_cache),
    when: DEV.for_operators(),
    operations: &[Operation {
        summary: "Forgets all cached prefixes",
        errors: Errors::of(&[Fault::Unavailable]),
        ..Operation::post("reset_prefix_cache", &[])
    }],
};

/// What runs, and with which settings.
pub const INFO: Route = Route {
    path: "/server_info",
    handlers: || get(info),
    when: DEV.for_operators(),
    operations: &[Operation {
        summary: "The processes of this engine and their settings",
        answer: Answer::Json("ServerInfo"),
        ..Operation::get("server_info")
    }],
};

async fn abort(State(gateway): State<Arc<Gateway>>, request: Request) -> Result<Response, ApiError> {
    let (parts, body) = request.into_parts();
    let body = body::read_json(&gateway, &parts.headers, body).await?;
    for id in request_ids(&body)? {
        // A request is known to the gateway that took it.
        if !gateway.pipeline.abort_named(&id) {
            gateway.peers.abort_elsewhere(&id).await;
        }
    }
    Ok((StatusCode::OK, ()).into_response())
}

/// Reads a body: the ids as clients saw them.
pub fn request_ids(body: &[u8]) -> Result<Vec<String>, ApiError> {
    const NAME: &str = "request_ids";
    let mut fields = Fields::parse(body)?;
    let ids = fields.value(NAME, "a list of strings")?;
    log_unread(&fields);
    ids.ok_or_else(|| ApiError::field(NAME, "`request_ids` must be provided."))
}

async fn reset_cache(State(gateway): State<Arc<Gateway>>) -> Result<Response, ApiError> {
    let schedulers = gateway.peers.schedulers();
    let done = join_all(schedulers.iter().map(|scheduler| scheduler.reset_prefix_cache())).await;
    if done.is_empty() || done.iter().any(Result::is_err) {
        return Err(ApiError::unavailable("The scheduler is not available, try again."));
    }
    Ok((StatusCode::OK, ()).into_response())
}

async fn info(State(gateway): State<Arc<Gateway>>) -> Response {
    let processes: Vec<Value> = gateway.peers.infos().await.into_iter().map(of_process).collect();
    let answer = json!({
        "version": service_kit::VERSION,
        "model": gateway.config.model_name(),
        "max_model_len": gateway.model.max_model_len(),
        "started": gateway.started,
        "processes": processes,
    });
    json_response(StatusCode::OK, answer.to_string())
}

fn of_process(info: proto::InfoReply) -> Value {
    // What is no JSON is shown as it stands.
    let config = serde_json::from_str(&info.config_json).unwrap_or(Value::String(info.config_json));
    json!({"service": info.service, "version": info.version, "pid": info.pid, "config": config})
}
