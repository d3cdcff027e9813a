//! The compute thread: loads the model, then forms groups and executes plans, one job after the other.

mod device_profile;
pub(crate) mod jobs;
mod load;
mod pooling_info;
pub(crate) mod run_loop;
pub(crate) mod watchdog;

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context, anyhow, bail};
use collectives::{AbortHandle, Collective, CollectiveError, RankPlacement, SharedMemory, Solo};
use models::{AdapterLayout, Model, Runner, pooling::PoolingMethod};
use proto::{AdapterPlaced, FormGroup, StepPlan, StepResult, WorkerReady};
use service_kit::{
    LoadProgress,
    profile::{Recorded, Recorder},
};
use tokio::sync::{mpsc, oneshot};

pub(crate) use self::load::load;
use self::{
    device_profile::{Change, DeviceProfile},
    jobs::{JobReceiver, JobSender, job_queue},
    run_loop::{Next, Work, next},
    watchdog::{Activity, Task},
};
use crate::{
    adapters::HostAdapters,
    config::Args,
    engine::{Brought, Engine, OnDevice, Options, slots::Slots},
    error::StepError,
    guide::Grammars,
    idle::{
        graph_capture::GraphCapture,
        rehearsal::{self, Room},
    },
    stages::{Neighbours, StageGroup},
};

/// Jobs that may wait: the group, and two plans of it.
const QUEUE: usize = 64;

/// Jobs of the compute thread, in order.
pub(crate) enum Job {
    /// Drop all slots and join this group.
    Form(Box<Forming>),
    /// Execute a plan. One of another epoch is skipped.
    Step(Box<StepPlan>),
    /// A profile has ended: answer what the device did.
    EndProfile(oneshot::Sender<Recorded>),
}

/// A group to join.
pub(crate) struct Forming {
    pub form: FormGroup,
    /// Ends its waits from outside.
    pub abort: AbortHandle,
    /// The way to other stages.
    pub neighbours: Neighbours,
}

/// Where ranks wait for each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RankSync {
    /// On the device, as GPUs do: its work may wait for ever for a rank that is gone.
    Device,
    /// On the host, whose waits can be aborted.
    Host,
}

/// What there is once the model is loaded.
pub(crate) struct Loaded {
    pub ready: WorkerReady,
    pub sync: RankSync,
    /// Reads adapters for it.
    pub adapters: Option<Arc<AdapterLayout>>,
}

/// Messages of the compute thread.
pub(crate) enum Reply {
    Loading(LoadProgress),
    /// The model is loaded.
    Ready(Box<Loaded>),
    Formed(u64),
    Result(Box<StepResult>),
    /// An adapter is in its slot of the device.
    Placed(AdapterPlaced),
    /// The epoch is over; the weights are fine.
    EpochLost {
        epoch: u64,
        reason: String,
    },
    /// The thread has ended; why.
    Failed(String),
}

/// A handle on the thread.
pub(crate) struct Compute {
    pub jobs: JobSender<Job>,
    pub replies: mpsc::Receiver<Reply>,
    pub activity: Activity,
}

/// Starts the thread; `profile` gets what it does.
pub(crate) fn start(mut args: Args, profile: Recorder, adapters: HostAdapters) -> anyhow::Result<Compute> {
    let activity = Activity::default();
    let (jobs, queue) = job_queue(QUEUE, &activity);
    let (sender, replies) = mpsc::channel(QUEUE);
    let noted = activity.clone();
    let run = move || {
        // A panic is a bug, but not one that may leave the other ranks guessing. Nothing is used after it.
        let worked = catch_unwind(AssertUnwindSafe(|| {
            let around = Surroundings { replies: &sender, activity: &noted, profile, adapters };
            load_and_work(&mut args, &queue, around)
        }));
        let ended = worked.unwrap_or_else(|panic| Err(anyhow!("a bug: {}", panic_message(&*panic))));
        if let Err(error) = ended {
            let _ = sender.blocking_send(Reply::Failed(format!("{error:#}")));
        }
    };
    std::thread::Builder::new().name("compute".into()).spawn(run).context("the compute thread")?;
    Ok(Compute { jobs, replies, activity })
}

