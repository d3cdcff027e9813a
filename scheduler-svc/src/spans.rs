//! One tracing span a request, from its arrival here to its end.

use std::collections::HashMap;

use proto::{Request, RequestKey};
use service_kit::trace;
use tracing::{Span, info_span};

/// Spans of traced requests; requests without a trace context cost nothing.
#[derive(Default)]
pub(crate) struct Spans {
    open: HashMap<(u64, u64), Span>,
}

impl Spans {
    /// A request arrived.
    pub(crate) fn admitted(&mut self, request: &Request) {
        let Some(key) = &request.key else { return };
        if !request.traceparent.is_empty() {
            let span = info_span!("schedule", request_id = request.request_id, n = request.n);
            trace::set_parent(&span, &request.traceparent);
            self.open.insert((key.gateway, key.number), span);
        }
    }

    /// A request is over.
    pub(crate) fn ended(&mut self, key: Option<&RequestKey>) {
        if let Some(key) = key {
            self.open.remove(&(key.gateway, key.number));
        }
    }
}
