//! The compute thread: loads the model, then forms groups and executes plans, one job after the other.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    time::{Duration, Instant},
};

use anyhow::{Context, anyhow, bail};
use collectives::{AbortHandle, Collective, CollectiveError, RankPlacement, SharedMemory, Solo};
use kernels::ops::Backend;
use models::{Memory, Model, Runner};
use proto::{FormGroup, StepPlan, StepResult, WorkerReady};
use service_kit::Far;
use tokio::sync::mpsc;
use tracing::info;

use crate::{
    config::{Args, CachePrecision},
    device::{self, Opened},
    engine::{Engine, Options},
    error::StepError,
    memory::{self, Room},
    recording::Recorder,
    slots::Slots,
    turns::{Next, Work, next},
    watch::{Activity, Doing},
};

/// Jobs that may wait: the group, and two plans of it.
const QUEUE: usize = 64;
/// How long the ranks of a group wait for each other, forming and in a step.
const GROUP_DEADLINE: Duration = Duration::from_secs(300);

/// What the compute thread is to do, in order.
pub(crate) enum Job {
    /// Drop all slots and join this group; the handle ends its waits from outside.
    Form(FormGroup, AbortHandle),
    /// Execute a plan. One of another epoch is passed over.
    Step(Box<StepPlan>),
}

/// Whether this worker's device works together with those of other ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Joins {
    /// Work on the device may wait for a rank that is gone.
    Others,
    /// It never waits for anybody.
    Nobody,
}

/// What the compute thread says.
pub(crate) enum Reply {
    Loading(Far),
    /// The model is there; whether devices of several ranks are to meet.
    Ready(Box<WorkerReady>, Joins),
    Formed(u64),
    Result(Box<StepResult>),
    /// The epoch is over; the weights are fine.
    EpochLost {
        epoch: u64,
        reason: String,
    },
    /// The thread has ended; why.
    Failed(String),
}

/// The thread, as others see it.
pub(crate) struct Compute {
    pub jobs: SyncSender<Job>,
    pub replies: mpsc::Receiver<Reply>,
    pub activity: Activity,
}

/// Starts the thread.
pub(crate) fn start(args: Args) -> anyhow::Result<Compute> {
    let (jobs, queue) = sync_channel(QUEUE);
    let (replies, heard) = mpsc::channel(QUEUE);
    let activity = Activity::default();
    let says = activity.clone();
    let run = move || {
        // A panic is a bug, but not one that may leave the other ranks guessing. Nothing is used after it.
        let worked = catch_unwind(AssertUnwindSafe(|| load_and_work(&args, &queue, &replies, &says)));
        let ended = worked.unwrap_or_else(|panic| Err(anyhow!("a bug: {}", panic_message(&*panic))));
        if let Err(error) = ended {
            let _ = replies.blocking_send(Reply::Failed(format!("{error:#}")));
        }
    };
    std::thread::Builder::new().name("compute".into()).spawn(run).context("the compute thread")?;
    Ok(Compute { jobs, replies: heard, activity })
}

/// What a panic said.
fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("a panic without a message")
}

fn load_and_work(
    args: &Args,
    jobs: &Receiver<Job>,
    replies: &mpsc::Sender<Reply>,
    activity: &Activity,
) -> anyhow::Result<()> {
    let (model, offer) = load(args, replies, activity)?;
    let joins = if model.runner.can_join() { Joins::Others } else { Joins::Nobody };
    say(replies, Reply::Ready(Box::new(offer.clone()), joins))?;
    let recorder = Recorder::new(args.enforce_eager);
    Working { args, jobs, replies, activity, model, recorder, offer }.run()
}

/// The thread once the model is there.
struct Working<'a> {
    args: &'a Args,
    jobs: &'a Receiver<Job>,
    replies: &'a mpsc::Sender<Reply>,
    activity: &'a Activity,
    model: Model,
    recorder: Recorder,
    /// What the scheduler was told.
    offer: WorkerReady,
}

