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

use axum::{Router, routing::MethodRouter};
use http::{StatusCode, Uri};

use crate::{
    api::{absent, operation::Route},
    gateway::Gateway,
};

/// What a route answers with.
pub type Handlers = MethodRouter<Arc<Gateway>>;

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
    let here = ROUTES.iter().filter(|route| (route.when.holds)(&gateway.config));
    let routes = here.fold(Router::new(), |router, route| router.route(route.path, (route.handlers)()));
    routes
        .fallback(|uri: Uri| async move { absent::refuse(uri.path(), StatusCode::NOT_FOUND) })
        .method_not_allowed_fallback(
            |uri: Uri| async move { absent::refuse(uri.path(), StatusCode::METHOD_NOT_ALLOWED) },
        )
        .with_state(gateway.clone())
}

/// The path of a route as the metrics name it; `none` for what is no route.
pub fn handler_name(path: Option<&str>) -> &'static str {
    let found = path.and_then(|path| ROUTES.iter().find(|route| route.path == path));
    found.map_or("none", |route| route.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted() {
        assert!(ROUTES.is_sorted_by_key(|route| route.path));
    }
}
