//! A stage's ranks, with the ways to the stages before and after.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use bytes::Bytes;
use collectives::{Collective, CollectiveError};
use proto::StageRows;
use service_kit::profile::Recorder;
use tokio::sync::mpsc::error::TryRecvError;

use super::{Brought, Inlet, NO_RANK, Neighbours, Outlet};

/// Bytes of rows in a message.
const PIECE: usize = 1 << 20;

/// Ranks that share the layers of a stage, between two others.
pub(crate) struct StageGroup {
    ranks: Box<dyn Collective>,
    neighbours: Neighbours,
    epoch: u64,
    /// Transfers to the stage after, and from the one before.
    sent: u64,
    received: u64,
    recorder: Recorder,
}

impl StageGroup {
    /// Waits until the neighbours of a stage's rank are connected.
    pub(crate) fn join(
        ranks: Box<dyn Collective>,
        mut neighbours: Neighbours,
        epoch: u64,
        recorder: Recorder,
    ) -> Result<Self, CollectiveError> {
        if let Some(after) = &mut neighbours.after {
            after.connected()?;
        }
        if let Some(before) = &mut neighbours.before {
            before.next()?;
        }
        Ok(Self { ranks, neighbours, epoch, sent: 0, received: 0, recorder })
    }
}

impl Inlet {
    /// Waits for the next message.
    fn next(&mut self) -> Result<StageRows, CollectiveError> {
        let brought = match self.rows.try_recv() {
            Ok(brought) => Some(brought),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => waiting(&self.waits_for, self.rank, || self.rows.blocking_recv()),
        };
        answer(self.rank, brought)
    }

    fn broken(&self, reason: &str) -> CollectiveError {
        CollectiveError::Stage { rank: self.rank as usize, reason: reason.to_owned() }
    }
}

impl Outlet {
    /// Waits until the link is there.
    fn connected(&mut self) -> Result<(), CollectiveError> {
        let state = waiting(&self.waits_for, self.rank, || self.state.blocking_recv());
        answer(self.rank, state).map(drop)
    }

    /// Hands a message to the link, waiting for room.
    fn send(&mut self, rows: StageRows) -> Result<(), CollectiveError> {
        let sent = waiting(&self.waits_for, self.rank, || self.rows.blocking_send(rows));
        // The link's task has said why it ended.
        sent.or_else(|_| answer(self.rank, self.state.blocking_recv()).map(drop))
    }
}

/// Waits for `rank`, and says so meanwhile.
fn waiting<T>(waits_for: &AtomicU32, rank: u32, wait: impl FnOnce() -> T) -> T {
    waits_for.store(rank, Relaxed);
    let found = wait();
    waits_for.store(NO_RANK, Relaxed);
    found
}

/// What a link brought; nothing: the group was given up.
fn answer(rank: u32, brought: Option<Brought>) -> Result<StageRows, CollectiveError> {
    let brought = brought.ok_or(CollectiveError::Aborted)?;
    brought.map_err(|reason| CollectiveError::Stage { rank: rank as usize, reason })
}

impl Collective for StageGroup {
    fn rank(&self) -> usize {
        self.ranks.rank()
    }

    fn world_size(&self) -> usize {
        self.ranks.world_size()
    }

    fn all_reduce_sum(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        self.ranks.all_reduce_sum(data)
    }

    fn all_gather(&mut self, mine: &[f32], all: &mut [f32]) -> Result<(), CollectiveError> {
        self.ranks.all_gather(mine, all)
    }

    fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>, CollectiveError> {
        self.ranks.exchange(mine)
    }

    fn give_next(&mut self, bytes: &[u8]) -> Result<(), CollectiveError> {
        let after = self.neighbours.after.as_mut().ok_or(CollectiveError::NoStage { which: "after" })?;
        self.sent += 1;
        for piece in bytes.chunks(PIECE) {
            let rows = Bytes::copy_from_slice(piece);
            after.send(StageRows { epoch: self.epoch, transfer: self.sent, rows })?;
        }
        Ok(())
    }

