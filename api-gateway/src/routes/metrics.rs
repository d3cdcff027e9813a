//! `GET /metrics`: the metrics of all processes of the engine, as one text.

use std::{iter::once, sync::Arc};

use axum::{extract::State, response::IntoResponse, routing::get};
use http::header;

use crate::{
    api::operation::{Answer, Operation, Route, When},
    gateway::Gateway,
    metrics::exposition,
};

/// The route.
pub const ROUTE: Route = Route {
    path: "/metrics",
    handlers: || get(answer),
    when: When::ALWAYS,
    operations: &[Operation {
        summary: "The metrics of all processes, for Prometheus",
        answer: Answer::Text("text/plain"),
        ..Operation::get("metrics")
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>) -> impl IntoResponse {
    let others = gateway.peers.metrics().await;
    let ours = gateway.process.metrics.text();
    let text = exposition::join(once(ours.as_str()).chain(others.iter().map(String::as_str)));
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
