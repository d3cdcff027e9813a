//! Outgoing events: one message per batch and gateway. A gateway that does not read delays no other.
//!
//! A message that finds room is written at once. One that does not is handed to a task that waits for room, up to the
//! link's deadline; what comes meanwhile is kept, up to a bound. A gateway past either is hung up on: it fails its
//! requests itself, and dials again.

use std::collections::{HashMap, VecDeque};

use link::{LinkError, Sender};
use proto::{Event, EventBatch, RequestKey};
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::{
    parts::split,
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

    /// All that are connected.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.connected.keys().copied()
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
        let mut messages = VecDeque::from(split(EventBatch { events }, self.message_limit, unfit));
        while let Some(message) = messages.front() {
            match sender.try_send(message) {
                Ok(true) => drop(messages.pop_front()),
                Ok(false) => return self.wait(gateway, messages.into()),
                Err(reason) => return self.hang_up(gateway, &reason.to_string()),
            }
        }
        true
    }

    /// The requests that ended since the last call because an event of theirs never fits a link. Their gateways have
    /// been told.
    pub(crate) fn unfit(&mut self) -> Vec<RequestKey> {
        std::mem::take(&mut self.unfit)
    }

    /// Hands the link to a task that sends `messages`.
    fn wait(&mut self, gateway: u64, messages: Vec<EventBatch>) -> bool {
        let Some(state) = self.connected.get_mut(&gateway) else { return true };
        let Some(mut sender) = state.sender.take() else { return true };
        let number = state.number;
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
