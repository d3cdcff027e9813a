//! The main thread: keeps the link to the scheduler, and moves messages between it and the compute thread.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use collectives::AbortHandle;
use link::Link;
use proto::{
    DeviceKind, FormGroup, GroupFormed, Ping, Pong, ToWorker, WorkerFailed, WorkerLoading, WorkerReady, WorkerRefused,
    from_worker, to_worker, worker_refused,
};
use service_kit::{
    LoadProgress, Process, StartAgain,
    control::{ControlServer, Facts, Handler, async_trait},
    profile::Recorded,
};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};
use tracing::{info, warn};

use crate::{
    adapters::{AdapterLoader, HostAdapters},
    compute::{self, Compute, Forming, Job, Loaded, RankSync, Reply, jobs::JobSender, watchdog::Watchdog},
    config::Args,
    device::Telemetry,
    metrics::WorkerMetrics,
    stages::StageLinks,
    wire::{self, Out, SchedulerLink},
};

/// The phase before a worker is ready.
const LOADING: &str = "loading weights";

/// A worker that fails before it has dialled the scheduler tries this long, so that clients learn the reason.
const FAILURE_REPORT: Duration = Duration::from_secs(1);

/// A compute thread that is told to end does so within this time, if it is not loading or waiting for the device.
const ENDING: Duration = Duration::from_secs(2);

/// How long the device may take to hand over its part of a profile.
const DEVICE_PROFILE: Duration = Duration::from_secs(30);

/// Runs the worker until the process shuts down.
pub async fn serve(args: Args, process: Process) -> anyhow::Result<()> {
    let fingerprint = match args.fingerprint.model_fingerprint.as_str() {
        "" => model_spec::fingerprint(&args.model).with_context(|| format!("--model {}", args.model.display()))?,
        given => given.to_owned(),
    };
    let options = process.links.clone();
    let telemetry = Telemetry::default();
    let facts = Facts { model_fingerprint: fingerprint.clone(), ..Facts::default() };
    let adapters = HostAdapters::default();
    let Compute { jobs, replies, activity } = compute::start(args.clone(), process.profile.clone(), adapters.clone())?;
    let jobs = Arc::new(jobs);
    let stages = StageLinks::listen(&args, &options, &fingerprint).await?;
    let handler = ControlHandler { telemetry: telemetry.clone(), jobs: Arc::downgrade(&jobs) };
    let control = ControlServer::new(&process, Arc::new(handler)).facts(facts);
    control.spawn(&args.common.control).await?;
    let mut worker = Worker {
        metrics: WorkerMetrics::new(&process.metrics, args.replica.data_parallel_rank, args.rank),
        jobs,
        replies,
        ready: None,
        sync: RankSync::Host,
        spent: false,
        epoch: None,
        steps: 0,
        abort: AbortHandle::new(),
        stages,
        watchdog: Watchdog::new(activity, args.group.forming_timeout()),
        telemetry,
        rank: args.rank,
        adapters: AdapterLoader::new(adapters, args.adapter_source()),
        process: process.clone(),
    };
    let shutdown = process.shutdown.clone();
    let ended = shutdown.run_until_cancelled(async {
        loop {
            worker.disconnected();
            let link = worker.connect(wire::dial(&args, &options, &fingerprint)).await?;
            if worker.spent {
                // Only now: a scheduler that ends for good is no reason to start afresh.
                let why = "the group was lost, and its GPUs may wait for a rank that is gone: starting afresh";
                return Err(StartAgain(why.to_owned()).into());
            }
            let reason = worker.relay(link).await?;
            match worker.steps {
                0 => info!("scheduler left: {reason}"),
                steps => warn!(steps, "scheduler lost: {reason}"),
            }
        }
    });
    let ended = ended.await;
    worker.end().await;
    ended.unwrap_or(Ok(()))
}