impl Working<'_> {
    /// Each round is one epoch; it ends with the job that forms the next one.
    fn run(mut self) -> anyhow::Result<()> {
        let mut next = self.jobs.recv().ok();
        while let Some(job) = next {
            next = match job {
                Job::Step(_) => self.jobs.recv().ok(),
                Job::Form(form, abort) => self.epoch(&form, abort)?,
            };
        }
        Ok(())
    }

    /// Works in one group until the next one is to be formed, which it returns.
    fn epoch(&mut self, form: &FormGroup, abort: AbortHandle) -> anyhow::Result<Option<Job>> {
        self.activity.begins(Doing::Forming);
        check(form, &self.offer)?;
        let outcome = match meet(self.args, form, abort, &mut *self.model.runner) {
            Ok(group) => self.work(form, group),
            Err(error) => Err(error.into()),
        };
        match outcome {
            Ok(next) => Ok(next),
            Err(error) => match error.downcast::<StepError>() {
                Ok(StepError::GroupLost(reason)) => {
                    self.activity.rests();
                    say(self.replies, Reply::EpochLost { epoch: form.epoch, reason })?;
                    Ok(until_forming(self.jobs))
                }
                Ok(error) => Err(error.into()),
                Err(error) => Err(error),
            },
        }
    }

    /// Executes the plans of a group.
    fn work(&mut self, form: &FormGroup, group: Box<dyn Collective>) -> anyhow::Result<Option<Job>> {
        let num_blocks = form.num_blocks.min(self.offer.num_blocks);
        let (groups, end_tokens) = (self.offer.cache_groups.len(), self.offer.eos_token_ids.clone());
        let slots = Slots::new(form.max_num_seqs, num_blocks, groups, end_tokens);
        let (threads, max_logit_rows) = (self.args.threads(), self.args.load_options().max_logit_rows);
        let device: (&mut dyn Runner, _) = (&mut *self.model.runner, &mut self.recorder);
        let mut engine = Engine::new(device, slots, group, Options { threads, max_logit_rows });
        self.activity.rests();
        say(self.replies, Reply::Formed(form.epoch))?;
        loop {
            let next = next(&mut engine, self.jobs);
            self.activity.begins(Doing::Step);
            let result = match next {
                Next::Finish => engine.finish()?,
                Next::Pastime => engine.pass_time().map(|()| None)?,
                Next::Job(Some(Job::Step(plan))) if plan.epoch == form.epoch => engine.submit(*plan).map(|()| None)?,
                Next::Job(Some(Job::Step(_))) => None,
                Next::Job(other) => return Ok(other),
            };
            if engine.is_idle() {
                self.activity.rests();
            }
            result.map_or(Ok(()), |result| say(self.replies, Reply::Result(Box::new(result))))?;
        }
    }
}

/// Refuses a group that asks for more than this worker has offered: it would fail at its first large step.
fn check(form: &FormGroup, offer: &WorkerReady) -> anyhow::Result<()> {
    if form.world_size != offer.world_size {
        let (theirs, ours) = (form.world_size, offer.world_size);
        bail!("--tensor-parallel-size: the scheduler forms a group of {theirs}, this worker is one of {ours}");
    }
    let (asked, room) = (form.max_num_seqs, offer.max_num_seqs);
    if asked > room {
        bail!("--max-num-seqs: {asked} sequences are to run at the same time; this worker has memory for {room}");
    }
    let (asked, room) = (form.max_num_batched_tokens, offer.max_num_batched_tokens);
    if asked > room {
        bail!(
            "--max-num-batched-tokens: the scheduler plans steps of up to {asked} tokens; this worker has room for {room}"
        );
    }
    Ok(())
}

/// Passes over what is left of a lost epoch.
fn until_forming(jobs: &Receiver<Job>) -> Option<Job> {
    jobs.iter().find(|job| matches!(job, Job::Form(..)))
}

/// Meets the other ranks, this process theirs and then this device theirs.
fn meet(
    args: &Args,
    form: &FormGroup,
    abort: AbortHandle,
    model: &mut dyn Runner,
) -> Result<Box<dyn Collective>, StepError> {
    let mut group = join(args, form, abort).map_err(|error| StepError::GroupLost(error.to_string()))?;
    model.join(&mut *group).map_err(StepError::of_meeting)?;
    Ok(group)
}

fn join(args: &Args, form: &FormGroup, abort: AbortHandle) -> Result<Box<dyn Collective>, CollectiveError> {
    if form.world_size <= 1 {
        return Ok(Box::new(Solo));
    }
    let place = RankPlacement {
        rendezvous: form.rendezvous.clone(),
        rank: args.rank as usize,
        world_size: form.world_size as usize,
        timeout: GROUP_DEADLINE,
    };
    Ok(Box::new(SharedMemory::join(place, abort)?))
}

/// Loads the weights and takes the KV memory.
pub(crate) fn load(
    args: &Args,
    replies: &mpsc::Sender<Reply>,
    activity: &Activity,
) -> anyhow::Result<(Model, WorkerReady)> {
    let Opened { backend, kind, compilations } = device::open(args)?;
    activity.compiles(compilations);
    let mut model = load_weights(args, backend, replies)?;
    // Before the cache takes what memory is left.
    model.runner.set_slots(args.max_num_seqs() as usize);
    let recordable = args.recordable();
    model.runner.set_capture_sizes(&recordable);
    let room = find_room(args, &model, recordable.len())?;
    model.runner.allocate(Memory {
        num_blocks: room.num_blocks as usize,
        block_size: args.block_size as usize,
        max_sequences: room.max_num_seqs as usize,
    });
    model.runner.check_device()?;
    let ready = WorkerReady { device_kind: kind.into(), ..describe(args, &model, room) };
    Ok((model, ready))
}

