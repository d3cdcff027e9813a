//! The scheduler's loop: take what happened, let the core decide, send what it decided.

mod adapters;
mod drain;
mod reports;
mod workers;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::Context;
use proto::{DeviceKind, Inbound, RequestKey, TokenBatch, inbound, to_worker::Command};
use sched_core::{End, FinishedChoice, Scheduler};
use service_kit::{
    Process,
    control::{ControlServer, Facts, Question},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::sleep_until,
};
use tracing::{debug, info, warn};

use crate::{
    adapters::{Adapters, Waiter, hub::Hub, kept::KeptAdapters},
    clock::Clock,
    config::{self, Args},
    control::{ControlHandler, Published},
    detokenizer::{Detokenizer, MAX_ENDS},
    error,
    group::{Group, Member, Overdue},
    kv_events::KvEvents,
    metrics::EngineMetrics,
    preemptions::PreemptionWarning,
    results::Parts,
    spans::Spans,
    stats_line::StatsLine,
    watchers::Watchers,
    wire::{Event, Wire},
};

/// Events taken before the core plans again: enough to batch a burst, few enough to keep steps coming.
const BURST: usize = 512;

/// Runs the scheduler until the process shuts down.
pub async fn serve(args: Args, process: Process) -> anyhow::Result<()> {
    let (wire, events) = Wire::new();
    let published = Published::default();
    let handler = ControlHandler { events: wire.events(), published: published.clone() };
    let facts = Facts { model_fingerprint: args.fingerprint.model_fingerprint.clone(), config_json: args.to_json() };
    let hub = Hub::new(config::hub(), wire.events());
    let fingerprint = &args.fingerprint.model_fingerprint;
    wire.listen_requests(&process, &args.listen_requests, fingerprint).await.context("--listen-requests")?;
    // A process that is told to end takes no further tokenizer. What else it has stays until its engine has ended,
    // which takes what running requests take.
    let staying = Process { shutdown: Default::default(), ..process.clone() };
    let _over = staying.shutdown.clone().drop_guard();
    let control = ControlServer::new(&staying, Arc::new(handler)).facts(facts);
    control.spawn(&args.common.control).await?;
    let kv_events = KvEvents::start(&args.kv_events_config, args.replica.data_parallel_rank, &staying).await?;
    wire.listen_workers(&staying, &args.listen_workers, fingerprint).await.context("--listen-workers")?;
    wire.dial_detokenizer(&staying, &args);
    let engine = Engine { kv_events, ..Engine::new(args, process, published, hub) };
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
    preemptions: PreemptionWarning,
    spans: Spans,
    /// What the workers are at: the oldest step in flight, or forming a group.
    overdue: Option<Overdue>,
    /// How long a step of this group may take.
    step_timeout: Duration,
    clock: Clock,
    adapters: Adapters,
    hub: Hub,
    /// The workers make adapters up: their paths are not looked at.
    random_adapters: bool,
    /// Adapters of the command line, or of the scheduler before this one, that are still to be loaded.
    to_start: Vec<Waiter>,
    /// What is served, for the scheduler after this one.
    kept: KeptAdapters,
    /// What workers are told before the next plan.
    to_workers: Vec<Command>,
    awaiting_empty: Vec<oneshot::Sender<()>>,
    /// When it ends at the latest, once it has been told to end.
    drain_until: Option<tokio::time::Instant>,
    watchers: Watchers,
    /// Present where others are told of the prefix cache.
    kv_events: Option<KvEvents>,
}

