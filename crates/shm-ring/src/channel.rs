//! The two ends of a ring as a process uses them: they wake the peer, await it, and notice its death.

use std::sync::Arc;

use tokio::task::coop::consume_budget;

use crate::{
    error::RingError,
    event::Event,
    peer::Peer,
    ring::{Consumer, Producer, Wake},
    segment::Segment,
    spin::Spin,
};

/// The sending end. Dropping it ends the ring in order: the peer reads what is there, then learns that it is over.
#[derive(Debug)]
pub struct Sender {
    producer: Producer<Segment>,
    /// "A record is there": signalled here.
    data: Event,
    /// "Room is there": awaited here.
    room: Event,
    peer: Arc<Peer>,
    spin: Spin,
}

impl Sender {
    pub(crate) fn new(producer: Producer<Segment>, data: Event, room: Event, peer: Arc<Peer>) -> Self {
        Self { producer, data, room, peer, spin: Spin::new() }
    }

    /// Payload bytes of the largest record.
    pub fn limit(&self) -> usize {
        self.producer.limit()
    }

    /// Sends a record if there is room now; `false` when there is none.
    pub fn try_send(&mut self, record: &[u8]) -> Result<bool, RingError> {
        self.check_peer()?;
        let fits = self.producer.push(record)?;
        self.publish();
        Ok(fits)
    }

    /// Sends a record, waiting for room. Cancel-safe: sent wholly or not at all.
    pub async fn send(&mut self, record: &[u8]) -> Result<(), RingError> {
        consume_budget().await;
        while !self.try_send(record)? {
            self.wait_for_room(record.len()).await?;
        }
        Ok(())
    }

    /// Writes a record without showing it yet; `false` when there is no room now. A batch is staged, then published
    /// with one store and at most one wake-up. Any other send publishes what is staged as well, in order.
    pub fn stage(&mut self, record: &[u8]) -> Result<bool, RingError> {
        self.check_peer()?;
        self.producer.push(record)
    }

    /// Shows all staged records to the peer.
    pub fn publish(&mut self) {
        if self.producer.publish() == Wake::Signal {
            self.data.signal();
        }
    }

    /// Publishes what is staged and waits until a record of `len` bytes fits. Cancel-safe.
    pub async fn wait_for_room(&mut self, len: usize) -> Result<(), RingError> {
        // A peer that sees nothing frees nothing.
        self.publish();
        while !self.spin.until(|| self.producer.has_room_for(len))? && self.producer.must_wait(len)? {
            let since = self.spin.sleeps();
            tokio::select! {
                signalled = self.room.wait() => signalled?,
                () = self.peer.gone() => return Err(RingError::Gone),
            }
            self.spin.woke(since);
        }
        self.check_peer()
    }

    /// Whether the peer is known to be gone.
    pub fn is_gone(&self) -> bool {
        self.producer.peer_closed() || self.peer.is_gone()
    }

    fn check_peer(&self) -> Result<(), RingError> {
        if self.is_gone() { Err(RingError::Gone) } else { Ok(()) }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.producer.close() == Wake::Signal {
            self.data.signal();
        }
    }
}

/// The receiving end. Dropping it tells the peer that nobody reads any more.
#[derive(Debug)]
pub struct Receiver {
    consumer: Consumer<Segment>,
    /// "A record is there": awaited here.
    data: Event,
    /// "Room is there": signalled here.
    room: Event,
    peer: Arc<Peer>,
    spin: Spin,
}

impl Receiver {
    pub(crate) fn new(consumer: Consumer<Segment>, data: Event, room: Event, peer: Arc<Peer>) -> Self {
        Self { consumer, data, room, peer, spin: Spin::new() }
    }

    /// Copies the next record, if it is here, to the end of `out`; its length, or `None`. [`RingError::Gone`] once the
    /// peer is gone and its last record was read.
    pub fn try_recv(&mut self, out: &mut Vec<u8>) -> Result<Option<usize>, RingError> {
        if let Some(length) = self.pop(out)? {
            return Ok(Some(length));
        }
        if !self.consumer.peer_closed() && !self.peer.is_gone() {
            return Ok(None);
        }
        // It may have published between the look and the end.
        self.pop(out)?.map(Some).ok_or(RingError::Gone)
    }

    /// Copies the next record to the end of `out`, waiting for it, and returns its length. Cancel-safe.
    pub async fn recv(&mut self, out: &mut Vec<u8>) -> Result<usize, RingError> {
        consume_budget().await;
        loop {
            if let Some(length) = self.try_recv(out)? {
                return Ok(length);
            }
            self.wait_for_record().await?;
        }
    }

    /// Copies all records that are here, up to `most`, to the end of `out`, and appends their lengths. Waits for the
    /// first one; gives their room back at once. Cancel-safe.
    pub async fn recv_many(
        &mut self,
        out: &mut Vec<u8>,
        lengths: &mut Vec<usize>,
        most: usize,
    ) -> Result<(), RingError> {
        lengths.push(self.recv(out).await?);
        let mut outcome = Ok(());
        for _ in 1..most {
            match self.consumer.pop(out) {
                Ok(Some(length)) => lengths.push(length),
                Ok(None) => break,
                Err(error) => {
                    outcome = Err(error);
                    break;
                }
            }
        }
        self.release();
        outcome
    }

    async fn wait_for_record(&mut self) -> Result<(), RingError> {
        if self.spin.until(|| self.consumer.has_record())? || !self.consumer.must_wait()? {
            return Ok(());
        }
        let since = self.spin.sleeps();
        tokio::select! {
            signalled = self.data.wait() => {
                signalled?;
                self.spin.woke(since);
            }
            // The caller looks once more for what was published last.
            () = self.peer.gone() => {}
        }
        Ok(())
    }

    fn pop(&mut self, out: &mut Vec<u8>) -> Result<Option<usize>, RingError> {
        let length = self.consumer.pop(out)?;
        self.release();
        Ok(length)
    }

    fn release(&mut self) {
        if self.consumer.release() == Wake::Signal {
            self.room.signal();
        }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if self.consumer.close() == Wake::Signal {
            self.room.signal();
        }
    }
}
