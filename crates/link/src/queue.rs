//! The outgoing queue of a gRPC link: bounded in bytes, written by a [`crate::Sender`], drained by the HTTP/2 stream.
//!
//! A bounded channel counts messages, and theirs differ a thousandfold in size; so this counts bytes. HTTP/2 drains it
//! only as fast as the peer's window opens, which makes a slow reader felt here.

use std::{
    collections::VecDeque,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use futures::{Stream, task::AtomicWaker};
use parking_lot::Mutex;
use proto::{Frame, frame::Kind};

use crate::error::LinkError;

/// What a queued message costs beside its bytes, so that empty ones are bounded too.
const OVERHEAD: usize = 64;

/// A queue that holds messages of `capacity` bytes in all. `first` is sent before any of them.
pub(crate) fn queue(capacity: usize, first: Kind) -> (Writer, Frames) {
    let shared = Arc::new(Shared::default());
    (Writer { shared: shared.clone(), capacity }, Frames { shared, first: Some(first) })
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the stream.
    written: AtomicWaker,
    /// Wakes the writer.
    drained: AtomicWaker,
    /// Wakes the watch.
    ended: AtomicWaker,
}

impl Shared {
    fn abandon(&self) {
        let mut state = self.state.lock();
        state.abandoned = true;
        state.messages.clear();
        drop(state);
        self.drained.wake();
        self.ended.wake();
    }
}

#[derive(Default)]
struct State {
    messages: VecDeque<Bytes>,
    /// Cost of all `messages`.
    bytes: usize,
    /// The writer is gone: end the stream once it is empty.
    ended: bool,
    /// The stream or the peer is gone: nothing more will be sent.
    abandoned: bool,
}

/// The writing end.
pub(crate) struct Writer {
    shared: Arc<Shared>,
    capacity: usize,
}

impl Writer {
    /// Adds an encoded message; `false` when there is no room now. Sent soon after [`Self::publish`].
    pub(crate) fn stage(&mut self, len: usize, encode: impl FnOnce() -> Bytes) -> Result<bool, LinkError> {
        let mut state = self.shared.state.lock();
        if state.abandoned {
            return Err(LinkError::PeerGone);
        }
        if !self.fits(&state, len) {
            return Ok(false);
        }
        state.bytes += len + OVERHEAD;
        state.messages.push_back(encode());
        Ok(true)
    }

    /// Wakes the stream.
    pub(crate) fn publish(&mut self) {
        self.shared.written.wake();
    }

    /// A look at how the queue ends.
    pub(crate) fn watch(&self) -> Watch {
        Watch { shared: self.shared.clone() }
    }

    /// Waits until a message of `len` bytes fits. Cancel-safe.
    pub(crate) async fn wait_for_room(&mut self, len: usize) -> Result<(), LinkError> {
        self.publish();
        std::future::poll_fn(|context| {
            // Registered first: a drain that comes between is not missed.
            self.shared.drained.register(context.waker());
            let state = self.shared.state.lock();
            if state.abandoned {
                Poll::Ready(Err(LinkError::PeerGone))
            } else if self.fits(&state, len) {
                Poll::Ready(Ok(()))
            } else {
                Poll::Pending
            }
        })
        .await
    }

    /// An empty queue takes any message, so that one of the whole capacity is not refused for its overhead.
    fn fits(&self, state: &State, len: usize) -> bool {
        state.messages.is_empty() || state.bytes + len + OVERHEAD <= self.capacity
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.written.wake();
        self.shared.ended.wake();
    }
}

/// Sees the queue end, and can end it.
pub(crate) struct Watch {
    shared: Arc<Shared>,
}

impl Watch {
    /// Waits until the writer or the stream is gone.
    pub(crate) async fn ended(&self) {
        std::future::poll_fn(|context| {
            self.shared.ended.register(context.waker());
            let state = self.shared.state.lock();
            if state.ended || state.abandoned { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Ends the queue, because the peer has ended its direction and reads no more.
    pub(crate) fn abandon(&self) {
        self.shared.abandon();
        self.shared.written.wake();
    }
}

/// The draining end, as the stream that gRPC sends.
pub(crate) struct Frames {
    shared: Arc<Shared>,
    first: Option<Kind>,
}

impl Stream for Frames {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Frame>> {
        if let Some(kind) = self.first.take() {
            return Poll::Ready(Some(Frame { kind: Some(kind) }));
        }
        self.shared.written.register(context.waker());
        let mut state = self.shared.state.lock();
        let Some(message) = state.messages.pop_front() else {
            return if state.ended || state.abandoned { Poll::Ready(None) } else { Poll::Pending };
        };
        state.bytes -= message.len() + OVERHEAD;
        drop(state);
        self.shared.drained.wake();
        Poll::Ready(Some(Frame { kind: Some(Kind::Data(message)) }))
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.shared.abandon();
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, StreamExt};
    use proto::Hello;

    use super::*;

    fn put(writer: &mut Writer, len: usize) -> bool {
        writer.stage(len, || Bytes::from(vec![0; len])).unwrap()
    }

    #[test]
    fn counts_bytes_and_gives_them_back() {
        let (mut writer, mut frames) = queue(1000, Kind::Hello(Hello::default()));
        assert!(put(&mut writer, 400) && put(&mut writer, 400));
        assert!(!put(&mut writer, 400));
        assert!(writer.wait_for_room(400).now_or_never().is_none());
        assert!(matches!(frames.next().now_or_never(), Some(Some(Frame { kind: Some(Kind::Hello(_)) }))));
        assert!(frames.next().now_or_never().is_some());
        assert!(writer.wait_for_room(400).now_or_never().is_some());
        assert!(put(&mut writer, 400));
    }

    #[test]
    fn empty_messages_are_bounded_and_the_largest_one_fits() {
        let (mut writer, _frames) = queue(1000, Kind::Hello(Hello::default()));
        assert!(put(&mut writer, 1000));
        assert!(!put(&mut writer, 0));
        let (mut writer, _frames) = queue(1000, Kind::Hello(Hello::default()));
        assert_eq!((0..100).take_while(|_| put(&mut writer, 0)).count(), 1000 / OVERHEAD);
    }

    #[test]
    fn ends_after_the_last_message() {
        let (mut writer, mut frames) = queue(1000, Kind::Hello(Hello::default()));
        assert!(put(&mut writer, 1));
        drop(writer);
        assert!(frames.next().now_or_never().flatten().is_some());
        assert!(frames.next().now_or_never().flatten().is_some());
        assert!(frames.next().now_or_never().unwrap().is_none());
    }

    #[test]
    fn a_lost_stream_is_told_to_who_waits() {
        let (mut writer, frames) = queue(1000, Kind::Hello(Hello::default()));
        assert!(put(&mut writer, 1000));
        drop(frames);
        assert!(matches!(writer.wait_for_room(1).now_or_never(), Some(Err(LinkError::PeerGone))));
        assert!(matches!(writer.stage(1, Bytes::new), Err(LinkError::PeerGone)));
    }
}
