//! What workers do: come, form groups, finish steps, and get lost.

use anyhow::{Context, bail};
use ids::Epoch;
use proto::{DeviceKind, FromWorker, WorkerLoading, from_worker};
use sched_core::Scheduler;
use service_kit::LoadProgress;
use tokio::time::Instant;
use tracing::{error, info, warn};

use super::Engine;
use crate::{
    error,
    group::{Arrival, Formed, Member, Overdue, Unreachable},
};

impl Engine {
    pub(super) fn worker_up(&mut self, member: Member) {
        let (rank, pid) = (member.peer.rank, member.peer.pid);
        match self.group.arrive(member) {
            Arrival::Joined => info!(rank, pid, "worker connected"),
            Arrival::Waits => {
                info!(rank, pid, "a second worker asks for a rank; the present one is asked whether it lives")
            }
            Arrival::DialledAgain { connection } => {
                self.worker_lost(connection, "it has dialled again");
                info!(rank, pid, "worker connected again");
            }
            Arrival::Refused => {}
        }
        self.say_readiness();
    }

    pub(super) fn worker(&mut self, connection: u64, message: FromWorker) -> anyhow::Result<()> {
        match message.event {
            Some(from_worker::Event::Loading(loading)) if self.group.is_loading(connection) => {
                let WorkerLoading { bytes_done: done, bytes_total: total, bytes_per_s, phase } = loading;
                self.process.status.loading(&phase, LoadProgress { done, total, bytes_per_s });
            }
            Some(from_worker::Event::Loading(_)) => {}
            Some(from_worker::Event::Ready(ready)) => {
                self.group.ready(connection, ready);
                self.say_readiness();
            }
            Some(from_worker::Event::Formed(formed)) => {
                if let Some(formed) = self.group.formed(connection, formed.epoch) {
                    self.start_epoch(&formed)?;
                }
            }
            Some(from_worker::Event::Result(result)) => self.result(connection, result),
            Some(from_worker::Event::AdapterLoaded(loaded)) => self.adapter_loaded(loaded)?,
            Some(from_worker::Event::AdapterPlaced(placed)) => self.adapter_placed(connection, placed),
            Some(from_worker::Event::Pong(pong)) => self.group.pong(connection, pong),
            Some(from_worker::Event::Failed(failed)) => self.worker_lost(connection, &failed.reason),
            None => warn!("an empty message from a worker"),
        }
        Ok(())
    }

    /// Takes a result, or a part of one. Other ranks than the first only acknowledge.
    fn result(&mut self, connection: u64, result: proto::StepResult) {
        if !self.group.finished(connection, result.epoch, result.step) {
            return;
        }
        let Some(config) = self.core.as_ref().map(Scheduler::config) else { return };
        // Log-probabilities may be of any position of a step.
        let most_positions = config.max_num_batched_tokens as usize + config.max_num_seqs as usize;
        match self.parts.add(result, most_positions) {
            Ok(Some(whole)) => self.step_done(whole),
            Ok(None) => {}
            Err(broken) => self.protocol_broken(&broken),
        }
    }

    /// When [`Self::check_workers`] is to look again, unless something happens before.
    pub(super) fn workers_due(&self) -> Option<Instant> {
        self.overdue.as_ref().map(Overdue::due).into_iter().chain(self.group.claim_due()).min()
    }

    /// Looks for workers that do not answer or do not get on, and forms a group when all are ready.
    pub(super) async fn check_workers(&mut self) {
        while let Some(connection) = self.group.silent(Instant::now()) {
            self.worker_lost(connection, "it does not answer, and another worker asks for its rank");
        }
        if let Some(mut overdue) = self.overdue {
            let hung = self.group.hung(&mut overdue, Instant::now());
            self.overdue = Some(overdue);
            if let Some(reason) = hung {
                self.workers_hang(reason);
            }
        }
        if self.group.can_form() {
            self.form_group().await;
        }
    }

