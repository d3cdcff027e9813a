//! Responses that run on their own: a task gathers them, and whoever asks reads what there is.

use std::{convert::Infallible, future::poll_fn, sync::Arc, time::Duration};

use axum::{
    body::Body,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use futures::stream;
use http::{HeaderValue, StatusCode, header};

use super::{
    assembly::Assembly,
    events::Events,
    store::{Read, Record, Store},
};
use crate::{
    engine::{mailbox::Update, pipeline::InFlight},
    error::{ApiError, json_response},
    server::sse::KEEP_ALIVE,
};

/// Starts the task of a response, and answers with it or its events.
pub fn start(
    store: &Arc<Store>,
    in_flight: InFlight,
    mut assembly: Assembly,
    keep_alive: Option<Duration>,
) -> Result<Response, ApiError> {
    let mut events = Events::default();
    let queued = assembly.queue(&mut events).to_string();
    let turn = assembly.turn().clone();
    let record = Arc::new(Record::running(assembly.id(), &turn.context, queued.clone(), events));
    store.keep_running(record.clone())?;
    tokio::spawn(gather(store.clone(), record.clone(), in_flight, assembly));
    match turn.stream {
        true => follow(record, None, keep_alive),
        false => Ok(json_response(StatusCode::OK, queued)),
    }
}

/// Gathers a response until it has ended or is cancelled.
async fn gather(store: Arc<Store>, record: Arc<Record>, in_flight: InFlight, mut assembly: Assembly) {
    let mut update = Update::default();
    let mut events = Events::default();
    let mut started = false;
    loop {
        events.clear();
        let news = poll_fn(|context| in_flight.mailbox().poll(context, &mut update));
        let last = tokio::select! {
            biased;
            () = record.cancel.cancelled() => Some(assembly.cancel(&mut events)),
            () = news => assembly.write(&mut events, &mut update),
        };
        let ended = last.is_some();
        if !ended && !std::mem::replace(&mut started, true) {
            store.set(&record, assembly.response("in_progress").to_string());
        }
        store.grow(&record, &events, last.map(|response| response.to_string()));
        if ended {
            return;
        }
    }
}

/// The events of a response behind number `after`, those to come included.
///
/// # Errors
/// When its events are not kept, because it was not made in the background.
pub fn follow(record: Arc<Record>, after: Option<u64>, keep_alive: Option<Duration>) -> Result<Response, ApiError> {
    let Some(position) = record.position(after) else {
        let message = "Only a response that was created with `background` can be streamed later.";
        return Err(ApiError::field("stream", message));
    };
    let reader = Reader { record, position: Some(position), keep_alive };
    let body = Body::from_stream(stream::unfold(reader, Reader::next));
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-cache")),
    ];
    Ok((StatusCode::OK, headers, body).into_response())
}

/// Reads a record's events as they come.
struct Reader {
    record: Arc<Record>,
    /// Bytes that were read; absent at the end.
    position: Option<usize>,
    keep_alive: Option<Duration>,
}

impl Reader {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        loop {
            let position = self.position?;
            let record = self.record.clone();
            let changed = record.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            match record.read(position) {
                Read::Bytes(bytes, end) => {
                    self.position = Some(end);
                    return Some((Ok(bytes.into()), self));
                }
                Read::End => return None,
                Read::Dropped => {
                    self.position = None;
                    return Some((Ok(Bytes::from_static(DROPPED)), self));
                }
                Read::Wait => match self.keep_alive {
                    None => changed.await,
                    Some(interval) => {
                        if tokio::time::timeout(interval, changed).await.is_err() {
                            return Some((Ok(Bytes::from_static(KEEP_ALIVE)), self));
                        }
                    }
                },
            }
        }
    }
}

/// The last event of a stream whose response has more events than are kept.
const DROPPED: &[u8] = b"event: error\ndata: {\"type\":\"error\",\"sequence_number\":0,\"code\":\"server_error\",\
    \"message\":\"This response has more events than --max-stored-response-bytes lets be kept. Retrieve it without \
    `stream`.\",\"param\":null}\n\n";
