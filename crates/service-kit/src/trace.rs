//! Trace context across processes: a `traceparent` string in a message becomes the parent of a span, and back.
//!
//! W3C Trace Context, <https://www.w3.org/TR/trace-context/>.

use std::collections::HashMap;

use opentelemetry::{propagation::TextMapPropagator, trace::TraceContextExt};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

const HEADER: &str = "traceparent";

/// Makes `span` a child of the remote span that `traceparent` names. An empty or malformed string leaves it a root.
pub fn set_parent(span: &Span, traceparent: &str) {
    if traceparent.is_empty() {
        return;
    }
    let carrier = HashMap::from([(HEADER.to_owned(), traceparent.to_owned())]);
    let context = TraceContextPropagator::new().extract(&carrier);
    // Fails only without an exporter, where spans are not exported.
    let _ = span.set_parent(context);
}

/// The `traceparent` that makes another process's span a child of `span`; empty when it is not exported.
pub fn traceparent(span: &Span) -> String {
    let context = span.context();
    if !context.span().span_context().is_valid() {
        return String::new();
    }
    let mut carrier = HashMap::new();
    TraceContextPropagator::new().inject_context(&context, &mut carrier);
    carrier.remove(HEADER).unwrap_or_default()
}
