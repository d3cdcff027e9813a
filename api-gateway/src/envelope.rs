//! What comes with an HTTP request beside its body, and goes with all that is made of it.

use http::HeaderMap;
use service_kit::trace;
use tracing::Span;
use uuid::Uuid;

use crate::{
    engine::pipeline::Arrival,
    error::ApiError,
    gateway::Gateway,
    openai::completion::Envelope,
    server::{request_id, routing},
};

/// What comes with the HTTP request besides its body.
pub fn envelope(
    gateway: &Gateway,
    headers: &HeaderMap,
    arrival: Arrival,
    incoming: &str,
) -> Result<Envelope, ApiError> {
    let ours = trace::traceparent(&Span::current());
    // Without an exporter of its own the gateway passes on what it got.
    let traceparent = match (ours.is_empty(), incoming.is_empty()) {
        (true, true) if gateway.process.profile.is_on() => unsampled(),
        (true, _) => incoming.to_owned(),
        (false, _) => ours,
    };
    Ok(Envelope {
        arrival,
        request_id: request_id::of_client(headers),
        fresh_id: Uuid::new_v4().simple().to_string(),
        traceparent,
        prompt_tokens_details: gateway.config.answers.enable_prompt_tokens_details,
        request_metrics: gateway.config.answers.enable_per_request_metrics,
        routing: routing::of_client(headers)?,
    })
}

/// A trace context that is not exported: other processes make spans of requests that have one, which a profile records.
fn unsampled() -> String {
    let [trace, span] = [Uuid::new_v4(), Uuid::new_v4()].map(|id| id.simple().to_string());
    format!("00-{trace}-{}-00", &span[..16])
}

/// The client's trace context; empty when there is none, or none of the size that the standard gives it.
pub fn traceparent_of(headers: &HeaderMap) -> &str {
    let value = headers.get("traceparent").and_then(|value| value.to_str().ok()).unwrap_or_default();
    if value.len() == 55 { value } else { "" }
}
