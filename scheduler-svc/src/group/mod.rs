//! The workers of one engine: who is there, who is ready, and the forming of a group out of them.
//!
//! A rank has one worker. Who else asks for it waits until the present one has answered a ping ([`claims`]); who
//! contradicts the others is refused ([`agreement`]); who does not finish a step in time is found by asking everybody
//! ([`overdue`]).

mod agreement;
mod claims;
mod overdue;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use link::{LinkError, Sender};
use prost::Message;
use proto::{
    FormGroup, Hello, Ping, Pong, StepPlan, ToWorker, WorkerReady, WorkerRefused, to_worker::Command,
    worker_refused::Cause,
};
use service_kit::StepDefaults;
use tracing::{info, warn};

pub(crate) use claims::Arrival;
use claims::Claims;
pub(crate) use overdue::Overdue;

/// What the workers of a formed group agree on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Formed {
    pub epoch: u64,
    pub num_blocks: u32,
    /// Sequences that run at the same time: as flags say, within what all of them have room for.
    pub max_num_seqs: u32,
    /// Tokens of a step.
    pub max_num_batched_tokens: u32,
    /// What rank 0 said of the model; [`agreement`] has seen to it that the others say the same of what is not their
    /// stage's own.
    pub ready: WorkerReady,
}

/// What keeps a group from being formed.
struct Loss {
    /// What came first. Who waited for a worker that hangs ends with it, and its end must not hide that one.
    cause: String,
    /// What came last since then.
    newest: Option<String>,
}

/// Who is there. A lost rank voids the epoch; when all ranks are ready again the next one forms.
pub(crate) struct Group {
    ranks: Vec<Option<Member>>,
    /// Pipeline stages; each has the same number of ranks.
    stages: u32,
    epoch: u64,
    /// The last step of this epoch that the ranks were sent.
    sent: u64,
    state: State,
    /// Why the last epoch ended, or the next one cannot begin.
    loss: Option<Loss>,
    limits: Limits,
    /// What the first group of this engine agreed on: its requests, blocks and limits are made for that.
    engine: Option<WorkerReady>,
    claims: Claims,
    /// Pings sent so far.
    pings: u64,
}

/// A connected worker.
pub(crate) struct Member {
    pub peer: Hello,
    pub connection: u64,
    pub sender: Sender<ToWorker>,
    ready: Option<WorkerReady>,
    formed: bool,
    /// The last step of this epoch whose end it has told.
    acknowledged: u64,
    /// Its newest answer to a ping.
    pong: Pong,
}

#[derive(PartialEq)]
enum State {
    Incomplete,
    Forming,
    Formed,
}

/// Limits that flags set to every group's steps; absent: what its workers have room for.
#[derive(Clone, Copy)]
pub(crate) struct Limits {
    pub max_num_seqs: Option<u32>,
    pub max_num_batched_tokens: Option<u32>,
}

impl Member {
    /// A worker that has said nothing but its name.
    pub(crate) fn new(peer: Hello, connection: u64, sender: Sender<ToWorker>) -> Self {
        Self { peer, connection, sender, ready: None, formed: false, acknowledged: 0, pong: Pong::default() }
    }

    /// Asks whether its process lives; no room for the question counts as no answer.
    fn ping(&mut self, number: u64) {
        // A link that is down is told as such by its reader.
        let _ = self.sender.try_send(&ToWorker { command: Some(Command::Ping(Ping { number })) });
    }

    /// Says why it is not taken, and hangs up.
    fn refuse(mut self, cause: Cause, reason: &str) {
        warn!(rank = self.peer.rank, pid = self.peer.pid, "refused a worker: {reason}");
        let refused = WorkerRefused { cause: cause.into(), reason: reason.to_owned() };
        // One that does not take the reason finds the link closed.
        let _ = self.sender.try_send(&ToWorker { command: Some(Command::Refused(refused)) });
    }
}

/// "rank 1", "ranks 2, 3", and of many the first ones.
fn list(ranks: &[usize]) -> String {
    const SHOWN: usize = 8;
    let numbers: Vec<String> = ranks.iter().take(SHOWN).map(usize::to_string).collect();
    let word = if ranks.len() == 1 { "rank" } else { "ranks" };
    let rest = if ranks.len() > SHOWN { ", …" } else { "" };
    format!("{word} {}{rest}", numbers.join(", "))
}