struct Worker {
    /// The one strong count: without it the compute thread ends.
    jobs: Arc<JobSender<Job>>,
    replies: mpsc::Receiver<Reply>,
    /// Set once the model is loaded; told to every scheduler anew.
    ready: Option<WorkerReady>,
    sync: RankSync,
    /// The device was in a group that is over, or hangs: the process ends without waiting for it.
    spent: bool,
    /// The group that this worker is part of, as far as the scheduler knows.
    epoch: Option<u64>,
    /// Steps of the group that are under way.
    steps: u32,
    /// Ends the current group's waits.
    abort: AbortHandle,
    /// The ways to other stages.
    stages: StageLinks,
    watchdog: Watchdog,
    metrics: WorkerMetrics,
    telemetry: Telemetry,
    rank: u32,
    adapters: AdapterLoader,
    process: Process,
}

impl Worker {
    /// Ends the waits of other ranks at once, then waits for the compute thread, which still uses the process's
    /// libraries. A device that may wait for a rank that is gone is not waited for.
    async fn end(mut self) {
        self.give_up_group();
        drop(self.jobs);
        let ended = async { while self.replies.recv().await.is_some() {} };
        if !self.spent && tokio::time::timeout(ENDING, ended).await.is_err() {
            warn!("the compute thread is busy and ends with the process");
        }
    }

    /// Ends the waits of the present group, wherever the compute thread is.
    fn give_up_group(&mut self) {
        self.abort.abort();
        self.stages.disconnect();
    }

    /// Without a scheduler there is no group.
    fn disconnected(&mut self) {
        self.give_up_group();
        self.spent |= self.epoch.take().is_some() && self.sync == RankSync::Device;
        if self.ready.is_some() {
            self.process.status.not_ready("the scheduler is not connected");
        }
    }

    /// Waits for the link, and receives from the compute thread meanwhile.
    async fn connect(&mut self, link: impl Future<Output = SchedulerLink>) -> anyhow::Result<SchedulerLink> {
        tokio::pin!(link);
        loop {
            tokio::select! {
                link = &mut link => return Ok(link),
                () = self.watchdog.due() => self.check_thread(None).await?,
                reply = self.replies.recv() => match reply.ok_or_else(thread_gone)? {
                    Reply::Failed(reason) => {
                        if let Ok(link) = tokio::time::timeout(FAILURE_REPORT, &mut link).await {
                            let failed = from_worker::Event::Failed(WorkerFailed { reason: reason.clone() });
                            let _ = Out(link.sender).send(failed).await;
                        }
                        bail!("{reason}");
                    }
                    Reply::Ready(loaded) => drop(self.loaded(*loaded)),
                    Reply::Loading(progress) => self.process.status.loading(LOADING, progress),
                    // These belong to an epoch that is over.
                    Reply::Formed(_) | Reply::Result(_) | Reply::Placed(_) | Reply::EpochLost { .. } => {}
                },
            }
        }
    }

    /// Moves messages until the link ends; returns why it did. An error ends the process.
    async fn relay(&mut self, link: SchedulerLink) -> anyhow::Result<String> {
        let Link { sender, mut receiver, .. } = link;
        let mut out = Out(sender);
        if let Some(ready) = &self.ready {
            self.process.status.ready();
            if let Err(reason) = out.send(from_worker::Event::Ready(ready.clone())).await {
                return Ok(reason);
            }
        }
        loop {
            let sent = tokio::select! {
                message = receiver.recv() => match message {
                    Ok(message) => self.command(message, &mut out).await?,
                    Err(error) => Err(error.to_string()),
                },
                () = self.watchdog.due() => { self.check_thread(Some(&mut out)).await?; Ok(()) }
                reply = self.replies.recv() => self.reply(reply.ok_or_else(thread_gone)?, &mut out).await?,
                loaded = self.adapters.next() => {
                    self.metrics.adapters(self.adapters.held());
                    out.send(from_worker::Event::AdapterLoaded(loaded)).await
                }
            };
            if let Err(reason) = sent {
                return Ok(reason);
            }
        }
    }

