//! `GET` and `POST /ping`: what SageMaker asks instead of `/health`.

use axum::routing::get;

use super::health;
use crate::{
    api::operation::{Errors, Operation, Route, When},
    error::Fault,
};

const UNAVAILABLE: Errors = Errors::of(&[Fault::Unavailable]);

/// The route.
pub const ROUTE: Route = Route {
    path: "/ping",
    handlers: || get(health::answer).post(health::answer),
    when: When::ALWAYS.for_operators(),
    operations: &[
        Operation { summary: "As /health", errors: UNAVAILABLE, ..Operation::get("ping") },
        Operation { summary: "As /health", errors: UNAVAILABLE, ..Operation::post("ping_by_post", &[]) },
    ],
};