impl Group {
    /// A group of `stages` pipeline stages of `stage_size` ranks each, none of them there.
    pub(crate) fn new(stages: u32, stage_size: u32, limits: Limits) -> Self {
        // Epochs start at the clock, so that a restarted scheduler's are newer than its predecessor's.
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
        Self {
            ranks: (0..stages * stage_size).map(|_| None).collect(),
            stages,
            epoch,
            sent: 0,
            state: State::Incomplete,
            loss: None,
            limits,
            engine: None,
            claims: Claims::default(),
            pings: 0,
        }
    }

    /// A worker's link ended. Returns its rank, if it still had one.
    ///
    /// The others of its group are hung up on, and dial again: what they have begun may wait for the one that is gone.
    /// Who waits for the rank has it from here on.
    pub(crate) fn lost(&mut self, connection: u64, reason: &str) -> Option<u32> {
        self.claims.withdraw(connection);
        let rank = self.rank_of(connection)?;
        self.ranks[rank] = None;
        self.note_loss(format!("worker {rank} was lost: {reason}"));
        if self.state != State::Incomplete {
            self.disband();
        }
        self.seat_claimants();
        Some(rank as u32)
    }

    /// A worker has its weights in memory. One that contradicts the others, or this engine, is refused.
    pub(crate) fn ready(&mut self, connection: u64, ready: WorkerReady) {
        if let Some(claimant) = self.claims.by_connection(connection) {
            claimant.ready = Some(ready);
        } else if let Some(rank) = self.rank_of(connection) {
            match self.misfit(rank, &ready) {
                // It has said so before.
                _ if self.ranks[rank].as_ref().is_some_and(|member| member.ready.is_some()) => {}
                None => self.ranks[rank].as_mut().expect("rank_of found it").ready = Some(ready),
                Some(misfit) => self.expel(rank, &misfit),
            }
        }
    }

    /// Refuses a worker that is there already.
    fn expel(&mut self, rank: usize, reason: &str) {
        if let Some(member) = self.ranks[rank].take() {
            member.refuse(Cause::Misfit, reason);
        }
        self.note_loss(format!("worker {rank} was refused: {reason}"));
        self.seat_claimants();
    }

    /// Whether all ranks are ready and wait for a `FormGroup`.
    pub(crate) fn can_form(&self) -> bool {
        self.state == State::Incomplete
            && self.ranks.iter().all(|rank| rank.as_ref().is_some_and(|r| r.ready.is_some()))
    }

