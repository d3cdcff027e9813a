//! What happens to every HTTP request before and after its route: keys, request ids, counting, the access log.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use axum::{
    body::Body,
    extract::{MatchedPath, Request, State},
    middleware::Next,
    response::Response,
};
use bytes::Bytes;
use http::{HeaderValue, header};
use hyper::body::{Body as HttpBody, Frame, SizeHint};

use crate::{
    gateway::Gateway,
    metrics::http_requests::{Handling, method_name},
    routes,
    server::{
        auth,
        listeners::PeerAddress,
        request_id::{self, REQUEST_ID},
    },
};

/// Runs around every route.
pub async fn around(State(gateway): State<Arc<Gateway>>, request: Request, next: Next) -> Response {
    let visit = Visit::new(&gateway, &request);
    let request_id =
        gateway.config.answers.enable_request_id_headers.then(|| {
            request_id::of_client(request.headers()).unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string())
        });
    let passes = gateway.keys.admit(request.method(), request.uri().path(), request.headers());
    let mut response = if passes { next.run(request).await } else { auth::unauthorized() };
    if let Some(value) = request_id.and_then(|id| HeaderValue::from_str(&id).ok()) {
        response.headers_mut().insert(REQUEST_ID, value);
    }
    visit.status(response)
}

/// One request, until the last byte of its answer is written or its client leaves.
struct Visit {
    gateway: Arc<Gateway>,
    start: Instant,
    handling: Handling,
    /// What the access log says; absent when there is none.
    line: Option<String>,
}

impl Visit {
    fn new(gateway: &Arc<Gateway>, request: &Request) -> Self {
        let line = (!gateway.config.answers.disable_uvicorn_access_log).then(|| {
            let peer = request.extensions().get::<PeerAddress>().map(|peer| peer.0.as_str()).unwrap_or_default();
            format!("{peer} - \"{} {} {:?}\"", request.method(), request.uri(), request.version())
        });
        let length = request.headers().get(header::CONTENT_LENGTH);
        let handling = Handling {
            handler: routes::handler_name(request.extensions().get::<MatchedPath>().map(MatchedPath::as_str)),
            method: method_name(request.method()),
            // nginx's code for a client that left before there was an answer.
            status: 499,
            duration: Default::default(),
            request_bytes: length.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0),
            response_bytes: 0,
        };
        Self { gateway: gateway.clone(), start: Instant::now(), handling, line }
    }

    /// Follows the body of the answer to its end.
    fn status(mut self, response: Response) -> Response {
        self.handling.status = response.status().as_u16();
        if let Some(line) = self.line.take() {
            tracing::info!(target: "access", "{line} {}", self.handling.status);
        }
        response.map(|inner| Body::new(Followed { inner, visit: self }))
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.handling.duration = self.start.elapsed();
        self.gateway.http.handled(&self.handling);
        if let Some(line) = self.line.take() {
            tracing::info!(target: "access", "{line} {}", self.handling.status);
        }
    }
}

/// A body that is counted; its visit ends when it is dropped.
struct Followed {
    inner: Body,
    visit: Visit,
}

impl HttpBody for Followed {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.inner).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            self.visit.handling.response_bytes += frame.data_ref().map_or(0, |data| data.len() as u64);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
