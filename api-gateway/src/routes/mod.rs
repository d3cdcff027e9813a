//! The routes, one file each, and the table of them.

mod chat_completions;
mod classify;
mod cohere_embed;
mod completions;
pub mod detokenize;
pub mod development;
mod documentation;
mod embeddings;
mod health;
mod invocations;
mod load;
pub mod lora_adapters;
mod messages;
mod metrics;
mod models;
mod ping;
mod pooled;
mod profile;
mod rerank;
mod responses;
mod score;
pub mod tokenize;
mod tokenizer_info;
mod version;

use std::sync::Arc;

use axum::Router;
use http::{StatusCode, Uri};

use crate::{
    api::{absent, operation::Route},
    error::{ApiError, Fault},
    gateway::Gateway,
};

/// Sorted by path.
pub const ROUTES: [Route; 37] = [
    development::ABORT,
    classify::ROUTE,
    detokenize::ROUTE,
    documentation::PAGE,
    health::ROUTE,
    invocations::ROUTE,
    load::ROUTE,
    metrics::ROUTE,
    documentation::OPENAPI,
    ping::ROUTE,
    pooled::ROUTE,
    rerank::ROUTE,
    development::RESET_CACHE,
    score::ROUTE,
    development::INFO,
    profile::START,
    profile::STOP,
    tokenize::ROUTE,
    tokenizer_info::ROUTE,
    chat_completions::ROUTE,
    completions::ROUTE,
    embeddings::ROUTE,
    lora_adapters::LOAD,
    messages::ROUTE,
    messages::COUNT,
    models::ROUTE,
    models::ONE,
    rerank::V1,
    responses::ROUTE,
    responses::ONE,
    responses::CANCEL,
    responses::INPUT_ITEMS,
    score::V1,
    lora_adapters::UNLOAD,
    cohere_embed::ROUTE,
    rerank::V2,
    version::ROUTE,
];

/// All routes that this server has, by path.
pub fn table(gateway: &Arc<Gateway>) -> Router {
    let routes = ROUTES.iter().filter(|route| route.when.is_here(&gateway.config));
    let routes = routes.fold(Router::new(), |router, route| router.route(route.path, (route.handlers)()));
    if gateway.config.access.operations_only {
        return routes.fallback(elsewhere).with_state(gateway.clone());
    }
    routes
        .fallback(|uri: Uri| async move { absent::refuse(uri.path(), StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(
            |uri: Uri| async move { absent::refuse(uri.path(), StatusCode::METHOD_NOT_ALLOWED) },
        )
        .with_state(gateway.clone())
}

/// The answer for all else where operators alone are served.
async fn elsewhere() -> ApiError {
    let message = "This port is for operators (/health, /metrics, /version): the engine's gateways serve the API.";
    ApiError::new(Fault::NotFound, message)
}

/// The path of a route as the metrics name it; `none` for what is no route.
pub fn handler_name(path: Option<&str>) -> &'static str {
    let found = path.and_then(|path| ROUTES.iter().find(|route| route.path == path));
    found.map_or("none", |route| route.path)
}

#[cfg(test)]
mod tests {
    use service_kit::parse_flags;

    use super::*;
    use crate::config::Config;

    #[test]
    fn the_table_is_sorted() {
        assert!(ROUTES.is_sorted_by_key(|route| route.path));
    }

    #[test]
    fn what_operators_ask_is_there_without_the_api() {
        let paths = |more: &[&str]| -> Vec<&str> {
            let flags = ["api-gateway", "--tokenizer=ring:/t", "--detokenizer=ring:/d", "--operations-only"];
            let args = parse_flags(flags.iter().chain(more)).expect("flags");
            let config = Config::from_args(&args).expect("settings");
            ROUTES.iter().filter(|route| route.when.is_here(&config)).map(|route| route.path).collect()
        };
        assert_eq!(paths(&[]), ["/health", "/metrics", "/ping", "/version"]);
        let all = paths(&["--server-dev-mode", "--profiler-config=/tmp", "--enable-tokenizer-info-endpoint"]);
        let with_conditions = ["/reset_prefix_cache", "/server_info", "/start_profile", "/stop_profile"];
        assert_eq!(all, [&["/health", "/metrics", "/ping"], &with_conditions[..], &["/version"]].concat());
    }
}
