//! Profiles steps without a scheduler: a prefill and a decode step kernel by kernel, and decode steps replayed as CUDA
//! graphs one after the other, submitted ahead as in service.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, anyhow, bail};
use collectives::{AbortHandle, Collective, CollectiveError, RankPlacement, SharedMemory, Solo};
use kernels::ops::Timing;
use proto::{NewSequence, Sampling, StepPlan, Want, WorkerReady};
use tokio::sync::mpsc;

use crate::{
    compute::{load, run_loop::Work, watchdog::Activity},
    config::Args,
    engine::{Engine, OnDevice, Options, slots::Slots},
    idle::graph_capture::{CaptureStats, GraphCapture},
};

/// Decode steps that are not measured, and those that are.
const WARM_STEPS: usize = 8;
const STEPS: usize = 64;
/// Tokens of the prefill that kernels are queued behind, so that the device never waits for the host.
const COVER: u32 = 8192;

/// What to profile.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Sequences.
    pub batch: u32,
    /// Tokens of each prompt.
    pub context: u32,
}

/// What the device did, in order.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// The device's name, for display.
    pub device: String,
    /// CUDA graphs of decode steps.
    pub graphs: CaptureStats,
    /// The prompts, in as many steps as they take.
    pub prefill: Vec<Timing>,
    /// One decode step, kernel by kernel: their times add up to more than a step's, because in one they overlap.
    pub decode: Vec<Timing>,
    /// When each of several decode steps began and ended, where they are replays; otherwise empty.
    pub replays: Vec<(f64, f64)>,
}

/// Profiles a model. Of tensor-parallel ranks, each a thread of this process, the first one's device is told of.
pub fn profile(args: &Args, shape: Shape) -> anyhow::Result<Profile> {
    if args.group.pipeline_parallel_size > 1 {
        bail!("a profile is of all layers; leave out --pipeline-parallel-size");
    }
    let size = args.group.tensor_parallel_size;
    if size <= 1 {
        return profile_rank(args, shape, || Ok(Box::new(Solo)));
    }
    let rendezvous = format!("quire-profile-{}", std::process::id());
    let aborts: Vec<AbortHandle> = (0..size).map(|_| AbortHandle::default()).collect();
    // Why the first rank to fail did; others hear of it.
    let failed: Mutex<Option<anyhow::Error>> = Mutex::new(None);
    let run = |rank: u32| {
        let args = Args { rank, ..args.clone() };
        let (place, abort) = (placement(&rendezvous, &args, size), aborts[rank as usize].clone());
        let join =
            || -> Result<Box<dyn Collective>, CollectiveError> { Ok(Box::new(SharedMemory::join(place, abort)?)) };
        let profiled = profile_rank(&args, shape, join);
        profiled.inspect_err(|_| aborts.iter().for_each(AbortHandle::abort)).map_err(|error| {
            failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        })
    };
    let first = std::thread::scope(|scope| {
        let run = &run;
        (1..size).for_each(|rank| drop(scope.spawn(move || run(rank))));
        run(0)
    });
    match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => first.map_err(|()| anyhow!("a rank failed")),
    }
}

fn placement(rendezvous: &str, args: &Args, size: u32) -> RankPlacement {
    RankPlacement {
        rendezvous: rendezvous.to_owned(),
        rank: args.rank as usize,
        world_size: size as usize,
        timeout: args.group.distributed_timeout(),
    }
}