    /// Carries out a command of the scheduler. The inner error is the link's, the outer one ends the process.
    async fn command(&mut self, message: ToWorker, out: &mut Out) -> anyhow::Result<Result<(), String>> {
        let job = match message.command {
            Some(to_worker::Command::Ping(Ping { number })) => {
                return Ok(out.send(from_worker::Event::Pong(self.pong(number))).await);
            }
            Some(to_worker::Command::Refused(refused)) => return Err(refusal(refused)),
            Some(to_worker::Command::FormGroup(form)) => self.form(form),
            Some(to_worker::Command::LoadAdapter(load)) => {
                self.adapters.load(load);
                return Ok(Ok(()));
            }
            Some(to_worker::Command::DropAdapter(dropped)) => {
                self.adapters.forget(&dropped.adapter);
                self.metrics.adapters(self.adapters.held());
                return Ok(Ok(()));
            }
            Some(to_worker::Command::Step(mut plan)) => {
                plan.restore();
                if Some(plan.epoch) == self.epoch {
                    self.steps += 1;
                    self.adapters.planned(&plan);
                }
                Job::Step(Box::new(plan))
            }
            None => bail!("an empty message from the scheduler"),
        };
        self.hand_over(job).map(Ok)
    }

    /// The answer to a ping, which does not depend on the compute thread.
    fn pong(&self, number: u64) -> Pong {
        let waits_for = self.stages.waits_for(&self.abort.missing());
        Pong { number, compiling: self.watchdog.activity().is_compiling(), waits_for }
    }

    /// Ends the process if the compute thread hangs: what it waits for may never come, and a new process has a device
    /// that works.
    async fn check_thread(&mut self, out: Option<&mut Out>) -> anyhow::Result<()> {
        let Some(reason) = self.watchdog.hung(Instant::now()) else { return Ok(()) };
        self.process.status.not_ready(&reason);
        if let Some(out) = out {
            // A scheduler that does not take it finds the link closed.
            let _ = out.send(from_worker::Event::Failed(WorkerFailed { reason: reason.clone() })).await;
        }
        self.spent = true;
        Err(StartAgain(reason).into())
    }

    /// A new group: the old one's waits end, wherever the compute thread is.
    fn form(&mut self, form: FormGroup) -> Job {
        self.give_up_group();
        self.abort = AbortHandle::new();
        self.epoch = Some(form.epoch);
        self.adapters.forget_all();
        self.metrics.adapters(self.adapters.held());
        self.steps = 0;
        self.watchdog.set_step_timeout(Duration::from_millis(form.step_timeout_ms));
        info!(epoch = form.epoch, world_size = form.world_size, "forming a group");
        let neighbours = self.stages.connect(&form);
        Job::Form(Box::new(Forming { form, abort: self.abort.clone(), neighbours }))
    }

    fn hand_over(&mut self, job: Job) -> anyhow::Result<()> {
        use std::sync::mpsc::TrySendError::{Disconnected, Full};
        self.watchdog.handed_over(Instant::now());
        match self.jobs.try_send(job) {
            Ok(()) => Ok(()),
            Err(Disconnected(_)) => Err(thread_gone()),
            // The scheduler keeps a few plans in flight, so a full queue means a thread that has slept through many
            // groups.
            Err(Full(_)) => Err(StartAgain("the compute thread hangs: it takes no jobs".to_owned()).into()),
        }
    }