impl Engine {
    fn new(args: Args, process: Process, published: Published, hub: Hub) -> Self {
        let kept = KeptAdapters::new(args.served_adapters_file.clone());
        let to_start = match kept.read() {
            Some(adapters) => adapters.into_iter().map(Waiter::Kept).collect(),
            None => args.served_modules().into_iter().map(Waiter::Static).collect(),
        };
        Self {
            hub,
            random_adapters: false,
            core: None,
            group: Group::new(args.group.pipeline_parallel_size, args.group.tensor_parallel_size, args.limits()),
            detokenizer: Detokenizer::default(),
            parts: Parts::default(),
            output: TokenBatch::default(),
            finished: Vec::new(),
            published,
            metrics: EngineMetrics::new(&process.metrics, &args.served_model_name, args.replica.data_parallel_rank),
            stats: StatsLine::new((!args.disable_log_stats).then_some(args.log_stats_interval)),
            preemptions: PreemptionWarning::default(),
            spans: Spans::default(),
            overdue: None,
            step_timeout: args.step_timeout(DeviceKind::Unspecified),
            clock: Clock::start(),
            adapters: Adapters::new(args.group.world_size() as usize, args.max_cpu_loras()),
            to_start,
            kept,
            to_workers: Vec::new(),
            awaiting_empty: Vec::new(),
            drain_until: None,
            watchers: Watchers::default(),
            kv_events: None,
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
                    Some(event) => self.apply(event)?,
                    None => break,
                },
                () = shutdown.cancelled(), if self.drain_until.is_none() => self.begin_to_drain(),
                () = until(self.drain_until) => {
                    warn!(requests = self.unfinished(), "--shutdown-timeout is over; what is unfinished fails");
                    break;
                }
                // What they lead to is looked at below, after all that has come by now: an answer may be among it.
                () = until(self.workers_due()) => {}
                () = sleep_until(self.stats.next()), if self.stats.is_due() => self.log_stats(),
            }
            for _ in 0..BURST {
                let Ok(event) = events.try_recv() else { break };
                self.apply(event)?;
            }
            self.check_workers().await;
            self.pump().await;
            if self.drain_until.is_some() && self.has_drained() {
                break;
            }
        }
        self.fail_all(&error::ending());
        self.flush().await;
        self.finish_steps(&mut events).await
    }

    fn apply(&mut self, event: Event) -> anyhow::Result<()> {
        match event {
            Event::Inbound(message) => self.inbound(*message),
            Event::Watched { connection, reports } => self.watchers.add(connection, reports),
            Event::DrainSeen { connection, sequence } => self.watchers.drain_seen(connection, sequence),
            Event::Unwatched { connection } => self.watchers.remove(connection),
            Event::WorkerUp { peer, sender, connection } => self.worker_up(Member::new(peer, connection, sender)),
            Event::Worker { connection, message } => {
                let _scope = self.process.profile.scope("result");
                self.worker(connection, *message)?;
            }
            Event::WorkerLost { connection, reason } => self.worker_lost(connection, &reason),
            Event::DetokenizerUp(sender) => {
                self.detokenizer.up(sender);
                self.output.tokenizers = self.adapters.tokenizers().cloned().collect();
                self.say_readiness();
            }
            Event::Detokenizer(reply) => {
                self.detokenizer.confirmed(reply.batches);
                if let Some(core) = &mut self.core {
                    core.stopped(&reply.stopped, self.clock.now_us());
                }
            }
            Event::DetokenizerLost(reason) => self.detokenizer_lost(&reason),
            Event::Asked(question) => self.asked(question),
            Event::Adapters(call) => self.about_adapters(call),
            Event::AdapterFound(found) => self.adapter_found(found)?,
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
                if let (Some(core), Some(key)) = (&mut self.core, &abort.key)
                    && !core.abort(key, self.clock.now_us())
                {
                    self.withdraw(|request| request.key.as_ref() == abort.key.as_ref());
                }
            }
            Some(inbound::Event::GatewayGone(gone)) => {
                let dropped = self.core.as_mut().map_or(0, |core| core.gateway_gone(gone.gateway, self.clock.now_us()));
                self.withdraw(|request| request.key.is_some_and(|key| key.gateway == gone.gateway));
                info!(gateway = gone.gateway, dropped, "a gateway is gone; its requests are dropped");
            }
            Some(inbound::Event::Rejected(rejected)) => self.output.failed.push(error::rejected(rejected)),
            // The link's reader has told these.
            Some(inbound::Event::Watch(_) | inbound::Event::DrainSeen(_)) => {}
            None => warn!("an empty message from the tokenizer"),
        }
    }

    fn admit(&mut self, request: proto::Request) {
        let (key, request_id) = (request.key, request.request_id.clone());
        self.spans.admitted(&request);
        match self.try_admit(request) {
            Ok(()) => debug!(request_id, "queued"),
            Err(failure) => self.refused(key, request_id, failure),
        }
    }

    /// The one event of a request that is not admitted.
    fn refused(&mut self, key: Option<RequestKey>, request_id: String, failure: proto::Failure) {
        debug!(request_id, reason = failure.message, "refused");
        self.spans.ended(key.as_ref());
        self.output.failed.push(proto::Failed { key, failure: Some(failure), request_id });
    }

    fn try_admit(&mut self, request: proto::Request) -> Result<(), proto::Failure> {
        if self.process.status.is_draining() && self.watchers.all_have_seen_the_drain() {
            return Err(error::ending());
        }
        if request.adapter.is_empty() { self.admit_now(request) } else { self.admit_adapted(request) }
    }

    /// Hands a request to the core; an adapter that it names is on the workers' hosts.
    fn admit_now(&mut self, request: proto::Request) -> Result<(), proto::Failure> {
        let Some(core) = self.core.as_mut().filter(|_| self.group.is_formed()) else {
            return Err(error::no_workers(&self.group.waits_for()));
        };
        let prompt_tokens = error::prompt_tokens(&request);
        core.admit(request, self.clock.now_us()).map_err(|refusal| {
            self.metrics.refused(&refusal);
            refusal.to_failure()
        })?;
        self.stats.traffic(prompt_tokens);
        Ok(())
    }

    fn fail_all(&mut self, failure: &proto::Failure) {
        if let Some(core) = &mut self.core {
            core.fail_all(failure, self.clock.now_us());
        }
    }

    fn detokenizer_lost(&mut self, reason: &str) {
        warn!("detokenizer lost: {reason}");
        self.keep_ends();
        // The gateways have failed these already, but for those that came after the detokenizer's end.
        self.fail_all(&error::detokenizer_lost());
        self.withdraw(|_| true);
        self.say_readiness();
    }

    fn asked(&mut self, question: Question) {
        let core = self.core.as_mut();
        // The caller may have gone; then the answers are dropped.
        match question {
            Question::Abort { request_id, found } => {
                let _ = found.send(core.is_some_and(|core| core.abort_by_id(&request_id, self.clock.now_us())));
            }
            Question::Drained { done } => self.awaiting_empty.push(done),
            Question::Unfinished { count } => drop(count.send(self.unfinished())),
        }
    }

    /// Sends what the core has decided: plans to the workers, output to the detokenizer.
    async fn pump(&mut self) {
        for command in std::mem::take(&mut self.to_workers) {
            if let Err(unreachable) = self.group.tell(command).await {
                self.unreachable(unreachable);
            }
        }
        while self.group.is_formed()
            && self.detokenizer.is_up()
            && let Some(core) = &mut self.core
        {
            let planning = Instant::now();
            let scope = self.process.profile.scope("plan");
            let Some(plan) = core.plan(self.clock.now_us()) else { break };
            self.process.profile.step();
            drop(scope.map(|scope| scope.of_step(plan.step)));
            self.metrics.plan(&plan, planning.elapsed());
            if !plan.added.is_empty() && self.args.lora.enable_lora {
                let mut used = core.adapters();
                used.waiting.extend(self.adapters.awaited());
                self.metrics.lora_requests(self.args.lora.max_loras, &used, unix_seconds());
            }
            self.overdue.get_or_insert_with(|| Overdue::step(plan.step, self.step_timeout));
            if let Err(unreachable) = self.group.send(plan).await {
                self.unreachable(unreachable);
            }
        }
        self.flush().await;
        self.tell_who_awaits_the_drain();
    }

    /// Brings everybody up to date with what the core brought.
    async fn flush(&mut self) {
        if let Some(core) = &mut self.core {
            core.take_output(&mut self.output);
            core.take_finished(&mut self.finished);
            let stats = core.stats();
            self.metrics.state(&stats, core.lost_blocks());
            self.preemptions.look(stats.totals.preemptions, Instant::now());
        }
        self.report();
        for choice in &self.finished {
            self.spans.ended(Some(&choice.key));
            self.metrics.finished(choice);
            if choice.is_last {
                self.adapters.ended(&choice.key);
            }
        }
        if !self.finished.is_empty() {
            self.evict_adapters();
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

    /// Keeps how requests ended for a detokenizer to come. Tokens of those that ran are lost with the one that had
    /// their text.
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
        } else if self.adapters.is_starting() {
            status.not_ready("loading adapters");
        } else if self.group.is_formed() {
            status.ready();
        } else {
            status.not_ready(self.group.waits_for());
        }
    }
}

/// Now, in seconds since 1970.
fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

/// Sleeps until then, or for ever.
async fn until(then: Option<tokio::time::Instant>) {
    match then {
        Some(then) => sleep_until(then).await,
        None => std::future::pending().await,
    }
}