    fn take_before(&mut self, mut bytes: &mut [u8]) -> Result<(), CollectiveError> {
        let before = self.neighbours.before.as_mut().ok_or(CollectiveError::NoStage { which: "before" })?;
        // Of a step's time, what the stage has nothing to compute.
        let _scope = self.recorder.scope("receive");
        self.received += 1;
        while !bytes.is_empty() {
            let StageRows { epoch, transfer, rows: piece } = before.next()?;
            let is_next = (epoch, transfer) == (self.epoch, self.received);
            if !is_next || piece.is_empty() || piece.len() > bytes.len() {
                return Err(before.broken("it sent other rows than this step's"));
            }
            let (part, rest) = bytes.split_at_mut(piece.len());
            part.copy_from_slice(&piece);
            bytes = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, thread};

    use collectives::Solo;
    use tokio::sync::mpsc;

    use super::*;

    fn inlet() -> (mpsc::Sender<Brought>, Inlet) {
        let (sender, rows) = mpsc::channel(64);
        (sender, Inlet { rank: 3, rows, waits_for: Arc::new(AtomicU32::new(NO_RANK)) })
    }

    fn second_stage() -> (mpsc::Sender<Brought>, StageGroup) {
        let (sender, before) = inlet();
        sender.try_send(Ok(StageRows { epoch: 7, ..StageRows::default() })).unwrap();
        let neighbours = Neighbours { before: Some(before), after: None };
        (sender, StageGroup::join(Box::new(Solo), neighbours, 7, Recorder::default()).unwrap())
    }

    fn piece(transfer: u64, bytes: &[u8]) -> Brought {
        Ok(StageRows { epoch: 7, transfer, rows: Bytes::copy_from_slice(bytes) })
    }

    #[test]
    fn bytes_come_in_pieces() {
        let (sender, mut group) = second_stage();
        let sent = [1, 128, 255, 0, 7];
        for transfer in 1..3 {
            let mut bytes = [0; 5];
            sender.try_send(piece(transfer, &sent[..2])).unwrap();
            sender.try_send(piece(transfer, &sent[2..])).unwrap();
            group.take_before(&mut bytes).unwrap();
            assert_eq!(bytes, sent);
        }
    }

    #[test]
    fn other_rows_than_expected_end_the_group() {
        let cases = [piece(2, &[1]), piece(1, &[]), piece(1, &[1; 3])];
        for (case, wrong) in cases.into_iter().enumerate() {
            let (sender, mut group) = second_stage();
            sender.try_send(wrong).unwrap();
            let refused = group.take_before(&mut [0; 2]).unwrap_err().to_string();
            assert!(refused.contains("rank 3") && refused.contains("other rows"), "{case}: {refused}");
        }
    }

    #[test]
    fn a_wait_says_for_whom_and_ends_with_the_group() {
        let (sender, mut group) = second_stage();
        let waits_for = group.neighbours.before.as_ref().unwrap().waits_for.clone();
        let waiting = thread::spawn(move || group.take_before(&mut [0; 2]));
        while waits_for.load(Relaxed) != 3 {
            thread::yield_now();
        }
        drop(sender);
        assert!(matches!(waiting.join().unwrap(), Err(CollectiveError::Aborted)));
        assert_eq!(waits_for.load(Relaxed), NO_RANK);
    }

    #[test]
    fn a_broken_link_is_told_with_its_reason() {
        let (sender, mut group) = second_stage();
        sender.try_send(Err("the peer is gone".to_owned())).unwrap();
        let lost = group.take_before(&mut [0; 2]).unwrap_err().to_string();
        assert_eq!(lost, "the stage of rank 3: the peer is gone");
        assert!(matches!(group.give_next(&[1]), Err(CollectiveError::NoStage { .. })));
    }
}