    async fn form_group(&mut self) {
        // The slowest device has its time.
        let kinds = || self.group.ready_ranks().map(proto::WorkerReady::device_kind);
        let kind = if kinds().all(|kind| kind == DeviceKind::Cuda) { DeviceKind::Cuda } else { DeviceKind::Cpu };
        self.step_timeout = self.args.step_timeout(kind);
        self.overdue = Some(Overdue::forming(self.args.group.forming_timeout()));
        if let Err(unreachable) = self.group.form(self.step_timeout).await {
            self.unreachable(unreachable);
        }
        self.say_readiness();
    }

    fn start_epoch(&mut self, formed: &Formed) -> anyhow::Result<()> {
        let config = self.args.core_config(formed);
        info!(
            blocks = formed.num_blocks,
            block_size = config.block_size,
            max_model_len = config.max_model_len,
            kv_tokens = config.positions_in(formed.num_blocks),
            "KV cache"
        );
        if let Some(reason) = self.args.prefix_cache_off(&config, formed) {
            info!(reason, "no prefix cache");
        }
        if self.core.is_none() {
            self.core = Some(Scheduler::new(config.clone()).context("these settings cannot work")?);
        }
        if let Some(core) = &mut self.core {
            // A scheduler that starts afresh plans for as many as there is room for now.
            if formed.max_num_seqs < core.config().max_num_seqs {
                bail!("the workers have room for {} sequences only", formed.max_num_seqs);
            }
            core.group_formed(Epoch(formed.epoch), formed.num_blocks, self.clock.now_us());
        }
        self.watchers.begin_anew();
        self.overdue = None;
        self.random_adapters = formed.ready.random_adapters;
        self.published.set_model(Some(self.args.model_info(&config, formed)));
        self.metrics.cache_config(&config, formed, self.args.prefix_cache_off(&config, formed));
        self.load_modules();
        Ok(())
    }

    fn step_done(&mut self, result: proto::StepResult) {
        let Some(core) = &mut self.core else { return };
        self.process.status.advance();
        self.metrics.step(&result);
        let next = result.step + 1;
        if let Err(broken) = core.complete(result, self.clock.now_us()) {
            return self.protocol_broken(&broken);
        }
        // With run-ahead another step is in flight already; its time starts now.
        let in_flight = core.stats().steps_in_flight > 0;
        self.overdue = in_flight.then(|| Overdue::step(next, self.step_timeout));
    }

    fn protocol_broken(&mut self, broken: &dyn std::error::Error) {
        let reason = format!("the workers broke the protocol: {broken}");
        error!("{reason}");
        self.lose_group(&reason);
        self.group.disband_because(reason);
        self.say_readiness();
    }

    fn workers_hang(&mut self, reason: String) {
        error!("{reason}; all workers are dropped, and the group forms anew");
        self.lose_group(&reason);
        self.group.disband_because(reason);
        self.say_readiness();
    }

    pub(super) fn worker_lost(&mut self, connection: u64, reason: &str) {
        let was_formed = self.group.is_formed();
        if let Some(rank) = self.group.lost(connection, reason) {
            warn!(rank, "worker lost: {reason}");
            self.overdue = None;
            if was_formed {
                self.lose_group(&format!("worker {rank} was lost ({reason})"));
            }
        }
        self.say_readiness();
    }

    pub(super) fn unreachable(&mut self, unreachable: Unreachable) {
        warn!(rank = unreachable.rank, "worker does not take messages: {}", unreachable.error);
        self.worker_lost(unreachable.connection, &unreachable.error.to_string());
    }

    fn lose_group(&mut self, reason: &str) {
        self.overdue = None;
        self.adapters_lost(reason);
        if let Some(core) = &mut self.core {
            core.group_lost(&error::workers_lost(reason), self.clock.now_us());
        }
        self.watchers.begin_anew();
    }
}
