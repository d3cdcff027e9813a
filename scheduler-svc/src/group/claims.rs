//! Workers that ask for a rank which another one has.
//!
//! The rank stays with the worker that has it as long as its process answers: two workers that replaced each other in
//! turn would serve nobody. So the present one is pinged. If it answers in time the newcomer is refused, and ends; else
//! its link is as good as lost (a host that went away, a stopped process), the epoch ends as with any loss, and the
//! newcomer has the rank. A process that dials again has lost its old link itself, whatever that looks like from here,
//! and needs no answer.

use std::time::Duration;

use proto::{Pong, worker_refused::Cause};
use tokio::time::Instant;

use super::{Group, Member};

/// How long a worker may take to answer a ping. Its main thread does nothing else than move messages.
pub(super) const ANSWER: Duration = Duration::from_secs(2);

/// The decision about a worker that connected.
#[derive(Debug, PartialEq)]
pub(crate) enum Arrival {
    /// It has its rank.
    Joined,
    /// Another worker has the rank, and is asked whether it lives.
    Waits,
    /// The same process had the rank through this connection, which is over: to be told to [`Group::lost`].
    DialledAgain {
        /// The connection that is over.
        connection: u64,
    },
    /// It is refused, and told why.
    Refused,
}

/// Those that wait, at most one for a rank.
#[derive(Default)]
pub(super) struct Claims(Vec<Claim>);

struct Claim {
    claimant: Member,
    /// The ping that the present worker is to answer, and until when.
    ping: u64,
    due: Instant,
}

impl Claims {
    fn of_rank(&self, rank: u32) -> Option<usize> {
        self.0.iter().position(|claim| claim.claimant.peer.rank == rank)
    }

    /// The worker behind a connection, if it waits.
    pub(super) fn by_connection(&mut self, connection: u64) -> Option<&mut Member> {
        self.0.iter_mut().map(|claim| &mut claim.claimant).find(|claimant| claimant.connection == connection)
    }

    /// It does not wait any more.
    pub(super) fn withdraw(&mut self, connection: u64) {
        self.0.retain(|claim| claim.claimant.connection != connection);
    }
}

impl Group {
    /// A worker connected.
    pub(crate) fn arrive(&mut self, newcomer: Member) -> Arrival {
        let rank = newcomer.peer.rank;
        let Some(place) = self.ranks.get_mut(rank as usize) else {
            let (ranks, stages) = (self.stage_size(), self.stages);
            let stages = if stages > 1 { format!(" and --pipeline-parallel-size {stages}") } else { String::new() };
            newcomer.refuse(
                Cause::Misfit,
                &format!("rank {rank} does not belong to a group of --tensor-parallel-size {ranks}{stages}"),
            );
            return Arrival::Refused;
        };
        let Some(present) = place else {
            *place = Some(newcomer);
            return Arrival::Joined;
        };
        if let Some(claim) = self.claims.of_rank(rank) {
            let earlier = &self.claims.0[claim].claimant;
            // One that waits for its own former self, or for somebody who has not answered yet.
            if ![present.peer.instance, earlier.peer.instance].contains(&newcomer.peer.instance) {
                newcomer.refuse(Cause::RankTaken, &taken(present));
                return Arrival::Refused;
            }
            self.claims.0.swap_remove(claim).claimant.refuse(Cause::RankTaken, &taken(&newcomer));
        }
        let arrival = match present.peer.instance == newcomer.peer.instance {
            true => Arrival::DialledAgain { connection: present.connection },
            false => Arrival::Waits,
        };
        self.pings += 1;
        present.ping(self.pings);
        self.claims.0.push(Claim { claimant: newcomer, ping: self.pings, due: Instant::now() + ANSWER });
        arrival
    }

    /// A worker answered a ping: who wants its rank is refused.
    pub(crate) fn pong(&mut self, connection: u64, pong: Pong) {
        let Some(present) = self.rank_of(connection).and_then(|rank| self.ranks[rank].as_mut()) else { return };
        let rank = present.peer.rank;
        let answered = self.claims.of_rank(rank).filter(|&claim| self.claims.0[claim].ping <= pong.number);
        if let Some(claim) = answered {
            self.claims.0.swap_remove(claim).claimant.refuse(Cause::RankTaken, &taken(present));
        }
        present.pong = pong;
    }

    /// When the first of the pinged must have answered.
    pub(crate) fn claim_due(&self) -> Option<Instant> {
        self.claims.0.iter().map(|claim| claim.due).min()
    }

    /// A connection whose worker has not answered while another one waits for its rank: to be told to [`Self::lost`].
    pub(crate) fn silent(&self, now: Instant) -> Option<u64> {
        let claim = self.claims.0.iter().find(|claim| claim.due <= now)?;
        self.ranks[claim.claimant.peer.rank as usize].as_ref().map(|present| present.connection)
    }

    /// Gives free ranks to those that wait for them.
    pub(super) fn seat_claimants(&mut self) {
        let free = |group: &Self| {
            group.claims.0.iter().position(|claim| group.ranks[claim.claimant.peer.rank as usize].is_none())
        };
        while let Some(claim) = free(self) {
            let mut claimant = self.claims.0.swap_remove(claim).claimant;
            let (ready, connection) = (claimant.ready.take(), claimant.connection);
            let rank = claimant.peer.rank as usize;
            self.ranks[rank] = Some(claimant);
            ready.into_iter().for_each(|ready| self.ready(connection, ready));
        }
    }
}

fn taken(present: &Member) -> String {
    let (rank, pid, instance) = (present.peer.rank, present.peer.pid, present.peer.instance);
    format!(
        "rank {rank} is already served by worker {instance:016x} (pid {pid}), which answers; stop that one, or give \
         this one another --rank"
    )
}
