//! An established link and its two directions, whatever carries them.

use std::{marker::PhantomData, time::Duration};

use bytes::Bytes;
use futures::FutureExt;
use prost::Message;
use proto::Hello;
use tokio::time::timeout;

use crate::{error::LinkError, options::LinkOptions, queue::Writer, stream::Stream};

/// A buffer that one large message grew is given back rather than kept.
const KEPT_BYTES: usize = 1 << 20;

/// An established link, seen from one end: sends `S`, receives `R`.
pub struct Link<S, R> {
    /// What the peer said of itself.
    pub peer: Hello,
    /// The outgoing direction.
    pub sender: Sender<S>,
    /// The incoming direction.
    pub receiver: Receiver<R>,
}

/// A link that does not know its types yet.
pub(crate) struct Established {
    pub(crate) peer: Hello,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
}

/// What carries the outgoing direction.
pub(crate) enum Outgoing {
    Ring(Box<shm_ring::Sender>),
    Grpc { queue: Writer, limit: usize },
}

/// What carries the incoming direction.
pub(crate) enum Incoming {
    Ring {
        ring: Box<shm_ring::Receiver>,
        /// The record being decoded; kept to save allocations.
        record: Vec<u8>,
    },
    Grpc(Box<Stream>),
}

impl<S: Message, R: Message + Default> Link<S, R> {
    pub(crate) fn new(established: Established, options: &LinkOptions) -> Self {
        let Established { peer, outgoing, incoming } = established;
        let sender = Sender { outgoing, deadline: options.send_deadline, encoded: Vec::new(), message: PhantomData };
        Self { peer, sender, receiver: Receiver { incoming, message: PhantomData } }
    }
}

/// The outgoing direction of a link. Dropping it ends the link in order: the peer receives what was sent, then
/// `PeerGone`. Keep both directions for as long as the link is wanted, also the one that carries nothing.
pub struct Sender<S> {
    outgoing: Outgoing,
    deadline: Duration,
    /// The message being sent; kept to save allocations.
    encoded: Vec<u8>,
    message: PhantomData<fn(S)>,
}

impl<S: Message> Sender<S> {
    /// Sends one message, waiting for room until the deadline. Cancel-safe: sent wholly or not at all.
    pub async fn send(&mut self, message: &S) -> Result<(), LinkError> {
        self.send_many(std::slice::from_ref(message)).await
    }

    /// Sends messages in order, waking the peer once for all that fit at a time. The deadline is for each wait for
    /// room. If it fails or is cancelled, a first part of them may be sent, each wholly.
    pub async fn send_many(&mut self, messages: &[S]) -> Result<(), LinkError> {
        tokio::task::coop::consume_budget().await;
        let outcome = self.stage_all(messages).await;
        self.publish();
        outcome
    }

    async fn stage_all(&mut self, messages: &[S]) -> Result<(), LinkError> {
        for message in messages {
            while !self.stage(message)? {
                self.wait_for_room(message.encoded_len()).await?;
            }
        }
        Ok(())
    }

    /// Sends one message if there is room now; `false` when there is none.
    pub fn try_send(&mut self, message: &S) -> Result<bool, LinkError> {
        let fits = self.stage(message)?;
        self.publish();
        Ok(fits)
    }

    /// Sends a message that is already encoded (one plan to many ranks).
    pub async fn send_encoded(&mut self, message: &Bytes) -> Result<(), LinkError> {
        tokio::task::coop::consume_budget().await;
        loop {
            let fits = match &mut self.outgoing {
                Outgoing::Ring(ring) => ring.stage(message)?,
                Outgoing::Grpc { queue, limit } => {
                    check_size(message.len(), *limit)?;
                    queue.stage(message.len(), || message.clone())?
                }
            };
            if fits {
                self.publish();
                return Ok(());
            }
            self.wait_for_room(message.len()).await?;
        }
    }

    /// Hands a message to the transport, to be seen after [`Self::publish`]; `false` when there is no room now.
    fn stage(&mut self, message: &S) -> Result<bool, LinkError> {
        match &mut self.outgoing {
            Outgoing::Ring(ring) => {
                shrink(&mut self.encoded);
                // Measures the message; doing that before, too, takes as long as writing it. It fails only for want of
                // room, and a Vec grows.
                let _ = message.encode(&mut self.encoded);
                check_size(self.encoded.len(), ring.limit())?;
                Ok(ring.stage(&self.encoded)?)
            }
            Outgoing::Grpc { queue, limit } => {
                let bytes = message.encoded_len();
                check_size(bytes, *limit)?;
                queue.stage(bytes, || message.encode_to_vec().into())
            }
        }
    }

    fn publish(&mut self) {
        match &mut self.outgoing {
            Outgoing::Ring(ring) => ring.publish(),
            Outgoing::Grpc { queue, .. } => queue.publish(),
        }
    }

    async fn wait_for_room(&mut self, len: usize) -> Result<(), LinkError> {
        let waiting = async {
            match &mut self.outgoing {
                Outgoing::Ring(ring) => Ok(ring.wait_for_room(len).await?),
                Outgoing::Grpc { queue, .. } => queue.wait_for_room(len).await,
            }
        };
        timeout(self.deadline, waiting).await.unwrap_or(Err(LinkError::Deadline { doing: "waiting for room" }))
    }
}

/// The incoming direction of a link.
pub struct Receiver<R> {
    incoming: Incoming,
    message: PhantomData<fn() -> R>,
}

impl<R: Message + Default> Receiver<R> {
    /// The next message. `Err(PeerGone)` after the last one, however the peer ended. Cancel-safe.
    pub async fn recv(&mut self) -> Result<R, LinkError> {
        match &mut self.incoming {
            Incoming::Ring { ring, record } => {
                shrink(record);
                ring.recv(record).await?;
                Ok(R::decode(record.as_slice())?)
            }
            Incoming::Grpc(stream) => stream.recv().await,
        }
    }

    /// The next message if it is already here.
    pub fn try_recv(&mut self) -> Result<Option<R>, LinkError> {
        match &mut self.incoming {
            Incoming::Ring { ring, record } => {
                shrink(record);
                match ring.try_recv(record)? {
                    Some(_) => Ok(Some(R::decode(record.as_slice())?)),
                    None => Ok(None),
                }
            }
            // One poll of a cancel-safe future: what is not here yet stays in the stream.
            Incoming::Grpc(stream) => stream.recv().now_or_never().transpose(),
        }
    }
}

fn check_size(bytes: usize, limit: usize) -> Result<(), LinkError> {
    if bytes > limit { Err(LinkError::TooLarge { bytes, limit }) } else { Ok(()) }
}

/// Empties a buffer, and gives its memory back if one large message has grown it.
fn shrink(buffer: &mut Vec<u8>) {
    buffer.clear();
    if buffer.capacity() > KEPT_BYTES {
        buffer.shrink_to(KEPT_BYTES);
    }
}