fn load_weights(args: &Args, backend: Box<dyn Backend>, replies: &mpsc::Sender<Reply>) -> anyhow::Result<Model> {
    let start = Instant::now();
    let mut progress = |progress: models::Progress| {
        // Nobody may be listening yet, and only the newest figure matters.
        let far = Far::after(start.elapsed(), progress.bytes_done, progress.bytes_total);
        let _ = replies.try_send(Reply::Loading(far));
    };
    let model = models::load(&args.model, &args.load_options(), backend, &mut progress)?;
    let (bytes, seconds) = (model.weight_bytes as f64, start.elapsed().as_secs_f64());
    let (gb, gb_per_s) = (bytes * 1e-9, bytes / seconds.max(1e-9) * 1e-9);
    let each = bytes / model.num_weights.max(1) as f64;
    info!(
        architecture = model.spec.architecture,
        "weights are loaded: {gb:.2} GB in {seconds:.2} s, {gb_per_s:.1} GB/s; {each:.2} bytes a weight"
    );
    Ok(model)
}

/// What there is memory for, beside recordings of as many kinds of steps.
fn find_room(args: &Args, model: &Model, recordable: usize) -> anyhow::Result<Room> {
    let cache = model.runner.cache();
    let recordings = if args.enforce_eager { 0 } else { model.runner.capture_bytes(recordable) };
    let context_len = model.spec.context_len as u32;
    let facts = memory::Facts { cache: &cache, context_len, memory: memory::of(&*model.runner), recordings };
    let room = memory::room(args, facts)?;
    if room.max_num_seqs < args.max_num_seqs() {
        info!(
            max_num_seqs = room.max_num_seqs,
            state_bytes_per_sequence = cache.state_bytes,
            "there is memory for the recurrent states of fewer sequences than usual; --kv-cache-memory-bytes gives it more"
        );
    }
    if args.kv_cache_dtype == CachePrecision::Fp8E4m3 {
        info!(
            "keys and values are kept in 8-bit floats (fp8_e4m3), with the scales of the checkpoint where it has some, else 1"
        );
    }
    Ok(room)
}

/// What the scheduler is told of a model with its memory.
fn describe(args: &Args, model: &Model, Room { num_blocks, max_num_seqs }: Room) -> WorkerReady {
    let (spec, cache) = (&model.spec, model.runner.cache());
    WorkerReady {
        rank: args.rank,
        world_size: args.tensor_parallel_size,
        device: model.runner.describe_device(),
        dtype: dtype_name(args, model).into(),
        block_size: args.block_size,
        num_blocks,
        kv_bytes_per_token: cache.groups.iter().map(|group| group.bytes_per_token).sum(),
        vocab_size: spec.vocab_size as u32,
        max_model_len: spec.context_len as u32,
        weight_bytes: model.weight_bytes,
        eos_token_ids: spec.eos_token_ids.clone(),
        cache_groups: cache.groups.iter().map(cache_group).collect(),
        state_bytes: cache.state_bytes,
        cache_bytes: u64::from(num_blocks) * u64::from(args.block_size) * cache.place_bytes
            + u64::from(max_num_seqs) * cache.state_bytes,
        max_num_seqs,
        step_preference: Some(step_preference(model.runner.step_preference())),
        max_num_batched_tokens: args.load_options().max_rows as u32,
        settings: args.common_to_ranks(),
        ..WorkerReady::default()
    }
}

fn step_preference(preferred: kernels::ops::StepPreference) -> proto::StepPreference {
    proto::StepPreference {
        row_multiple: preferred.row_multiple,
        large_row_multiple: preferred.large_row_multiple,
        min_prefill_tokens: preferred.min_prefill_tokens,
        target_us: preferred.target_us,
        target_prefill_tokens: preferred.target_prefill_tokens,
        few_decodes: preferred.few_decodes,
        few_decodes_target_us: preferred.few_decodes_target_us,
        prefill_tokens_per_decode: preferred.prefill_tokens_per_decode,
        max_us: preferred.max_us,
    }
}

fn cache_group(group: &models::CacheGroup) -> proto::CacheGroup {
    proto::CacheGroup {
        layers: group.layers as u32,
        window: group.window.map_or(0, |window| u32::try_from(window).unwrap_or(u32::MAX)),
        bytes_per_token: group.bytes_per_token,
    }
}

fn dtype_name(args: &Args, model: &Model) -> &'static str {
    use kernels::ops::DType;
    match args.load_options().dtype.or(model.spec.dtype) {
        Some(DType::Bf16) => "bfloat16",
        Some(DType::F16) => "float16",
        Some(DType::F32) | None => "float32",
    }
}

/// Fails when the other thread is gone, and with it the process.
fn say(replies: &mpsc::Sender<Reply>, reply: Reply) -> anyhow::Result<()> {
    replies.blocking_send(reply).map_err(|_| anyhow!("the process is ending"))
}
