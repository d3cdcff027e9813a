//! The link to the detokenizer, while there is one, and the ends of requests that it may not have heard of.
//!
//! A message that was written to a link is not yet read: the other end may be dead, or cut off, and this one not know.
//! Gateways meanwhile reach the detokenizer that came after it, or were told that all is lost, and send requests again;
//! how those ended would be heard nowhere. So a detokenizer confirms the messages that end requests, and what is not
//! confirmed when a link is lost is told to the next one. Who has heard it before drops it: a gateway knows what it
//! waits for.

use std::collections::VecDeque;

use link::{LinkError, Sender};
use proto::{Failed, RequestKey, TokenBatch};
use tracing::warn;

use crate::{error, messages::split};

/// Ends of requests that are kept, at most.
pub(crate) const MAX_ENDS: usize = 1 << 16;

/// The scheduler's end.
#[derive(Default)]
pub(crate) struct Detokenizer {
    link: Option<Sender<TokenBatch>>,
    /// Messages given to this link.
    sent: u64,
    /// The last of them that ends a request, which the other end will confirm; and the last that it has confirmed.
    last_end: u64,
    confirmed: u64,
    /// What to say of requests that ended, should the link be lost: the message that told of it, and the failure that
    /// it becomes.
    unconfirmed: VecDeque<(u64, Failed)>,
}

impl Detokenizer {
    /// Whether there is one.
    pub(crate) fn is_up(&self) -> bool {
        self.link.is_some()
    }

    /// It is there (again).
    pub(crate) fn up(&mut self, link: Sender<TokenBatch>) {
        (self.link, self.sent, self.last_end, self.confirmed) = (Some(link), 0, 0, 0);
    }

    /// It has taken in the first `messages` of its link.
    pub(crate) fn confirmed(&mut self, messages: u64) {
        self.confirmed = messages;
        let heard = self.unconfirmed.partition_point(|(message, _)| *message <= messages);
        self.unconfirmed.drain(..heard);
    }

    /// Whether it has taken in how all requests ended, or is not there to hear it.
    pub(crate) fn has_heard_all(&self) -> bool {
        self.link.is_none() || self.confirmed >= self.last_end
    }

    /// Tells what happened, in which the requests `over` ended in order. False: nobody is there; what ended is in
    /// [`Self::lost`].
    pub(crate) async fn tell(
        &mut self,
        batch: TokenBatch,
        over: impl Iterator<Item = RequestKey>,
    ) -> Result<bool, LinkError> {
        let ends_any = |batch: &TokenBatch| !(batch.finished.is_empty() && batch.failed.is_empty());
        let mut ends = batch.failed.clone();
        ends.extend(over.map(|key| Failed { key: Some(key), ..Failed::default() }));
        let outcome = match &mut self.link {
            None => Ok(false),
            Some(link) => match link.send(&batch).await {
                Err(LinkError::TooLarge { limit, .. }) => {
                    let messages = split(batch, limit);
                    if let Some(last) = messages.iter().rposition(ends_any) {
                        self.last_end = self.sent + 1 + last as u64;
                    }
                    self.sent += messages.len() as u64;
                    link.send_many(&messages).await.map(|()| true)
                }
                outcome => {
                    self.sent += 1;
                    if ends_any(&batch) {
                        self.last_end = self.sent;
                    }
                    outcome.map(|()| true)
                }
            },
        };
        self.unconfirmed.extend(ends.into_iter().map(|end| (self.sent, end)));
        let excess = self.unconfirmed.len().saturating_sub(MAX_ENDS);
        if excess > 0 {
            warn!(excess, "the detokenizer is far behind; the oldest ends of requests would not be told again");
            self.unconfirmed.drain(..excess);
        }
        outcome
    }

    /// There is none any more. What the next one is to be told.
    pub(crate) fn lost(&mut self) -> impl Iterator<Item = Failed> {
        self.link = None;
        let again = |(_, end): (u64, Failed)| Failed {
            failure: end.failure.or_else(|| Some(error::detokenizer_lost())),
            ..end
        };
        std::mem::take(&mut self.unconfirmed).into_iter().map(again)
    }
}