/// What a panic said.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}

/// Whom the thread tells what it does.
struct Surroundings<'a> {
    replies: &'a mpsc::Sender<Reply>,
    activity: &'a Activity,
    profile: Recorder,
    adapters: HostAdapters,
}

fn load_and_work(args: &mut Args, jobs: &JobReceiver<Job>, surroundings: Surroundings<'_>) -> anyhow::Result<()> {
    let Surroundings { replies, activity, profile, adapters } = surroundings;
    let started = Instant::now();
    let tokenizer = args.tokenizer.as_ref().unwrap_or(&args.model).clone();
    let pooling = args.pooling.plan(&args.model, &tokenizer)?;
    let (model, offer) = load(args, pooling.as_ref(), replies, activity)?;
    let sync = if model.runner.can_join() { RankSync::Device } else { RankSync::Host };
    let loaded = Loaded { ready: offer.clone(), sync, adapters: model.runner.adapter_layout() };
    say(replies, Reply::Ready(Box::new(loaded)))?;
    let graphs = GraphCapture::new(args.enforce_eager);
    let grammars = Grammars::start(tokenizer, offer.eos_token_ids.clone()).context("the grammars' thread")?;
    let (pooling, profile) = (pooling.map(|plan| plan.spec.method), DeviceProfile::new(profile));
    let unrehearsed = Some(started);
    Working { args, jobs, replies, activity, model, graphs, grammars, pooling, offer, profile, adapters, unrehearsed }
        .run()
}

/// The thread once the model is there.
struct Working<'a> {
    args: &'a Args,
    jobs: &'a JobReceiver<Job>,
    replies: &'a mpsc::Sender<Reply>,
    activity: &'a Activity,
    model: Model,
    graphs: GraphCapture,
    grammars: Grammars,
    pooling: Option<PoolingMethod>,
    /// The facts that the scheduler was told.
    offer: WorkerReady,
    profile: DeviceProfile,
    adapters: HostAdapters,
    /// First steps are still to be rehearsed: when the worker's start began.
    unrehearsed: Option<Instant>,
}