    /// Passes on a message of the compute thread. The inner error is the link's, the outer one ends the process.
    async fn reply(&mut self, reply: Reply, out: &mut Out) -> anyhow::Result<Result<(), String>> {
        let event = match reply {
            Reply::Loading(progress) => {
                self.process.status.loading(LOADING, progress);
                let LoadProgress { done: bytes_done, total: bytes_total, bytes_per_s } = progress;
                from_worker::Event::Loading(WorkerLoading {
                    bytes_done,
                    bytes_total,
                    bytes_per_s,
                    phase: LOADING.into(),
                })
            }
            Reply::Ready(loaded) => {
                let ready = self.loaded(*loaded);
                self.process.status.ready();
                from_worker::Event::Ready(ready)
            }
            // These belong to an epoch that is over by now.
            Reply::Formed(epoch) | Reply::EpochLost { epoch, .. } if Some(epoch) != self.epoch => return Ok(Ok(())),
            Reply::Result(result) if Some(result.epoch) != self.epoch => return Ok(Ok(())),
            Reply::Placed(placed) if Some(placed.epoch) != self.epoch => return Ok(Ok(())),
            Reply::Formed(epoch) => from_worker::Event::Formed(GroupFormed { epoch }),
            Reply::Result(result) => {
                self.process.status.advance();
                self.metrics.step(&result);
                self.steps = self.steps.saturating_sub(1);
                from_worker::Event::Result(*result)
            }
            Reply::Placed(placed) => from_worker::Event::AdapterPlaced(placed),
            // Leaving the link tells the scheduler; the next one starts afresh.
            Reply::EpochLost { reason, .. } => return Ok(Err(reason)),
            Reply::Failed(reason) => {
                let _ = out.send(from_worker::Event::Failed(WorkerFailed { reason: reason.clone() })).await;
                return Err(anyhow!("{reason}"));
            }
        };
        Ok(out.send(event).await)
    }

    /// Takes note of the model's facts; what the scheduler is told.
    fn loaded(&mut self, loaded: Loaded) -> WorkerReady {
        let Loaded { mut ready, sync, adapters } = loaded;
        ready.stage_address = self.stages.address();
        self.sync = sync;
        self.adapters.set_layout(adapters);
        if ready.device_kind() == DeviceKind::Cuda {
            // Started again without its GPU, it would serve on the CPU: better wait for the GPU.
            self.process.status.decide("--device=cuda");
            let (telemetry, metrics, rank) = (self.telemetry.clone(), self.process.metrics.clone(), self.rank);
            tokio::task::spawn_blocking(move || telemetry.open(&metrics, rank));
        }
        info!(
            device = ready.device,
            dtype = ready.dtype,
            weights_mib = ready.weight_bytes >> 20,
            kv_blocks = ready.num_blocks,
            kv_bytes_per_token = ready.kv_bytes_per_token,
            state_bytes_per_sequence = ready.state_bytes,
            cache_mib = ready.cache_bytes >> 20,
            "model loaded"
        );
        for (number, group) in ready.cache_groups.iter().enumerate().filter(|_| ready.cache_groups.len() > 1) {
            info!(
                number,
                layers = group.layers,
                bytes_per_token = group.bytes_per_token,
                window = if group.window == 0 { "none".into() } else { group.window.to_string() },
                "group of layers with their own KV blocks"
            );
        }
        self.metrics.ready(&ready);
        self.ready.insert(ready).clone()
    }
}

/// The error of a worker that the scheduler refuses. If another worker has its rank, a later start may succeed.
fn refusal(refused: WorkerRefused) -> anyhow::Error {
    let reason = format!("the scheduler refuses this worker: {}", refused.reason);
    match refused.cause() {
        worker_refused::Cause::RankTaken => StartAgain(reason).into(),
        worker_refused::Cause::Misfit | worker_refused::Cause::Unspecified => anyhow!(reason),
    }
}

fn thread_gone() -> anyhow::Error {
    anyhow!("the compute thread is gone")
}

struct ControlHandler {
    telemetry: Telemetry,
    jobs: Weak<JobSender<Job>>,
}

#[async_trait]
impl Handler for ControlHandler {
    async fn refresh_metrics(&self) {
        self.telemetry.refresh().await;
    }

    async fn stop_profile(&self) -> Recorded {
        let (answer, recorded) = oneshot::channel();
        let asked = self.jobs.upgrade().is_some_and(|jobs| jobs.try_send(Job::EndProfile(answer)).is_ok());
        match asked {
            true => tokio::time::timeout(DEVICE_PROFILE, recorded).await.ok().and_then(Result::ok).unwrap_or_default(),
            false => Recorded::default(),
        }
    }
}
