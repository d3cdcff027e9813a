//! The routes with all that surrounds them: panics, keys and counting, origins.

use std::{any::Any, sync::Arc};

use axum::{
    Router,
    middleware::from_fn_with_state,
    response::{IntoResponse, Response},
};
use http::{HeaderName, HeaderValue, Method};
use tower_http::{
    catch_panic::CatchPanicLayer,
    cors::{AllowHeaders, AllowMethods, AllowOrigin, CorsLayer},
};

use crate::{
    config::Cors,
    error::{ApiError, Fault},
    gateway::Gateway,
    routes,
    server::middleware,
};

/// All routes, and what happens around each.
pub fn router(gateway: &Arc<Gateway>) -> Router {
    let router = routes::table(gateway)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(gateway.clone(), middleware::around));
    match cors(&gateway.config.cors) {
        Some(cors) => router.layer(cors),
        None => router,
    }
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
    // With credentials the standard forbids `*`; naming the caller's origin means the same.
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