    /// Tells all ranks to form the next epoch, whose steps are to take `step_timeout` at most.
    pub(crate) async fn form(&mut self, step_timeout: Duration) -> Result<(), Unreachable> {
        (self.epoch, self.sent) = (self.epoch + 1, 0);
        self.state = State::Forming;
        let command = Command::FormGroup(FormGroup {
            epoch: self.epoch,
            world_size: self.stage_size(),
            num_blocks: self.num_blocks(),
            max_num_seqs: self.max_num_seqs(),
            max_num_batched_tokens: self.max_num_batched_tokens(),
            // Not the process id: containers that share /dev/shm may all be process 1.
            rendezvous: format!("quire-{:x}-{}", link::hello("", "", "").instance, self.epoch),
            step_timeout_ms: step_timeout.as_millis() as u64,
            stages: self.stages,
            stage_address: self.ready_ranks().map(|ready| ready.stage_address.clone()).collect(),
        });
        for member in self.ranks.iter_mut().flatten() {
            (member.formed, member.acknowledged) = (false, 0);
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
        self.engine.get_or_insert_with(|| ready.clone());
        info!(epoch, workers = self.ranks.len(), device = ready.device, dtype = ready.dtype, "workers ready");
        Some(Formed {
            epoch,
            num_blocks: self.num_blocks(),
            max_num_seqs: self.max_num_seqs(),
            max_num_batched_tokens: self.max_num_batched_tokens(),
            ready,
        })
    }

    /// Whether steps can run.
    pub(crate) fn is_formed(&self) -> bool {
        self.state == State::Formed
    }

    /// Whether the worker behind a connection has a rank and no weights yet. A claimant loads too, which says nothing
    /// of the engine.
    pub(crate) fn is_loading(&self, connection: u64) -> bool {
        self.ranks.iter().flatten().any(|member| member.connection == connection && member.ready.is_none())
    }

    /// What the workers said that are ready.
    pub(crate) fn ready_ranks(&self) -> impl Iterator<Item = &WorkerReady> {
        self.ranks.iter().flatten().filter_map(|rank| rank.ready.as_ref())
    }

    /// Takes note that a rank has finished a step. Whether the result counts: it does from the first rank of the formed
    /// group's last stage.
    pub(crate) fn finished(&mut self, connection: u64, epoch: u64, step: u64) -> bool {
        let Some(rank) = self.rank_of(connection).filter(|_| self.is_formed() && epoch == self.epoch) else {
            return false;
        };
        let member = self.ranks[rank].as_mut().expect("rank_of found it");
        member.acknowledged = member.acknowledged.max(step);
        rank == self.ranks.len() - self.stage_size() as usize
    }

    /// Whether every rank has finished every step that it was sent.
    pub(crate) fn has_finished(&self) -> bool {
        !self.is_formed() || self.ranks.iter().flatten().all(|member| member.acknowledged >= self.sent)
    }

    /// Whether a worker says something as a member of the present group.
    pub(crate) fn is_of(&self, connection: u64, epoch: u64) -> bool {
        self.is_formed() && epoch == self.epoch && self.rank_of(connection).is_some()
    }

    /// Ranks of a stage.
    fn stage_size(&self) -> u32 {
        self.ranks.len() as u32 / self.stages
    }

    /// Sends a plan to all ranks, encoded once.
    pub(crate) async fn send(&mut self, mut plan: StepPlan) -> Result<(), Unreachable> {
        self.sent = plan.step;
        plan.shorten();
        self.broadcast(Command::Step(plan)).await
    }

    /// Sends what is no plan to all ranks; how many there are.
    pub(crate) async fn tell(&mut self, command: Command) -> Result<usize, Unreachable> {
        self.broadcast(command).await.map(|()| self.ranks.len())
    }

    /// Drops all workers; they dial again with empty slots.
    pub(crate) fn disband(&mut self) {
        self.ranks.iter_mut().for_each(|rank| *rank = None);
        self.state = State::Incomplete;
        self.seat_claimants();
    }

    /// Drops all workers; `/health` and the control plane give the reason until the next group has formed.
    pub(crate) fn disband_because(&mut self, reason: String) {
        self.note_loss(reason);
        self.disband();
    }

    /// What the group waits for, in words, and why.
    pub(crate) fn waits_for(&self) -> String {
        let loss = self.loss.iter().flat_map(|loss| [Some(&loss.cause), loss.newest.as_ref()]).flatten();
        loss.fold(self.lacks(), |said, loss| format!("{said}; {loss}"))
    }

    fn note_loss(&mut self, reason: String) {
        match &mut self.loss {
            None => self.loss = Some(Loss { cause: reason, newest: None }),
            Some(loss) => loss.newest = Some(reason).filter(|reason| *reason != loss.cause),
        }
    }

    fn lacks(&self) -> String {
        let those = |lacking: &dyn Fn(&Option<Member>) -> bool| -> Vec<usize> {
            self.ranks.iter().enumerate().filter(|(_, rank)| lacking(rank)).map(|(number, _)| number).collect()
        };
        let missing = those(&Option::is_none);
        let loading = those(&|rank| rank.as_ref().is_some_and(|member| member.ready.is_none()));
        let (ranks, what) = match (missing.as_slice(), loading.as_slice()) {
            ([], []) => return "workers are forming their group".into(),
            ([], loading) => (loading, "loading"),
            (missing, _) => (missing, "not connected"),
        };
        format!("{} of {} workers {what}: {}", ranks.len(), self.ranks.len(), list(ranks))
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
        self.ready_ranks().map(|ready| ready.num_blocks).min().unwrap_or(0)
    }

    fn max_num_seqs(&self) -> u32 {
        let bounds = self.ready_ranks().map(|ready| ready.max_num_seqs).filter(|&bound| bound > 0);
        bounds.chain(self.limits.max_num_seqs).min().unwrap_or(StepDefaults::default().num_seqs)
    }

    fn max_num_batched_tokens(&self) -> u32 {
        let bounds = self.ready_ranks().map(|ready| ready.max_num_batched_tokens).filter(|&bound| bound > 0);
        let usual = StepDefaults::default().batched_tokens.max(self.limits.max_num_seqs.unwrap_or(0));
        self.limits.max_num_batched_tokens.or_else(|| bounds.min()).unwrap_or(usual)
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