impl Working<'_> {
    /// Each round is one epoch; it ends with the job that forms the next one.
    fn run(mut self) -> anyhow::Result<()> {
        let mut next = self.jobs.recv();
        while let Some(job) = next {
            next = match job {
                Job::Step(_) => self.jobs.recv(),
                Job::EndProfile(recorded) => {
                    let _ = recorded.send(self.profile.take());
                    self.jobs.recv()
                }
                Job::Form(forming) => self.epoch(*forming)?,
            };
        }
        Ok(())
    }

    /// Works in one group until the next one is to be formed, which it returns.
    fn epoch(&mut self, forming: Forming) -> anyhow::Result<Option<Job>> {
        self.activity.begin(Task::Forming);
        check(&forming.form, &self.offer)?;
        let form = forming.form.clone();
        let outcome = match init_group(self.args, forming, &mut *self.model.runner, &self.profile.recorder) {
            Ok(group) => self.work(&form, group),
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(next) => Ok(next),
            Err(error) => match error.downcast::<StepError>() {
                Ok(StepError::GroupLost(reason)) => {
                    say(self.replies, Reply::EpochLost { epoch: form.epoch, reason })?;
                    Ok(until_forming(self.jobs))
                }
                Ok(error) => Err(error.into()),
                Err(error) => Err(error),
            },
        }
    }

    /// Rehearses first steps, once: who says that the group has formed answers at once. All ranks do, beside each
    /// other; stages of a pipeline do not.
    fn rehearse(&mut self, form: &FormGroup, group: &mut dyn Collective) -> Result<(), StepError> {
        if self.offer.stages > 1 {
            return Ok(());
        }
        let started = self.unrehearsed.take();
        // Together or not at all: one that did so in another group would keep the others waiting.
        let told = group.exchange(&[u8::from(started.is_some())]);
        let told = told.map_err(|error| StepError::GroupLost(error.to_string()))?;
        let Some(started) = started.filter(|_| told.iter().all(|each| *each == [1])) else { return Ok(()) };
        let room = Room {
            max_rows: self.args.load_options().max_rows,
            max_len: self.model.spec.context_len,
            block_size: self.args.block_size as usize,
            num_blocks: form.num_blocks.min(self.offer.num_blocks) as usize,
            tables: self.offer.cache_groups.len(),
        };
        rehearsal::rehearse(&mut *self.model.runner, &mut self.graphs, group, room, started)?;
        Ok(())
    }

    /// Executes the plans of a group.
    fn work(&mut self, form: &FormGroup, mut group: Box<dyn Collective>) -> anyhow::Result<Option<Job>> {
        self.rehearse(form, &mut *group)?;
        let num_blocks = form.num_blocks.min(self.offer.num_blocks);
        let (groups, end_tokens) = (self.offer.cache_groups.len(), self.offer.eos_token_ids.clone());
        let slots = Slots::new(form.max_num_seqs, num_blocks, groups, end_tokens).pooled_by(self.pooling);
        // Only the stage that samples holds tokens to anything.
        let samples = self.args.place().is_last();
        let slots = if samples { slots.guided_by(self.grammars.clone()) } else { slots };
        let (threads, max_logit_rows) = (self.args.threads(), self.args.load_options().max_logit_rows);
        let model = OnDevice { runner: &mut *self.model.runner, graphs: &mut self.graphs };
        let mut engine = Engine::new(model, slots, group, Options { threads, max_logit_rows })
            .with_adapters(self.adapters.clone(), self.offer.adapter_slots)
            .in_place(self.args.place());
        say(self.replies, Reply::Formed(form.epoch))?;
        loop {
            let next = next(&mut engine, self.jobs);
            // An adapter that waits for the device makes no progress.
            if !matches!(next, Next::Adapter) {
                self.activity.begin(Task::Step);
            }
            let result = match next {
                Next::Finish => {
                    let scope = self.profile.recorder.scope("finish");
                    let result = engine.finish()?;
                    drop(scope.map(|scope| scope.of_step(result.as_ref().map_or(0, |result| result.step))));
                    result
                }
                Next::Mask => {
                    let scope = self.profile.recorder.scope("masks");
                    let step = engine.mask_and_sample()?;
                    drop(scope.map(|scope| scope.of_step(step)));
                    None
                }
                Next::Adapter => bring_adapter(&mut engine, form.epoch, self.replies, self.activity).map(|()| None)?,
                Next::IdleTask => engine.run_idle_task().map(|()| None)?,
                Next::Job(Some(Job::Step(plan))) if plan.epoch == form.epoch => {
                    profile_step(&mut self.profile, &mut engine, self.replies)?;
                    let _scope = self.profile.recorder.scope("submit").map(|scope| scope.of_step(plan.step));
                    engine.execute(*plan).map(|()| None)?
                }
                Next::Job(Some(Job::EndProfile(recorded))) => {
                    self.profile.end(&mut engine);
                    // Who asked may be gone.
                    let _ = recorded.send(self.profile.take());
                    None
                }
                Next::Job(Some(Job::Step(_))) => None,
                Next::Job(other) => return Ok(other),
            };
            result.map_or(Ok(()), |result| say(self.replies, Reply::Result(Box::new(result))))?;
        }
    }
}

