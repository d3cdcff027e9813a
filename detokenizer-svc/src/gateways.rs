//! Outgoing events: one message a batch and gateway, and nobody waits for a gateway that does not read.
//!
//! A message that finds room is written at once. One that does not is handed to a task that waits for room, up to the link's deadline;
//! what comes meanwhile is kept, up to a bound. A gateway past either is hung up on: it fails its requests itself, and dials again.

use std::collections::HashMap;

use link::{LinkError, Sender};
use proto::{Event, EventBatch, RequestKey, event::Kind};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::{
    error,
    wire::{Connection, Reader},
};

/// Events that may wait for a gateway that does not read.
const MAX_BACKLOG: usize = 1 << 18;

/// All connected gateways.
pub(crate) struct Gateways {
    connected: HashMap<u64, Gateway>,
    /// Messages that wait for room.
    waiting: JoinSet<Waited>,
    message_limit: usize,
    /// Requests that ended because an event of theirs never fits a link.
    unfit: Vec<RequestKey>,
    /// Gateways that were hung up on.
    pub(crate) dropped: u64,
}

struct Gateway {
    number: u64,
    /// Absent while a task waits with it.
    sender: Option<Sender<EventBatch>>,
    backlog: Vec<Event>,
    _reader: Reader,
}

/// A task that waited for room is done.
pub(crate) struct Waited {
    gateway: u64,
    number: u64,
    sender: Sender<EventBatch>,
    outcome: Result<(), LinkError>,
}

impl Gateways {
    pub(crate) fn new(message_limit: usize) -> Self {
        Self { connected: HashMap::new(), waiting: JoinSet::new(), message_limit, unfit: Vec::new(), dropped: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.connected.len()
    }

    /// A gateway came; a link that it had before is dropped.
    pub(crate) fn connected(&mut self, connection: Connection) {
        let Connection { gateway, number, pid, sender, reader } = connection;
        info!(gateway, pid, "gateway connected");
        let state = Gateway { number, sender: Some(sender), backlog: Vec::new(), _reader: reader };
        self.connected.insert(gateway, state);
    }

    /// A gateway left. False: by a link that had been replaced already.
    pub(crate) fn left(&mut self, gateway: u64, number: u64, reason: &LinkError) -> bool {
        let current = self.connected.get(&gateway).is_some_and(|state| state.number == number);
        if current {
            info!(gateway, "gateway left: {reason}");
            self.connected.remove(&gateway);
        }
        current
    }

    /// Sends events to a gateway. False: it is lost.
    pub(crate) fn send(&mut self, gateway: u64, events: Vec<Event>) -> bool {
        let Some(state) = self.connected.get_mut(&gateway) else { return true };
        let Some(sender) = &mut state.sender else {
            state.backlog.extend(events);
            return if state.backlog.len() > MAX_BACKLOG { self.hang_up(gateway, "it does not read") } else { true };
        };
        let unfit = |number| self.unfit.push(RequestKey { gateway, number });
        let mut messages = split(EventBatch { events }, self.message_limit, unfit);
        while let Some(message) = messages.pop() {
            match sender.try_send(&message) {
                Ok(true) => {}
                Ok(false) => {
                    messages.push(message);
                    return self.wait(gateway, messages);
                }
                Err(reason) => return self.hang_up(gateway, &reason.to_string()),
            }
        }
        true
    }

    /// The requests that ended since the last call because an event of theirs never fits a link. Their gateways have been told.
    pub(crate) fn unfit(&mut self) -> Vec<RequestKey> {
        std::mem::take(&mut self.unfit)
    }

    /// Hands the link to a task that sends `messages`, last one first.
    fn wait(&mut self, gateway: u64, mut messages: Vec<EventBatch>) -> bool {
        let Some(state) = self.connected.get_mut(&gateway) else { return true };
        let Some(mut sender) = state.sender.take() else { return true };
        let number = state.number;
        messages.reverse();
        self.waiting.spawn(async move {
            let outcome = sender.send_many(&messages).await;
            Waited { gateway, number, sender, outcome }
        });
        true
    }

    /// A gateway that was waited for. Pending for ever while none is. Cancel-safe.
    pub(crate) async fn waited(&mut self) -> Waited {
        loop {
            match self.waiting.join_next().await {
                Some(Ok(waited)) => return waited,
                // A task that panicked has lost its gateway's link, whose reader tells.
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Takes a link back, and sends what was kept meanwhile. The gateway, if it is lost.
    pub(crate) fn resume(&mut self, waited: Waited) -> Option<u64> {
        let Waited { gateway, number, sender, outcome } = waited;
        let state = self.connected.get_mut(&gateway).filter(|state| state.number == number)?;
        state.sender = Some(sender);
        if let Err(reason) = outcome {
            self.hang_up(gateway, &reason.to_string());
            return Some(gateway);
        }
        let backlog = std::mem::take(&mut state.backlog);
        if backlog.is_empty() || self.send(gateway, backlog) { None } else { Some(gateway) }
    }

    fn hang_up(&mut self, gateway: u64, reason: &str) -> bool {
        warn!(gateway, "hung up on a gateway: {reason}");
        self.dropped += 1;
        self.connected.remove(&gateway);
        false
    }
}

/// The batch as messages that fit a link, in reverse order. An event that never fits becomes its request's failure.
fn split(batch: EventBatch, limit: usize, mut unfit: impl FnMut(u64)) -> Vec<EventBatch> {
    let mut messages = link::split(batch, limit, |mut batch, bytes| {
        if let [event] = batch.events.as_mut_slice() {
            event.kind = Some(Kind::Failure(error::too_large(bytes, limit)));
            unfit(event.number);
            return (batch, None);
        }
        let second = batch.events.split_off(batch.events.len() / 2);
        (batch, Some(EventBatch { events: second }))
    });
    messages.reverse();
    messages
}

#[cfg(test)]
mod tests {
    use prost::Message;
    use proto::Delta;

    use super::*;

    fn event(number: u64, bytes: usize) -> Event {
        Event { number, kind: Some(Kind::Delta(Delta { text: "x".repeat(bytes), ..Delta::default() })) }
    }

    #[test]
    fn large_batches_are_split_in_order() {
        let events: Vec<Event> = (1..=9).map(|number| event(number, 100)).collect();
        let mut messages = split(EventBatch { events: events.clone() }, 300, |number| panic!("{number} fits"));
        assert!(messages.len() > 3 && messages.iter().all(|message| message.encoded_len() <= 300));
        messages.reverse();
        let joined: Vec<Event> = messages.into_iter().flat_map(|message| message.events).collect();
        assert_eq!(joined, events);
    }

    #[test]
    fn an_event_that_never_fits_is_a_failure() {
        let mut unfit = Vec::new();
        let batch = EventBatch { events: vec![event(1, 10), event(2, 1000), event(3, 10)] };
        let mut messages = split(batch, 400, |number| unfit.push(number));
        assert_eq!(unfit, [2]);
        messages.retain(|message| message.events[0].number == 2);
        assert!(matches!(&messages[0].events[0], Event { number: 2, kind: Some(Kind::Failure(_)) }));
    }
}
