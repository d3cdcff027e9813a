//! The body of a streamed answer: server-sent events, written when the connection has room.
//!
//! The connection's task polls it; there is no task or channel in between. While the client reads slowly it is not
//! polled, and what arrives meanwhile is merged in the mailbox. When the client leaves the body is dropped, and with it
//! the request.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use tokio::time::{Instant, Sleep, sleep};

use crate::{
    anthropic::stream::MessageStream,
    engine::{mailbox::Update, pipeline::InFlight},
    openai::chunk::ChunkWriter,
    responses::stream::ResponseStream,
};

/// A comment: clients skip it, proxies see that the stream lives.
pub const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// The body of a streamed answer.
pub struct EventStream {
    /// Absent once the answer has ended.
    in_flight: Option<InFlight>,
    writer: Writer,
    update: Update,
    keep_alive: Option<KeepAlive>,
    log: Option<OutputLog>,
    /// Kept open as long as the stream, so that traces show the whole request.
    _span: tracing::Span,
}

/// Writes an answer's events in the shapes of its API.
#[allow(clippy::large_enum_variant, reason = "nearly all are chunks, and there is one writer in a stream")]
pub enum Writer {
    /// OpenAI's.
    Chunks(ChunkWriter),
    /// Anthropic's.
    Messages(Box<MessageStream>),
    /// OpenAI's, of the Responses API.
    Responses(Box<ResponseStream>),
}

impl Writer {
    /// Appends the events for `update`, up to the last when it holds the ending. Tells whether it did.
    fn write(&mut self, out: &mut Vec<u8>, update: &mut Update) -> bool {
        match self {
            Self::Chunks(writer) => writer.write(out, update),
            Self::Messages(writer) => writer.write(out, update),
            Self::Responses(writer) => writer.write(out, update),
        }
    }

    fn tokens(&self) -> u64 {
        match self {
            Self::Chunks(writer) => writer.tokens(),
            Self::Messages(writer) => writer.tokens(),
            Self::Responses(writer) => writer.tokens(),
        }
    }
}

/// What the log is to show of the streamed text.
pub struct OutputLog {
    /// The id that the client sees.
    pub request_id: String,
    /// Characters to show.
    pub limit: usize,
    /// Texts of the choices so far, as they came.
    pub text: String,
}

struct KeepAlive {
    interval: Duration,
    timer: Pin<Box<Sleep>>,
}

impl EventStream {
    /// Streams what `in_flight` brings. With `keep_alive`, a comment is sent after so much silence.
    pub fn new(in_flight: InFlight, writer: Writer, keep_alive: Option<Duration>, log: Option<OutputLog>) -> Self {
        Self {
            in_flight: Some(in_flight),
            writer,
            update: Update::default(),
            keep_alive: keep_alive.map(|interval| KeepAlive { interval, timer: Box::pin(sleep(interval)) }),
            log,
            _span: tracing::Span::current(),
        }
    }

    /// The next bytes of the stream; `None` at its end.
    fn poll_bytes(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        loop {
            let Some(in_flight) = &self.in_flight else { return Poll::Ready(None) };
            if in_flight.mailbox().poll(context, &mut self.update).is_pending() {
                return self.poll_keep_alive(context).map(Some);
            }
            if let Some(log) = &mut self.log {
                log.add(&self.update);
            }
            let mut out = Vec::with_capacity(self.update.grown.len() * 320);
            if self.writer.write(&mut out, &mut self.update) {
                if let Some(OutputLog { request_id, text, .. }) = self.log.take() {
                    tracing::info!(request_id, tokens = self.writer.tokens(), text, "answer");
                }
                self.in_flight = None;
            }
            // Update may be worth nothing yet, as when text is held back.
            if !out.is_empty() {
                if let Some(keep_alive) = &mut self.keep_alive {
                    keep_alive.restart();
                }
                return Poll::Ready(Some(out.into()));
            }
        }
    }

    fn poll_keep_alive(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let Some(keep_alive) = &mut self.keep_alive else { return Poll::Pending };
        ready!(keep_alive.timer.as_mut().poll(context));
        keep_alive.restart();
        Poll::Ready(Bytes::from_static(KEEP_ALIVE))
    }
}

impl OutputLog {
    fn add(&mut self, update: &Update) {
        for (_, growth) in &update.grown {
            let shown: Vec<char> = growth.text.chars().take(self.limit).collect();
            self.limit -= shown.len();
            self.text.extend(shown);
        }
    }
}

impl KeepAlive {
    fn restart(&mut self) {
        self.timer.as_mut().reset(Instant::now() + self.interval);
    }
}

impl Body for EventStream {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.poll_bytes(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.in_flight.is_none()
    }
}
