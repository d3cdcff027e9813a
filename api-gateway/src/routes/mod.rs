//! The routes, one file each, and the table of them.

mod chat_completions;
mod completions;
mod detokenize;
mod health;
mod load;
mod metrics;
mod models;
mod ping;
mod tokenize;
mod version;

use std::{any::Any, sync::Arc};

use axum::{
    Router,
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
    routing::MethodRouter,
};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use tower_http::{
    catch_panic::CatchPanicLayer,
    cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer},
};

use crate::{
    config::Cors,
    error::{ApiError, Fault, no_route},
    front,
    gateway::Gateway,
};

type Handlers = MethodRouter<Arc<Gateway>>;

/// A path and what makes its handlers.
type Route = (&'static str, fn() -> Handlers);

/// Sorted by path.
const ROUTES: [Route; 11] = [
    ("/detokenize", detokenize::route),
    ("/health", health::route),
    ("/load", load::route),
    ("/metrics", metrics::route),
    ("/ping", ping::route),
    ("/tokenize", tokenize::route),
    ("/v1/chat/completions", chat_completions::route),
    ("/v1/completions", completions::route),
    ("/v1/models", models::route),
    ("/v1/models/{*model}", models::one),
    ("/version", version::route),
];

/// All routes, with what happens around each.
pub fn router(gateway: &Arc<Gateway>) -> Router {
    let routes = ROUTES.iter().fold(Router::new(), |router, (path, route)| router.route(path, route()));
    let router = routes
        .fallback(|| async { no_route(StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(|| async { no_route(StatusCode::METHOD_NOT_ALLOWED) })
        .with_state(gateway.clone())
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(gateway.clone(), front::around));
    match cors(&gateway.config.cors) {
        Some(cors) => router.layer(cors),
        None => router,
    }
}

/// The path of a route as the metrics name it; `none` for what is no route.
pub fn handler_name(path: Option<&str>) -> &'static str {
    let found = path.and_then(|path| ROUTES.iter().find(|(route, _)| *route == path));
    found.map_or("none", |(route, _)| route)
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let words = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    tracing::error!(panic = words.unwrap_or_default(), "a route panicked");
    ApiError::new(Fault::Internal, "Internal server error").into_response()
}

/// CORS headers, when some origin may call.
fn cors(cors: &Cors) -> Option<CorsLayer> {
    if cors.origins.is_empty() {
        return None;
    }
    let any = |list: &[String]| list.iter().any(|item| item == "*");
    // With credentials the standard forbids `*`; naming whoever asks means the same.
    let origins = match (any(&cors.origins), cors.credentials) {
        (true, true) => AllowOrigin::mirror_request(),
        (true, false) => AllowOrigin::any(),
        _ => AllowOrigin::list(cors.origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    let methods = match (any(&cors.methods), cors.credentials) {
        (true, true) => AllowMethods::mirror_request(),
        (true, false) => AllowMethods::any(),
        _ => AllowMethods::list(cors.methods.iter().filter_map(|method| method.parse::<Method>().ok())),
    };
    let headers = match (any(&cors.headers), cors.credentials) {
        (true, _) => AllowHeaders::mirror_request(),
        _ => AllowHeaders::list(cors.headers.iter().filter_map(|name| name.parse::<HeaderName>().ok())),
    };
    let layer = CorsLayer::new().allow_origin(origins).allow_methods(methods).allow_headers(headers);
    Some(layer.allow_credentials(cors.credentials))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(ROUTES.is_sorted_by_key(|(path, _)| *path));
    }
}
