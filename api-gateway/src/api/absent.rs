//! vLLM's routes that this server does not have, each with the reason. Asking for one is a 404 that says it.

use axum::response::{IntoResponse, Response};
use http::StatusCode;

use crate::error::{ApiError, Fault, no_route};

const BATCHES: &str = "send the requests one by one: they are batched";
const ELASTIC: &str = "start more engines behind a load balancer";
const GENERATE: &str = "use /v1/completions";
const RENDERING: &str = "use /tokenize";
const SLEEP: &str = "stop the engine instead: it starts within seconds";
const SPEECH: &str = "images, sound and video are not served";
const WEIGHTS: &str = "restart the engine with the new weights";

/// Paths and reasons, sorted by path.
pub const ABSENT: &[(&str, &str)] = &[
    ("/cohere/v2/chat", "use /v1/chat/completions"),
    ("/collective_rpc", "workers run no code of clients"),
    ("/finish_weight_update", WEIGHTS),
    ("/generate", GENERATE),
    ("/generative_scoring", "use /v1/completions with `logprobs`"),
    ("/get_world_size", "see /server_info"),
    ("/inference/v1/abort_requests", "use /abort_requests"),
    ("/inference/v1/generate", "use /v1/completions with token ids and `return_token_ids`"),
    ("/init_weight_transfer_engine", WEIGHTS),
    ("/is_paused", SLEEP),
    ("/is_scaling_elastic_ep", ELASTIC),
    ("/is_sleeping", SLEEP),
    ("/kv_event_sources", "subscribe to the endpoint of --kv-events-config"),
    ("/pause", SLEEP),
    ("/release_kv_cache_memory", SLEEP),
    ("/reset_encoder_cache", SPEECH),
    ("/reset_mm_cache", SPEECH),
    ("/resume", SLEEP),
    ("/scale_elastic_ep", ELASTIC),
    ("/sleep", SLEEP),
    ("/start_weight_update", WEIGHTS),
    ("/update_weights", WEIGHTS),
    ("/v1/audio/transcriptions", SPEECH),
    ("/v1/audio/translations", SPEECH),
    ("/v1/batches", BATCHES),
    ("/v1/chat/completions/batch", BATCHES),
    ("/v1/chat/completions/derender", RENDERING),
    ("/v1/chat/completions/render", RENDERING),
    ("/v1/completions/derender", RENDERING),
    ("/v1/completions/render", RENDERING),
    ("/v1/decisions", "use /v1/chat/completions"),
    ("/v1/files", BATCHES),
    ("/v1/messages/render", RENDERING),
    ("/v1/realtime", SPEECH),
    ("/v1/responses/render", RENDERING),
    ("/v1/systemone", "use /v1/chat/completions"),
    ("/vertex_generate", GENERATE),
    ("/wake_up", SLEEP),
    ("/weight_info", WEIGHTS),
];

/// The answer for a path that is no route, or that lacks a method: a 404 with the reason where vLLM has that route,
/// else `status`.
pub fn refuse(path: &str, status: StatusCode) -> Response {
    match ABSENT.binary_search_by_key(&path, |(path, _)| *path) {
        Ok(at) => {
            let message = format!("`{path}` is not supported by this server: {}.", ABSENT[at].1);
            ApiError::new(Fault::NotFound, message).into_response()
        }
        Err(_) => no_route(status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::ROUTES;

    #[test]
    fn the_table_is_sorted_and_lists_no_route() {
        assert!(ABSENT.is_sorted_by_key(|(path, _)| *path));
        for route in ROUTES {
            assert!(ABSENT.iter().all(|(path, _)| *path != route.documented_path()), "{}", route.path);
        }
    }

    #[test]
    fn routes_of_vllm_are_refused_by_name() {
        for (path, _) in ABSENT {
            assert_eq!(refuse(path, StatusCode::METHOD_NOT_ALLOWED).status(), 404, "{path}");
        }
        assert_eq!(refuse("/v1/nonsense", StatusCode::METHOD_NOT_ALLOWED).status(), 405);
    }
}
