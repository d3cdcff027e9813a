//! The gateway's two links: requests to the tokenizer, events from the detokenizer. Both are redialled for ever.

use std::sync::Arc;

use futures::future::Either;
use link::{Link, LinkError, Receiver, Sender};
use proto::{EventBatch, Failure, Inbound, failure};

use crate::{engine::pipeline::unavailable, gateway::Gateway};

/// Batches taken together before waking anybody: under load events of several steps are merged.
const BATCHES_AT_ONCE: usize = 16;

/// Keeps the link to the tokenizer up, and sends what the outbox holds. Ends when cancelled.
pub async fn requests(gateway: Arc<Gateway>) {
    let peers = &gateway.config.peers;
    let hello = link::hello("api-gateway", "requests", &peers.fingerprint.model_fingerprint);
    loop {
        let Link { sender, receiver, .. } =
            link::redial::<Inbound, Inbound>(&peers.requests, hello.clone(), &gateway.process.links).await;
        tracing::info!(address = %peers.requests, "tokenizer connected");
        gateway.pipeline.outbox().up();
        let error = send_all(&gateway, sender, receiver).await;
        gateway.pipeline.requests_lost();
        tracing::warn!(address = %peers.requests, %error, "tokenizer lost");
    }
}

/// Sends until the link breaks; says why it did.
async fn send_all(gateway: &Gateway, mut sender: Sender<Inbound>, mut receiver: Receiver<Inbound>) -> LinkError {
    let outbox = gateway.pipeline.outbox();
    loop {
        // Nothing is ever received: the receiver tells when the peer is gone.
        let gone = std::pin::pin!(receiver.recv());
        let next = std::pin::pin!(outbox.next());
        let message = match futures::future::select(next, gone).await {
            Either::Left((message, _)) => message,
            Either::Right((Ok(_), _)) => continue,
            Either::Right((Err(error), _)) => return error,
        };
        gateway.process.status.advance();
        match sender.send(&message).await {
            Ok(()) => {}
            Err(error) => {
                let refused = refusal(&error);
                let goes_on = refused.is_some();
                gateway.pipeline.unsent(message, refused);
                if !goes_on {
                    return error;
                }
            }
        }
    }
}

/// The failure of a message that cannot be sent although the link lives.
fn refusal(error: &LinkError) -> Option<Failure> {
    match error {
        LinkError::TooLarge { bytes, limit } => Some(Failure {
            kind: failure::Kind::Invalid.into(),
            message: format!("The request is too large: {bytes} bytes, the limit is {limit}."),
            param: String::new(),
        }),
        LinkError::Deadline { .. } => Some(unavailable("The tokenizer is busy, try again.")),
        _ => None,
    }
}

/// Keeps the link from the detokenizer up, and delivers its events. Ends when cancelled.
pub async fn events(gateway: Arc<Gateway>) {
    let peers = &gateway.config.peers;
    let hello = link::hello("api-gateway", "events", &peers.fingerprint.model_fingerprint);
    loop {
        // The sender is kept: dropping it would end the link.
        let Link { sender: _sender, receiver, .. } =
            link::redial::<Inbound, EventBatch>(&peers.events, hello.clone(), &gateway.process.links).await;
        tracing::info!(address = %peers.events, "detokenizer connected");
        gateway.pipeline.events_up();
        let error = receive_all(&gateway, receiver).await;
        gateway.pipeline.events_lost();
        tracing::warn!(address = %peers.events, %error, "detokenizer lost");
    }
}

/// Delivers until the link breaks; says why it did.
async fn receive_all(gateway: &Gateway, mut receiver: Receiver<EventBatch>) -> LinkError {
    let mut batches = Vec::with_capacity(BATCHES_AT_ONCE);
    loop {
        let mut broken = None;
        match receiver.recv().await {
            Ok(batch) => batches.push(batch),
            Err(error) => return error,
        }
        while batches.len() < BATCHES_AT_ONCE {
            match receiver.try_recv() {
                Ok(Some(batch)) => batches.push(batch),
                Ok(None) => break,
                Err(error) => {
                    broken = Some(error);
                    break;
                }
            }
        }
        gateway.process.status.advance();
        gateway.pipeline.deliver(batches.drain(..));
        if let Some(error) = broken {
            return error;
        }
    }
}
