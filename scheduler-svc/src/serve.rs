//! The scheduler's loop: take what happened, let the core decide, send what it decided.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use ids::Epoch;
use proto::{FromWorker, Inbound, TokenBatch, WorkerLoading, from_worker, inbound};
use sched_core::{End, FinishedChoice, Scheduler};
use service_kit::{
    Far, Process,
    control::{ControlServer, Question},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep_until,
};
use tracing::{debug, error, info, warn};

use crate::{
    config::Args,
    control::{Answers, Published},
    detokenizer::{Detokenizer, MAX_ENDS},
    error,
    group::{Formed, Group, Limits, Unreachable},
    metrics::EngineMetrics,
    results::Parts,
    spans::Spans,
    stats_line::StatsLine,
    wire::{Event, Wire},
};

/// Events taken before the core plans again: enough to batch a burst, few enough to keep steps coming.
const BURST: usize = 512;

/// Runs the scheduler until the process shuts down.
pub async fn serve(args: Args, process: Process) -> anyhow::Result<()> {
    let (wire, events) = Wire::new();
    let published = Published::default();
    let answers = Answers {
        events: wire.events(),
        published: published.clone(),
        fingerprint: args.model_fingerprint.clone(),
        config_json: args.to_json(),
    };
    let engine = Engine::new(args.clone(), process.clone(), published);
    ControlServer::new(&process, Arc::new(answers)).spawn(args.common.control.as_ref()).await?;
    let fingerprint = &args.model_fingerprint;
    wire.listen_requests(&process, &args.listen_requests, fingerprint).await.context("--listen-requests")?;
    wire.listen_workers(&process, &args.listen_workers, fingerprint).await.context("--listen-workers")?;
    wire.dial_detokenizer(&process, &args.detokenizer, fingerprint);
    engine.run(events).await
}

/// The core and its surroundings.
struct Engine {
    args: Args,
    process: Process,
    /// There is none before the first group has told what the model is like.
    core: Option<Scheduler>,
    group: Group,
    detokenizer: Detokenizer,
    /// What there is of the result that is arriving.
    parts: Parts,
    output: TokenBatch,
    finished: Vec<FinishedChoice>,
    published: Published,
    metrics: EngineMetrics,
    stats: StatsLine,
    spans: Spans,
    /// When the oldest step in flight was sent.
    step_sent: Option<tokio::time::Instant>,
    awaiting_empty: Vec<oneshot::Sender<()>>,
}

impl Engine {
    fn new(args: Args, process: Process, published: Published) -> Self {
        Self {
            core: None,
            group: Group::new(args.tensor_parallel_size),
            detokenizer: Detokenizer::default(),
            parts: Parts::default(),
            output: TokenBatch::default(),
            finished: Vec::new(),
            published,
            metrics: EngineMetrics::new(&process.metrics, &args.served_model_name),
            stats: StatsLine::new(!args.disable_log_stats),
            spans: Spans::default(),
            step_sent: None,
            awaiting_empty: Vec::new(),
            args,
            process,
        }
    }

    /// Ends with an error where the settings cannot work.
    async fn run(mut self, mut events: mpsc::Receiver<Event>) -> anyhow::Result<()> {
        let shutdown = self.process.shutdown.clone();
        self.say_readiness();
        loop {
            tokio::select! {
                event = events.recv() => match event {
                    Some(event) => self.apply(event).await?,
                    None => break,
                },
                () = shutdown.cancelled() => break,
                () = sleep_until(self.step_deadline()), if self.step_sent.is_some() => self.step_timed_out(),
                () = sleep_until(self.stats.next()), if self.stats.is_due() => self.log_stats(),
            }
            for _ in 0..BURST {
                let Ok(event) = events.try_recv() else { break };
                self.apply(event).await?;
            }
            self.pump().await;
        }
        self.fail_all(&error::ending());
        self.flush().await;
        Ok(())
    }

