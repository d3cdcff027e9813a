//! What waits to be sent to the tokenizer: requests while the link is up, aborts always.

use std::collections::VecDeque;

use parking_lot::Mutex;
use proto::Inbound;
use tokio::sync::Notify;

/// A bounded queue that refuses requests while the link is down.
pub struct Outbox {
    inner: Mutex<Inner>,
    filled: Notify,
    limit: usize,
}

struct Inner {
    up: bool,
    queue: VecDeque<Inbound>,
}

impl Outbox {
    /// Holds at most `limit` requests, and the aborts of at most four times as many.
    pub fn new(limit: usize) -> Self {
        let inner = Inner { up: false, queue: VecDeque::new() };
        Self { inner: Mutex::new(inner), filled: Notify::new(), limit: limit.max(1) }
    }

    /// Whether requests are taken.
    pub fn is_up(&self) -> bool {
        self.inner.lock().up
    }

    /// The link is up: requests are taken from now on.
    pub fn up(&self) {
        self.inner.lock().up = true;
    }

    /// The link is lost. Forgets the requests that wait (the registry fails them); aborts stay for when it is back.
    pub fn down(&self) {
        let mut inner = self.inner.lock();
        inner.up = false;
        inner.queue.retain(is_abort);
    }

    /// Queues a request; `false` when the link is down or the queue is full.
    pub fn push(&self, message: Inbound) -> bool {
        let mut inner = self.inner.lock();
        if !inner.up || inner.queue.len() >= self.limit * 2 {
            return false;
        }
        inner.queue.push_back(message);
        drop(inner);
        self.filled.notify_one();
        true
    }

    /// Queues an abort, whatever the link does. A tokenizer that is away for so long that the bound is reached has lost
    /// those requests anyway, and the oldest abort goes.
    pub fn push_abort(&self, message: Inbound) {
        let mut inner = self.inner.lock();
        if inner.queue.len() >= self.limit * 4 {
            let oldest = inner.queue.iter().position(is_abort);
            oldest.map(|index| inner.queue.remove(index));
        }
        inner.queue.push_back(message);
        drop(inner);
        self.filled.notify_one();
    }

    /// The next message, when there is one. For one taker; cancel-safe.
    pub async fn next(&self) -> Inbound {
        loop {
            if let Some(message) = self.try_next() {
                return message;
            }
            self.filled.notified().await;
        }
    }

    /// The next message, if there is one.
    pub fn try_next(&self) -> Option<Inbound> {
        self.inner.lock().queue.pop_front()
    }
}

fn is_abort(message: &Inbound) -> bool {
    matches!(message.event, Some(proto::inbound::Event::Abort(_)))
}

#[cfg(test)]
mod tests {
    use proto::{Abort, Request, inbound::Event};

    use super::*;

    fn request() -> Inbound {
        Inbound { event: Some(Event::Request(Request::default())) }
    }

    fn abort() -> Inbound {
        Inbound { event: Some(Event::Abort(Abort::default())) }
    }

    #[test]
    fn aborts_outlive_the_link() {
        let outbox = Outbox::new(4);
        assert!(!outbox.push(request()));
        outbox.up();
        assert!(outbox.push(request()));
        outbox.push_abort(abort());
        outbox.down();
        assert_eq!(outbox.try_next(), Some(abort()));
        assert_eq!(outbox.try_next(), None);
    }

    #[test]
    fn full_means_refused() {
        let outbox = Outbox::new(2);
        outbox.up();
        for _ in 0..4 {
            assert!(outbox.push(request()));
        }
        assert!(!outbox.push(request()));
        for _ in 0..100 {
            outbox.push_abort(abort());
        }
        let kept = std::iter::from_fn(|| outbox.try_next()).count();
        assert_eq!(kept, 8);
    }
}