/// Brings an adapter further, and tells when it is there.
fn bring_adapter(
    engine: &mut Engine<'_>,
    epoch: u64,
    replies: &mpsc::Sender<Reply>,
    activity: &Activity,
) -> anyhow::Result<()> {
    match engine.bring_adapter()? {
        Brought::Nothing => std::thread::yield_now(),
        Brought::Piece => activity.begin(Task::Step),
        Brought::All(slot) => {
            activity.begin(Task::Step);
            say(replies, Reply::Placed(AdapterPlaced { epoch, slot }))?;
        }
    }
    Ok(())
}

/// Begins or ends the device's part of a profile where a step does.
fn profile_step(
    profile: &mut DeviceProfile,
    engine: &mut Engine<'_>,
    replies: &mpsc::Sender<Reply>,
) -> anyhow::Result<()> {
    match profile.step() {
        Change::None => {}
        Change::End => profile.end(engine),
        Change::Begin => {
            while !engine.is_idle() {
                let result = engine.finish()?;
                result.map_or(Ok(()), |result| say(replies, Reply::Result(Box::new(result))))?;
            }
            profile.begin(engine);
        }
    }
    Ok(())
}

/// Refuses a group that asks for more than this worker has offered: it would fail at its first large step.
fn check(form: &FormGroup, offer: &WorkerReady) -> anyhow::Result<()> {
    if form.world_size != offer.world_size {
        let (theirs, ours) = (form.world_size, offer.world_size);
        bail!("--tensor-parallel-size: the scheduler forms a group of {theirs}, this worker is one of {ours}");
    }
    if form.stages.max(1) != offer.stages.max(1) {
        let (theirs, ours) = (form.stages.max(1), offer.stages.max(1));
        bail!("--pipeline-parallel-size: the scheduler forms {theirs} stages, this worker is in one of {ours}");
    }
    let (asked, room) = (form.max_num_seqs, offer.max_num_seqs);
    if asked > room {
        bail!("--max-num-seqs: {asked} sequences are to run at the same time; this worker has memory for {room}");
    }
    let (asked, room) = (form.max_num_batched_tokens, offer.max_num_batched_tokens);
    if asked > room {
        bail!(
            "--max-num-batched-tokens: the scheduler plans steps of up to {asked} tokens; this worker has room for \
             {room}"
        );
    }
    Ok(())
}

/// Skips the jobs that are left of a lost epoch.
fn until_forming(jobs: &JobReceiver<Job>) -> Option<Job> {
    std::iter::from_fn(|| jobs.recv()).find(|job| matches!(job, Job::Form(_)))
}

/// Connects this process with those of the other ranks, then this device with theirs.
fn init_group(
    args: &Args,
    Forming { form, abort, neighbours }: Forming,
    model: &mut dyn Runner,
    recorder: &Recorder,
) -> Result<Box<dyn Collective>, StepError> {
    let lost = |error: CollectiveError| StepError::GroupLost(error.to_string());
    let mut group = join_ranks(args, &form, abort).map_err(lost)?;
    if args.group.pipeline_parallel_size > 1 {
        group = Box::new(StageGroup::join(group, neighbours, form.epoch, recorder.clone()).map_err(lost)?);
    }
    model.join(&mut *group).map_err(StepError::of_init)?;
    Ok(group)
}

fn join_ranks(args: &Args, form: &FormGroup, abort: AbortHandle) -> Result<Box<dyn Collective>, CollectiveError> {
    if form.world_size <= 1 {
        return Ok(Box::new(Solo));
    }
    let place = args.place();
    let stage = if place.stages > 1 { format!("-stage{}", place.stage()) } else { String::new() };
    let place = RankPlacement {
        rendezvous: format!("{}{stage}", form.rendezvous),
        rank: place.in_stage() as usize,
        world_size: form.world_size as usize,
        timeout: args.group.distributed_timeout(),
    };
    Ok(Box::new(SharedMemory::join(place, abort)?))
}

/// Fails when the other thread is gone, and with it the process.
fn say(replies: &mpsc::Sender<Reply>, reply: Reply) -> anyhow::Result<()> {
    replies.blocking_send(reply).map_err(|_| anyhow!("the process is ending"))
}
