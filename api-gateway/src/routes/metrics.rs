//! `GET /metrics`: the metrics of all processes of the engine, as one text.

use std::sync::Arc;

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
    when: When::ALWAYS.for_operators(),
    operations: &[Operation {
        summary: "The metrics of all processes, for Prometheus",
        answer: Answer::Text("text/plain"),
        ..Operation::get("metrics")
    }],
};

async fn answer(State(gateway): State<Arc<Gateway>>) -> impl IntoResponse {
    // Behind `--engine` there is an HTTP port that shows the engine; twice would count twice.
    let others = match gateway.config.peers.engine {
        Some(_) => Vec::new(),
        None => {
            let (mut others, readiness) = tokio::join!(gateway.peers.metrics(), gateway.peers.readiness());
            others.push(readiness);
            others
        }
    };
    let ours = gateway.process.metrics.text();
    let text = exposition::join([&ours].into_iter().chain(&others).map(String::as_str));
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text)
}