/// Profiles a rank, which meets the others once its model is loaded.
fn profile_rank(
    args: &Args,
    shape: Shape,
    join: impl FnOnce() -> Result<Box<dyn Collective>, CollectiveError>,
) -> anyhow::Result<Profile> {
    let (replies, _receiver) = mpsc::channel(1);
    let mut args = args.clone();
    let (mut model, ready) = load(&mut args, None, &replies, &Activity::default())?;
    check(shape, &ready)?;
    let mut group = join()?;
    model.runner.join(&mut *group)?;
    let mut graphs = GraphCapture::new(args.enforce_eager);
    let slots = Slots::new(ready.max_num_seqs, ready.num_blocks, ready.cache_groups.len(), Vec::new());
    let options = Options { threads: args.threads(), max_logit_rows: args.load_options().max_logit_rows };
    let engine = Engine::new(OnDevice { runner: &mut *model.runner, graphs: &mut graphs }, slots, group, options);
    let budget = args.group.max_num_batched_tokens();
    let groups = ready.cache_groups.len() as u32;
    let mut stage = Stage { engine, block_size: args.block_size, groups, budget, next_block: 0, step: 0 };
    let cover = budget.min(COVER).min(ready.max_model_len);
    let room = u64::from(shape.batch) * u64::from(stage.blocks_of(shape.context + (WARM_STEPS + 2 * STEPS) as u32))
        + u64::from(stage.blocks_of(cover));
    if room * u64::from(groups) > u64::from(ready.num_blocks) {
        let Shape { batch, context } = shape;
        bail!("{batch} sequences of {context} tokens do not fit the KV cache ({} blocks)", ready.num_blocks);
    }
    let mut profile = Profile { device: ready.device, ..Profile::default() };
    // Once for everything that is compiled or allocated at first use. Ranks capture what has run.
    stage.prefill(shape)?;
    stage.decode(shape, WARM_STEPS, 0)?;
    // As it is in service after an idle while.
    while stage.engine.has_idle_task() {
        stage.engine.run_idle_task()?;
    }
    profile.graphs = stage.engine.capture_stats();
    stage.start_over(shape)?;
    stage.engine.start_profile();
    stage.prefill(shape)?;
    profile.prefill = stage.engine.end_profile();
    stage.decode(shape, WARM_STEPS, 0)?;
    stage.engine.start_profile();
    stage.decode(shape, STEPS, WARM_STEPS)?;
    let timings = stage.engine.end_profile();
    if profile.graphs.graphs > 0 {
        profile.replays = spans(&timings, STEPS);
    }
    profile.decode = stage.decode_under_cover(shape, cover, &args.capture_sizes())?;
    Ok(profile)
}

fn check(Shape { batch, context }: Shape, ready: &WorkerReady) -> anyhow::Result<()> {
    if batch >= ready.max_num_seqs {
        bail!("--batch-size {batch}: a profile needs --max-num-seqs {} or more", batch + 1);
    }
    if context > ready.max_model_len {
        bail!("--input-len {context}: the model can do {} tokens; pass at most that", ready.max_model_len);
    }
    Ok(())
}

/// An engine and the plans it gets.
struct Stage<'m> {
    engine: Engine<'m>,
    block_size: u32,
    groups: u32,
    /// Tokens of a step at most.
    budget: u32,
    next_block: u32,
    step: u64,
}

impl Stage<'_> {
    fn blocks_of(&self, tokens: u32) -> u32 {
        tokens.div_ceil(self.block_size)
    }

    /// A sequence with a prompt of `len` tokens and room for all steps.
    fn sequence(&mut self, slot: u32, len: u32) -> NewSequence {
        let each = self.blocks_of(len + (WARM_STEPS + 2 * STEPS) as u32);
        let first = self.next_block;
        self.next_block += each * self.groups;
        NewSequence {
            slot,
            tokens: (0..len).map(|place| 1 + place % 97).collect(),
            num_prompt_tokens: len,
            blocks: (first..first + each * self.groups).collect(),
            group_len: vec![each; self.groups as usize],
            group_first: vec![0; self.groups as usize],
            sampling: Some(Sampling { ignore_eos: true, ..Sampling::default() }),
            ..NewSequence::default()
        }
    }

    fn plan(&mut self) -> StepPlan {
        self.step += 1;
        StepPlan { step: self.step, ..StepPlan::default() }
    }

    fn add_row(plan: &mut StepPlan, slot: u32, start: u32, len: u32, sample: bool) {
        plan.slot.push(slot);
        plan.start.push(start);
        plan.num_tokens.push(len);
        plan.want.push(if sample { Want::Sample } else { Want::None }.into());
    }

    /// Computes new sequences' prompts, as many tokens a step as there may be.
    fn prefill(&mut self, shape: Shape) -> anyhow::Result<()> {
        let mut plan = self.plan();
        plan.added = (0..shape.batch).map(|slot| self.sequence(slot, shape.context)).collect();
        let mut left = self.budget;
        for slot in 0..shape.batch {
            let mut start = 0;
            while start < shape.context {
                let len = left.min(shape.context - start);
                Self::add_row(&mut plan, slot, start, len, start + len == shape.context);
                (start, left) = (start + len, left - len);
                if left == 0 {
                    let next = self.plan();
                    self.run(std::mem::replace(&mut plan, next))?;
                    left = self.budget;
                }
            }
        }
        if !plan.slot.is_empty() {
            self.run(plan)?;
        }
        self.drain()
    }

    /// Takes `steps` tokens of each sequence after the first and `done` more.
    fn decode(&mut self, shape: Shape, steps: usize, done: usize) -> anyhow::Result<()> {
        for step in 0..steps {
            let plan = self.decode_plan(shape, done + step);
            self.run(plan)?;
        }
        self.drain()
    }

    fn decode_plan(&mut self, shape: Shape, done: usize) -> StepPlan {
        let mut plan = self.plan();
        (0..shape.batch).for_each(|slot| Self::add_row(&mut plan, slot, shape.context + done as u32, 1, true));
        plan
    }

    /// A decode step kernel by kernel, queued while a prefill of `cover` tokens runs.
    fn decode_under_cover(&mut self, shape: Shape, cover: u32, capture_sizes: &[usize]) -> anyhow::Result<Vec<Timing>> {
        self.engine.disable_graphs(capture_sizes);
        let mut timings = Vec::new();
        // The first round compiles kernels for a prefill of this length.
        for round in 0..2 {
            let mut plan = self.plan();
            plan.removed = if round == 0 { Vec::new() } else { vec![shape.batch] };
            if round > 0 {
                self.next_block -= self.blocks_of(cover + (WARM_STEPS + 2 * STEPS) as u32) * self.groups;
            }
            plan.added = vec![self.sequence(shape.batch, cover)];
            Self::add_row(&mut plan, shape.batch, 0, cover, false);
            self.engine.submit(plan)?;
            self.engine.start_profile();
            let plan = self.decode_plan(shape, WARM_STEPS + STEPS + round);
            self.engine.submit(plan)?;
            timings = self.engine.end_profile();
            self.drain()?;
        }
        Ok(timings)
    }

    /// Forgets all sequences.
    fn start_over(&mut self, shape: Shape) -> anyhow::Result<()> {
        let mut plan = self.plan();
        plan.removed = (0..shape.batch).collect();
        self.next_block = 0;
        self.run(plan)
    }

    /// Submits a plan as early as there is room for it.
    fn run(&mut self, plan: StepPlan) -> anyhow::Result<()> {
        while !self.engine.has_room() {
            self.engine.finish().context("a step")?;
        }
        Ok(self.engine.submit(plan)?)
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        while !self.engine.is_idle() {
            self.engine.finish().context("a step")?;
        }
        Ok(())
    }
}

