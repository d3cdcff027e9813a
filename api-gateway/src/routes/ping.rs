//! `GET` and `POST /ping`: what SageMaker asks instead of `/health`.

use axum::routing::get;

use super::{Handlers, health};

/// The route's methods.
pub fn route() -> Handlers {
    get(health::answer).post(health::answer)
}
