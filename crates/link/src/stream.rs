//! What comes in over gRPC: frames of one stream.

use std::time::Duration;

use prost::Message;
use proto::{Frame, frame::Kind};
use tokio::{runtime::Handle, time::timeout};
use tonic::{Code, Status, Streaming};

use crate::{error::LinkError, queue::Watch};

/// The incoming direction.
pub(crate) struct Stream {
    /// `None` only while it is dropped.
    incoming: Option<Streaming<Frame>>,
    /// The outgoing direction's queue.
    queue: Option<Watch>,
    closing: Closing,
}

/// What a dropped incoming direction owes the outgoing one.
pub(crate) enum Closing {
    /// A listener's answers go on without the dialer's stream.
    AtOnce,
    /// A dialer's stream does not: HTTP/2 discards what is still buffered of a request when nobody wants its answer. So
    /// the answer is kept until the peer has ended it, which it does when it has read everything, but no longer than
    /// this after the outgoing direction has ended.
    Linger(Duration, Handle),
}

impl Stream {
    pub(crate) fn new(incoming: Streaming<Frame>, queue: Watch, closing: Closing) -> Self {
        Self { incoming: Some(incoming), queue: Some(queue), closing }
    }

    /// The next message. Cancel-safe: the stream keeps what has arrived of it.
    pub(crate) async fn recv<R: Message + Default>(&mut self) -> Result<R, LinkError> {
        let Some((incoming, queue)) = self.incoming.as_mut().zip(self.queue.as_ref()) else {
            return Err(LinkError::PeerGone);
        };
        match next(incoming).await {
            Ok(Kind::Data(data)) => Ok(R::decode(data)?),
            Ok(other) => Err(unexpected(&other)),
            Err(error) => {
                // A peer that has ended its direction reads no more.
                queue.abandon();
                Err(error)
            }
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let (Closing::Linger(limit, runtime), Some(mut incoming), Some(queue)) =
            (&self.closing, self.incoming.take(), self.queue.take())
        {
            let limit = *limit;
            runtime.spawn(async move {
                queue.ended().await;
                let last = async { while let Ok(Some(_)) = incoming.message().await {} };
                // Either way the link is over.
                let _ = timeout(limit, last).await;
            });
        }
    }
}

/// The next frame.
pub(crate) async fn next(incoming: &mut Streaming<Frame>) -> Result<Kind, LinkError> {
    let frame = incoming.message().await.map_err(ended)?.ok_or(LinkError::PeerGone)?;
    frame.kind.ok_or_else(|| LinkError::Protocol { what: "an empty frame".to_owned() })
}

/// What the end of a stream means. A connection that breaks is told in many ways; all say that the peer is gone.
pub(crate) fn ended(status: Status) -> LinkError {
    match status.code() {
        Code::OutOfRange | Code::Unimplemented => LinkError::Protocol { what: status.message().to_owned() },
        Code::Unauthenticated => LinkError::Refused { reason: status.message().to_owned() },
        Code::Aborted => LinkError::Protocol { what: status.message().to_owned() },
        code => {
            tracing::debug!(%code, message = status.message(), "a link's stream ended");
            LinkError::PeerGone
        }
    }
}

/// The error of a frame that has no place here.
pub(crate) fn unexpected(kind: &Kind) -> LinkError {
    let what = match kind {
        Kind::Hello(_) => "a hello out of place",
        Kind::Welcome(_) => "a welcome out of place",
        Kind::Data(_) => "data before the handshake",
    };
    LinkError::Protocol { what: what.to_owned() }
}
