//! The routes, one file each, and the table of them.

mod chat_completions;
mod completions;
mod detokenize;
mod health;
mod invocations;
mod load;
mod messages;
mod metrics;
mod models;
mod ping;
mod responses;
mod tokenize;
mod version;

use std::sync::Arc;

use axum::{Router, routing::MethodRouter};
use http::StatusCode;

use crate::{error::no_route, gateway::Gateway};

type Handlers = MethodRouter<Arc<Gateway>>;

/// A path and what makes its handlers.
type Route = (&'static str, fn() -> Handlers);

/// Sorted by path.
const ROUTES: [Route; 18] = [
    ("/detokenize", detokenize::route),
    ("/health", health::route),
    ("/invocations", invocations::route),
    ("/load", load::route),
    ("/metrics", metrics::route),
    ("/ping", ping::route),
    ("/tokenize", tokenize::route),
    ("/v1/chat/completions", chat_completions::route),
    ("/v1/completions", completions::route),
    ("/v1/messages", messages::route),
    ("/v1/messages/count_tokens", messages::count),
    ("/v1/models", models::route),
    ("/v1/models/{*model}", models::one),
    ("/v1/responses", responses::route),
    ("/v1/responses/{id}", responses::one),
    ("/v1/responses/{id}/cancel", responses::cancel),
    ("/v1/responses/{id}/input_items", responses::input_items),
    ("/version", version::route),
];

/// All routes, by path.
pub fn table(gateway: &Arc<Gateway>) -> Router {
    let routes = ROUTES.iter().fold(Router::new(), |router, (path, route)| router.route(path, route()));
    routes
        .fallback(|| async { no_route(StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(|| async { no_route(StatusCode::METHOD_NOT_ALLOWED) })
        .with_state(gateway.clone())
}

/// The path of a route as the metrics name it; `none` for what is no route.
pub fn handler_name(path: Option<&str>) -> &'static str {
    let found = path.and_then(|path| ROUTES.iter().find(|(route, _)| *route == path));
    found.map_or("none", |(route, _)| route)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(ROUTES.is_sorted_by_key(|(path, _)| *path));
    }
}
