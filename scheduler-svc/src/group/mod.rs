//! The workers of one engine: who is there, who is ready, and the forming of a group out of them.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use link::{LinkError, Sender};
use prost::Message;
use proto::{FormGroup, Hello, StepPlan, ToWorker, WorkerReady, to_worker::Command};
use tracing::info;

/// What the workers of a formed group agree on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Formed {
    pub epoch: u64,
    pub num_blocks: u32,
    /// Sequences that all of them have room for.
    pub max_num_seqs: u32,
    /// What rank 0 said of the model; the others say the same.
    pub ready: WorkerReady,
}

/// Who is there. A lost rank voids the epoch; when all ranks are ready again the next one forms.
pub(crate) struct Group {
    ranks: Vec<Option<Rank>>,
    epoch: u64,
    state: State,
    /// Why the last epoch ended, or the next one cannot begin.
    loss: Option<String>,
}

struct Rank {
    connection: u64,
    sender: Sender<ToWorker>,
    ready: Option<WorkerReady>,
    formed: bool,
}

#[derive(PartialEq)]
enum State {
    Incomplete,
    Forming,
    Formed,
}

/// Limits that every worker is told when its group forms.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub max_num_seqs: u32,
    pub max_num_batched_tokens: u32,
}

impl Group {
    /// A group of `world_size` ranks, none of them there.
    pub(crate) fn new(world_size: u32) -> Self {
        // Epochs start at the clock, so that a restarted scheduler's are newer than its predecessor's.
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Self { ranks: (0..world_size).map(|_| None).collect(), epoch, state: State::Incomplete, loss: None }
    }

    /// A worker connected. Returns `false` when its rank is none of this group's.
    pub(crate) fn up(&mut self, peer: &Hello, connection: u64, sender: Sender<ToWorker>) -> bool {
        let Some(place) = self.ranks.get_mut(peer.rank as usize) else { return false };
        *place = Some(Rank { connection, sender, ready: None, formed: false });
        true
    }

    /// A worker's link ended. Returns its rank, if it still had one.
    ///
    /// The others of its group are hung up on, and dial again: what they have begun may wait for the one that is gone.
    pub(crate) fn lost(&mut self, connection: u64, reason: &str) -> Option<u32> {
        let rank = self.rank_of(connection)?;
        self.ranks[rank] = None;
        self.loss = Some(format!("worker {rank} was lost: {reason}"));
        if self.state != State::Incomplete {
            self.disband();
        }
        Some(rank as u32)
    }

    /// A worker has its weights in memory.
    pub(crate) fn ready(&mut self, connection: u64, ready: WorkerReady) {
        if let Some(rank) = self.rank_of(connection) {
            self.ranks[rank].as_mut().expect("rank_of found it").ready = Some(ready);
        }
    }

    /// Whether all ranks are ready and wait for a `FormGroup`.
    pub(crate) fn can_form(&self) -> bool {
        self.state == State::Incomplete
            && self.ranks.iter().all(|rank| rank.as_ref().is_some_and(|r| r.ready.is_some()))
    }

    /// Tells all ranks to form the next epoch.
    pub(crate) async fn form(&mut self, limits: Limits) -> Result<(), Unreachable> {
        self.epoch += 1;
        self.state = State::Forming;
        let command = Command::FormGroup(FormGroup {
            epoch: self.epoch,
            world_size: self.ranks.len() as u32,
            num_blocks: self.num_blocks(),
            max_num_seqs: limits.max_num_seqs.min(self.max_num_seqs()),
            max_num_batched_tokens: limits.max_num_batched_tokens,
            // Not the process id: containers that share /dev/shm may all be process 1.
            rendezvous: format!("quire-{:x}-{}", link::hello("", "", "").instance, self.epoch),
        });
        for rank in self.ranks.iter_mut().flatten() {
            rank.formed = false;
        }
        self.broadcast(command).await
    }

    /// A rank formed `epoch`. Returns the group's facts when it was the last one.
    pub(crate) fn formed(&mut self, connection: u64, epoch: u64) -> Option<Formed> {
        if epoch != self.epoch || self.state != State::Forming {
            return None;
        }
        let rank = self.rank_of(connection)?;
        self.ranks[rank].as_mut()?.formed = true;
        if !self.ranks.iter().all(|rank| rank.as_ref().is_some_and(|r| r.formed)) {
            return None;
        }
        self.state = State::Formed;
        self.loss = None;
        let ready = self.ranks[0].as_ref()?.ready.clone()?;
        info!(epoch, workers = self.ranks.len(), device = ready.device, dtype = ready.dtype, "workers ready");
        Some(Formed { epoch, num_blocks: self.num_blocks(), max_num_seqs: self.max_num_seqs(), ready })
    }

    /// Whether steps can run.
    pub(crate) fn is_formed(&self) -> bool {
        self.state == State::Formed
    }

    /// Whether results of `epoch` from `connection` count: rank 0 of the formed group.
    pub(crate) fn speaks(&self, connection: u64, epoch: u64) -> bool {
        self.is_formed() && epoch == self.epoch && self.rank_of(connection) == Some(0)
    }

    /// Sends a plan to all ranks, encoded once.
    pub(crate) async fn send(&mut self, plan: StepPlan) -> Result<(), Unreachable> {
        self.broadcast(Command::Step(plan)).await
    }

    /// Drops all workers; they dial again with empty slots.
    pub(crate) fn disband(&mut self) {
        self.ranks.iter_mut().for_each(|rank| *rank = None);
        self.state = State::Incomplete;
    }

    /// What the group waits for, in words, and why.
    pub(crate) fn waits_for(&self) -> String {
        let cause = self.loss.as_ref().map_or_else(String::new, |loss| format!("; {loss}"));
        format!("{}{cause}", self.lacks())
    }

    fn lacks(&self) -> String {
        let missing = self.ranks.iter().filter(|rank| rank.is_none()).count();
        let loading = self.ranks.iter().flatten().filter(|rank| rank.ready.is_none()).count();
        match (missing, loading) {
            (0, 0) => "workers are forming their group".into(),
            (0, loading) => format!("{loading} of {} workers loading", self.ranks.len()),
            (missing, _) => format!("{missing} of {} workers not connected", self.ranks.len()),
        }
    }

    async fn broadcast(&mut self, command: Command) -> Result<(), Unreachable> {
        let message = Bytes::from(ToWorker { command: Some(command) }.encode_to_vec());
        for (number, rank) in self.ranks.iter_mut().enumerate() {
            let Some(rank) = rank else { continue };
            rank.sender.send_encoded(&message).await.map_err(|error| Unreachable {
                rank: number as u32,
                connection: rank.connection,
                error,
            })?;
        }
        Ok(())
    }

    fn num_blocks(&self) -> u32 {
        self.offers().map(|ready| ready.num_blocks).min().unwrap_or(0)
    }

    fn max_num_seqs(&self) -> u32 {
        self.offers().map(|ready| ready.max_num_seqs).filter(|&bound| bound > 0).min().unwrap_or(u32::MAX)
    }

    fn offers(&self) -> impl Iterator<Item = &WorkerReady> {
        self.ranks.iter().flatten().filter_map(|rank| rank.ready.as_ref())
    }

    fn rank_of(&self, connection: u64) -> Option<usize> {
        self.ranks.iter().position(|rank| rank.as_ref().is_some_and(|r| r.connection == connection))
    }
}

/// A rank did not take a message.
#[derive(Debug)]
pub(crate) struct Unreachable {
    pub rank: u32,
    pub connection: u64,
    pub error: LinkError,
}