    async fn apply(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Inbound(message) => self.inbound(*message),
            Event::WorkerUp { peer, sender, connection } => {
                info!(rank = peer.rank, pid = peer.pid, "worker connected");
                if !self.group.up(&peer, connection, sender) {
                    error!(
                        rank = peer.rank,
                        "a worker of that rank does not belong here: check --tensor-parallel-size"
                    );
                }
                self.say_readiness();
            }
            Event::Worker { connection, message } => self.worker(connection, message).await?,
            Event::WorkerLost { connection, reason } => self.worker_lost(connection, &reason),
            Event::DetokenizerUp(sender) => {
                self.detokenizer.up(sender);
                self.say_readiness();
            }
            Event::Detokenizer(reply) => {
                self.detokenizer.confirmed(reply.batches);
                if let Some(core) = &mut self.core {
                    core.stopped(&reply.stopped, now_us());
                }
            }
            Event::DetokenizerLost(reason) => self.detokenizer_lost(&reason),
            Event::Asked(question) => self.asked(question),
            Event::ResetPrefixCache(done) => {
                self.core.iter_mut().for_each(Scheduler::reset_prefix_cache);
                let _ = done.send(());
            }
        }
        Ok(())
    }

    fn inbound(&mut self, message: Inbound) {
        match message.event {
            Some(inbound::Event::Request(request)) => self.admit(request),
            Some(inbound::Event::Abort(abort)) => {
                if let (Some(core), Some(key)) = (&mut self.core, &abort.key) {
                    core.abort(key, now_us());
                }
            }
            Some(inbound::Event::GatewayGone(gone)) => {
                let dropped = self.core.as_mut().map_or(0, |core| core.gateway_gone(gone.gateway, now_us()));
                info!(gateway = gone.gateway, dropped, "a gateway is gone; its requests are dropped");
            }
            Some(inbound::Event::Rejected(rejected)) => self.output.failed.push(error::rejected(rejected)),
            None => warn!("an empty message from the tokenizer"),
        }
    }

    fn admit(&mut self, request: proto::Request) {
        let (key, request_id) = (request.key, request.request_id.clone());
        self.spans.admitted(&request);
        match self.try_admit(request) {
            Ok(()) => debug!(request_id, "queued"),
            Err(failure) => {
                debug!(request_id, reason = failure.message, "refused");
                self.spans.ended(key.as_ref());
                self.output.failed.push(proto::Failed { key, failure: Some(failure), request_id });
            }
        }
    }

    fn try_admit(&mut self, request: proto::Request) -> Result<(), proto::Failure> {
        if self.process.status.is_draining() {
            return Err(error::ending());
        }
        let Some(core) = self.core.as_mut().filter(|_| self.group.is_formed()) else {
            return Err(error::no_workers(&self.group.waits_for()));
        };
        let prompt_tokens = error::prompt_tokens(&request);
        core.admit(request, now_us()).map_err(|refusal| {
            self.metrics.refused(&refusal);
            refusal.to_failure()
        })?;
        self.stats.traffic(prompt_tokens);
        Ok(())
    }

    async fn worker(&mut self, connection: u64, message: FromWorker) -> anyhow::Result<()> {
        match message.event {
            Some(from_worker::Event::Loading(loading)) => {
                let WorkerLoading { bytes_done: done, bytes_total: total, bytes_per_s, phase } = loading;
                self.process.status.loading(&phase, Far { done, total, bytes_per_s });
            }
            Some(from_worker::Event::Ready(ready)) => {
                self.group.ready(connection, ready);
                self.form_group().await;
            }
            Some(from_worker::Event::Formed(formed)) => {
                if let Some(formed) = self.group.formed(connection, formed.epoch) {
                    self.start_epoch(&formed)?;
                }
            }
            Some(from_worker::Event::Result(result)) if self.group.speaks(connection, result.epoch) => {
                match self.parts.add(result, self.args.most_positions()) {
                    Ok(Some(whole)) => self.step_done(whole),
                    Ok(None) => {}
                    Err(broken) => self.protocol_broken(&broken),
                }
            }
            // Acknowledgements of other ranks, and echoes of older epochs.
            Some(from_worker::Event::Result(_)) => {}
            Some(from_worker::Event::Failed(failed)) => self.worker_lost(connection, &failed.reason),
            None => warn!("an empty message from a worker"),
        }
        Ok(())
    }

    async fn form_group(&mut self) {
        if self.group.can_form() {
            let limits =
                Limits { max_num_seqs: self.args.max_num_seqs, max_num_batched_tokens: self.args.step_tokens() };
            if let Err(unreachable) = self.group.form(limits).await {
                self.unreachable(unreachable);
            }
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
        if let Some(reason) = self.args.prefix_cache_off(&config) {
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
            core.group_formed(Epoch(formed.epoch), formed.num_blocks, now_us());
        }
        self.published.set_model(Some(self.args.model_info(&config, formed)));
        self.metrics.cache_config(&config, formed, self.args.prefix_cache_off(&config));
        self.say_readiness();
        Ok(())
    }

    fn step_done(&mut self, result: proto::StepResult) {
        let Some(core) = &mut self.core else { return };
        self.process.status.advance();
        self.metrics.step(&result);
        if let Err(broken) = core.complete(result, now_us()) {
            return self.protocol_broken(&broken);
        }
        // With run-ahead another step is in flight already; its time starts now.
        self.step_sent = (core.stats().steps_in_flight > 0).then(tokio::time::Instant::now);
    }

    fn protocol_broken(&mut self, broken: &dyn std::error::Error) {
        let reason = format!("the workers broke the protocol: {broken}");
        error!("{reason}");
        self.lose_group(&reason);
        self.group.disband();
    }

    fn worker_lost(&mut self, connection: u64, reason: &str) {
        let was_formed = self.group.is_formed();
        if let Some(rank) = self.group.lost(connection, reason) {
            warn!(rank, "worker lost: {reason}");
            if was_formed {
                self.lose_group(&format!("worker {rank} was lost ({reason})"));
            }
        }
        self.say_readiness();
    }

    fn unreachable(&mut self, unreachable: Unreachable) {
        warn!(rank = unreachable.rank, "worker does not take messages: {}", unreachable.error);
        self.worker_lost(unreachable.connection, &unreachable.error.to_string());
    }

    fn lose_group(&mut self, reason: &str) {
        self.step_sent = None;
        if let Some(core) = &mut self.core {
            core.group_lost(&error::workers_lost(reason), now_us());
        }
    }

    fn fail_all(&mut self, failure: &proto::Failure) {
        if let Some(core) = &mut self.core {
            core.fail_all(failure, now_us());
        }
    }

    fn step_timed_out(&mut self) {
        error!(deadline_ms = self.args.step_timeout_ms, "a step did not finish in time; the workers are dropped");
        self.lose_group("a step did not finish in time");
        self.group.disband();
        self.say_readiness();
    }

    fn detokenizer_lost(&mut self, reason: &str) {
        warn!("detokenizer lost: {reason}");
        self.keep_ends();
        // The gateways have failed these already, but for those that came after the detokenizer's end.
        self.fail_all(&error::detokenizer_lost());
        self.say_readiness();
    }

    fn asked(&mut self, question: Question) {
        let core = self.core.as_mut();
        // Whoever asked may have gone; the answers are then for nobody.
        match question {
            Question::Abort { request_id, found } => {
                let _ = found.send(core.is_some_and(|core| core.abort_by_id(&request_id, now_us())));
            }
            Question::Drained { done } => self.awaiting_empty.push(done),
            Question::Unfinished { count } => {
                let _ = count.send(core.map_or(0, |core| unfinished(core)));
            }
        }
    }

    /// Sends what the core has decided: plans to the workers, output to the detokenizer.
    async fn pump(&mut self) {
        while self.group.is_formed()
            && self.detokenizer.is_up()
            && let Some(core) = &mut self.core
        {
            let planning = Instant::now();
            let Some(plan) = core.plan(now_us()) else { break };
            self.metrics.plan(&plan, planning.elapsed());
            self.step_sent.get_or_insert_with(tokio::time::Instant::now);
            if let Err(unreachable) = self.group.send(plan).await {
                self.unreachable(unreachable);
            }
        }
        self.flush().await;
        let empty = self.core.as_ref().is_none_or(|core| !core.has_unfinished());
        if empty {
            for done in self.awaiting_empty.drain(..) {
                let _ = done.send(());
            }
        }
    }

    /// Brings everybody up to date with what the core brought.
    async fn flush(&mut self) {
        if let Some(core) = &mut self.core {
            core.take_output(&mut self.output);
            core.take_finished(&mut self.finished);
            self.metrics.state(&core.stats(), core.lost_blocks());
        }
        for choice in &self.finished {
            self.spans.ended(Some(&choice.key));
            self.metrics.finished(choice);
        }
        // The batch itself says what failed.
        let over = self.finished.drain(..).filter(|choice| choice.is_last && choice.end != End::Failed);
        if self.output == TokenBatch::default() {
            return;
        }
        let batch = std::mem::take(&mut self.output);
        self.stats.generated(batch.token.len());
        match self.detokenizer.tell(batch, over.map(|choice| choice.key)).await {
            Ok(true) => {}
            Ok(false) => self.keep_ends(),
            Err(error) => self.detokenizer_lost(&error.to_string()),
        }
    }

    /// Keeps how requests ended for a detokenizer to come. Tokens of those that ran are lost with the one that had their text.
    fn keep_ends(&mut self) {
        self.output.failed.extend(self.detokenizer.lost());
        let excess = self.output.failed.len().saturating_sub(MAX_ENDS);
        if excess > 0 {
            warn!(excess, "too many ends of requests wait for a detokenizer; the oldest are dropped");
            self.output.failed.drain(..excess);
        }
    }

    fn log_stats(&mut self) {
        let stats = self.core.as_ref().map(Scheduler::stats).unwrap_or_default();
        self.stats.log(&stats);
    }

    fn say_readiness(&self) {
        let status = &self.process.status;
        if !self.detokenizer.is_up() {
            status.not_ready("the detokenizer is not connected");
        } else if self.group.is_formed() {
            status.ready();
        } else {
            status.not_ready(self.group.waits_for());
        }
    }

    fn step_deadline(&self) -> tokio::time::Instant {
        let sent = self.step_sent.unwrap_or_else(tokio::time::Instant::now);
        sent + Duration::from_millis(self.args.step_timeout_ms)
    }
}

fn now_us() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

fn unfinished(core: &Scheduler) -> u32 {
    let stats = core.stats();
    stats.running + stats.waiting_for_capacity + stats.waiting_deferred
}
