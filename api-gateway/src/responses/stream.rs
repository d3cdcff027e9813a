//! A response that lives as long as its connection, streamed or whole.

use std::sync::Arc;

use super::{
    assembly::Assembly,
    events::Events,
    store::{Record, Store},
    turn::Turn,
};
use crate::{engine::mailbox::Update, openai::plan::Plan};

/// Writes the events of one response, and keeps it at its end.
pub struct ResponseStream {
    assembly: Assembly,
    store: Arc<Store>,
    events: Events,
}

impl ResponseStream {
    /// A writer for the response that `plan` and `turn` describe.
    pub fn new(plan: Plan, turn: Arc<Turn>, store: Arc<Store>) -> Self {
        Self { assembly: Assembly::new(plan, turn), store, events: Events::default() }
    }

    /// Appends the events for `update`, up to the last when it holds the ending. Tells whether it did.
    pub fn write(&mut self, out: &mut Vec<u8>, update: &mut Update) -> bool {
        self.events.clear();
        let ended = self.assembly.write(&mut self.events, update);
        out.extend_from_slice(self.events.bytes());
        if let Some(response) = &ended {
            keep(&self.assembly, &self.store, response.to_string());
        }
        ended.is_some()
    }

    /// Tokens that were streamed so far, for the log.
    pub fn tokens(&self) -> u64 {
        self.assembly.tokens()
    }
}

/// The body of a response whose choice has finished.
pub fn whole(plan: Plan, turn: Arc<Turn>, store: &Store, mut update: Update) -> Vec<u8> {
    let mut assembly = Assembly::new(plan, turn);
    let response = assembly.write(&mut Events::default(), &mut update).unwrap_or_default().to_string();
    keep(&assembly, store, response.clone());
    response.into_bytes()
}

fn keep(assembly: &Assembly, store: &Store, response: String) {
    if assembly.turn().store {
        store.keep(Record::ended(assembly.id(), &assembly.turn().context, response));
    }
}