/// A kernel's share of the time.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Its name and shape.
    pub name: String,
    /// How often it ran.
    pub count: usize,
    /// Microseconds in all.
    pub micros: f64,
}

/// When each of `steps` steps that did the same began and ended.
fn spans(timings: &[Timing], steps: usize) -> Vec<(f64, f64)> {
    let chunks = timings.chunks((timings.len() / steps).max(1));
    chunks.filter_map(|step| Some((step.first()?.begin, step.last()?.end))).collect()
}

impl Profile {
    /// Time by kernel, most first.
    pub fn shares(timings: &[Timing]) -> Vec<Share> {
        let mut shares: Vec<Share> = Vec::new();
        for Timing { name, begin, end } in timings {
            let micros = end - begin;
            match shares.iter_mut().find(|share| share.name == *name) {
                Some(share) => (share.count, share.micros) = (share.count + 1, share.micros + micros),
                None => shares.push(Share { name: name.clone(), count: 1, micros }),
            }
        }
        shares.sort_by(|a, b| b.micros.total_cmp(&a.micros));
        shares
    }

    /// Median microseconds of a replay, and from the end of one to the beginning of the next; absent without replays.
    pub fn replay_and_gap(&self) -> Option<(f64, f64)> {
        let median = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied()
        };
        let steps = self.replays.iter().map(|(begin, end)| end - begin).collect();
        let gaps = self.replays.windows(2).map(|pair| pair[1].0 - pair[0].1).collect();
        median(steps).zip(median(gaps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing(name: &str, begin: f64, end: f64) -> Timing {
        Timing { name: name.to_owned(), begin, end }
    }

    #[test]
    fn kernels_are_summed_by_name() {
        let timings = [timing("a", 0.0, 2.0), timing("b", 2.0, 7.0), timing("a", 7.0, 8.5)];
        let share = |name: &str, count, micros| Share { name: name.to_owned(), count, micros };
        assert_eq!(Profile::shares(&timings), [share("b", 1, 5.0), share("a", 2, 3.5)]);
    }

    #[test]
    fn gaps_lie_between_replays() {
        let profile = |replays: &[(f64, f64)]| Profile { replays: replays.to_vec(), ..Profile::default() };
        let three = [(0.0, 10.0), (11.0, 20.0), (23.0, 35.0)];
        assert_eq!(profile(&three).replay_and_gap(), Some((10.0, 3.0)));
        assert_eq!(profile(&three[..1]).replay_and_gap(), None);
    }

    #[test]
    fn a_step_is_a_replay_and_what_follows_it() {
        let timings = [timing("s", 0.0, 8.0), timing("c", 8.5, 9.0), timing("s", 11.0, 18.0), timing("c", 18.5, 20.0)];
        assert_eq!(spans(&timings, 2), [(0.0, 9.0), (11.0, 20.0)]);
    }
}
