//! The gateway's two links: requests to the tokenizer, events from the detokenizer. Both are redialled for ever.

use std::{pin::pin, sync::Arc, time::Duration};

use futures::future::Either;
use link::{Hello, Link, LinkError, Receiver, Sender};
use proto::{EventBatch, Failure, Inbound, failure};

use crate::{engine::pipeline::unavailable, gateway::Gateway};

/// Batches taken together before waking anybody: under load events of several steps are merged.
const BATCHES_AT_ONCE: usize = 16;
/// Between two looks at a name that stands for several servers: nothing tells when it leads to the right one.
const OTHER_SERVER: Duration = Duration::from_millis(100);

/// Keeps the link to the tokenizer up, and sends what the outbox holds. Ends when cancelled.
pub async fn requests(gateway: Arc<Gateway>) {
    let address = &gateway.config.requests;
    let hello = hello(&gateway, "requests");
    loop {
        let Link { peer, sender, receiver } =
            link::redial::<Inbound, Inbound>(address, hello.clone(), &gateway.process.links).await;
        tracing::info!(%address, "tokenizer connected");
        gateway.server.send_replace(peer.server);
        gateway.pipeline.outbox().up();
        let error = send_all(&gateway, sender, receiver).await;
        gateway.server.send_replace(0);
        gateway.pipeline.requests_lost();
        tracing::warn!(%address, %error, "tokenizer lost");
    }
}

/// What this process says of itself when it dials.
fn hello(gateway: &Gateway, channel: &str) -> Hello {
    link::hello("api-gateway", channel, &gateway.config.peers.fingerprint.model_fingerprint)
}

/// Sends until the link breaks; says why it did.
async fn send_all(gateway: &Gateway, mut sender: Sender<Inbound>, mut receiver: Receiver<Inbound>) -> LinkError {
    let outbox = gateway.pipeline.outbox();
    loop {
        // Nothing is ever received: the receiver tells when the peer is gone.
        let gone = pin!(receiver.recv());
        let next = pin!(outbox.next());
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
    let address = &gateway.config.events;
    let hello = hello(&gateway, "events");
    let mut server = gateway.server.subscribe();
    loop {
        // The sender is kept: dropping it would end the link.
        let Link { peer, sender: _sender, receiver } =
            link::redial::<Inbound, EventBatch>(address, hello.clone(), &gateway.process.links).await;
        if is_another(*server.borrow_and_update(), peer.server) {
            tracing::warn!(%address, "this detokenizer is not of the server that has the tokenizer; dialling again");
            tokio::time::sleep(OTHER_SERVER).await;
            continue;
        }
        tracing::info!(%address, "detokenizer connected");
        gateway.pipeline.events_up();
        let another = server.wait_for(|server| is_another(*server, peer.server));
        let error = match futures::future::select(pin!(receive_all(&gateway, receiver)), pin!(another)).await {
            Either::Left((error, _)) => error,
            Either::Right(_) => LinkError::Protocol { what: "requests go to another server now".to_owned() },
        };
        gateway.pipeline.events_lost();
        tracing::warn!(%address, %error, "detokenizer lost");
    }
}

/// Whether answers to what one server gets do not come from the other.
fn is_another(server: u64, other: u64) -> bool {
    server != 0 && other != 0 && server != other
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
