//! Rehearsal: before a worker says that it is ready, its device runs a few made-up steps. They load, and wait for, what
//! the first steps of requests would: kernels, a library's own choices, memory that grows, the graph of a decode step.

use std::time::{Duration, Instant};

use collectives::Collective;
use kernels::{
    ops::{Batch, Sequence},
    sample::{SampleParams, SampleRow},
};
use models::{ForwardError, Runner};
use tracing::{debug, info};

use super::graph_capture::{GraphCapture, Load};

/// Tokens of the prompts: one that is done by kernels for few rows, and one by those for many, which comes last: a
/// library may still be making its first choice.
const PROMPTS: [usize; 2] = [30, 1000];
/// How long kernels for other numbers of rows are loaded: a tenth of what the start has taken so far, at least and at
/// most.
const LOAD_AHEAD: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(500)];

/// What a made-up step may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Room {
    /// Tokens of a step.
    pub max_rows: usize,
    /// Tokens of a sequence.
    pub max_len: usize,
    pub block_size: usize,
    pub num_blocks: usize,
    /// Block tables of a sequence.
    pub tables: usize,
}

/// How long a start that has taken so long may load kernels ahead.
fn load_ahead(start: Duration) -> Duration {
    let [least, most] = LOAD_AHEAD;
    (start / 10).clamp(least, most)
}

/// Runs the steps on a device that gains by it; the worker's start began at `started`. No sequence may be there yet:
/// caches and slots are written to. All ranks of a group call it, with the same room: they run the same steps in the
/// same order, capture none that has not run, and load ahead what takes no other rank.
pub(crate) fn rehearse(
    runner: &mut dyn Runner,
    graphs: &mut GraphCapture,
    group: &mut dyn Collective,
    room: Room,
    started: Instant,
) -> Result<(), ForwardError> {
    if !runner.has_cold_steps() || runner.pools() {
        return Ok(());
    }
    let start = Instant::now();
    run_steps(runner, graphs, group, room)?;
    let steps = start.elapsed();
    let all_loaded = runner.load_ahead(load_ahead(started.elapsed()));
    runner.check_device()?;
    let [steps_ms, loading_ms] = [steps, start.elapsed().saturating_sub(steps)].map(|took| took.as_millis() as u64);
    info!(steps_ms, loading_ms, all_loaded, "first steps were rehearsed");
    log_waits(runner, "rehearsal");
    Ok(())
}

/// A prompt, a few tokens after it, drawn in several ways, and another prompt; captures what can be.
pub(crate) fn run_steps(
    runner: &mut dyn Runner,
    graphs: &mut GraphCapture,
    group: &mut dyn Collective,
    room: Room,
) -> Result<(), ForwardError> {
    let mut stage = Stage { runner, group, room };
    let most = room.max_rows.min(room.max_len.saturating_sub(draws().len())).max(1);
    let [short, long] = PROMPTS.map(|tokens| tokens.min(most));
    stage.step(0, short, &SampleParams::default())?;
    for (len, params) in (short..).zip(draws()) {
        stage.step(len, 1, &params)?;
        if let Some(size) = graphs.next_size(stage.runner, Load::InFlight) {
            graphs.capture(size, stage.runner, stage.group)?;
        }
    }
    stage.step(0, long, &SampleParams::default())
}

/// Says what the device's host has waited for since the last call, with `--log-level debug`.
pub(crate) fn log_waits(runner: &mut dyn Runner, during: &str) {
    for wait in runner.take_waits() {
        let took_ms = wait.took.as_secs_f64() * 1e3;
        debug!(during, reason = wait.reason.name(), name = wait.name, took_ms, "waited");
    }
}

/// Ways to draw a token, each with kernels of its own.
fn draws() -> [SampleParams; 3] {
    let drawn = SampleParams { inverse_temperature: Some(1.0), ..SampleParams::default() };
    [SampleParams::default(), drawn.clone(), SampleParams { top_k: 20, top_p: 0.9, ..drawn }]
}

/// Where steps run.
struct Stage<'a> {
    runner: &'a mut dyn Runner,
    group: &'a mut dyn Collective,
    room: Room,
}

impl Stage<'_> {
    /// Runs a step of one sequence, which had `start` tokens before, and waits for it.
    fn step(&mut self, start: usize, rows: usize, params: &SampleParams) -> Result<(), ForwardError> {
        let Room { block_size, num_blocks, tables, .. } = self.room;
        let began = Instant::now();
        let tokens = vec![0; rows];
        let positions: Vec<u32> = (start..start + rows).map(|position| position as u32).collect();
        let blocks = (start + rows).div_ceil(block_size.max(1));
        let table: Vec<u32> = (0..blocks).map(|block| (block % num_blocks.max(1)) as u32).collect();
        let tables = vec![table; tables];
        let sequences = [Sequence { first_row: 0, num_rows: rows, start, tables: &tables, slot: 0 }];
        let batch = Batch { tokens: &tokens, positions: &positions, sequences: &sequences };
        let is_sampled = self.runner.can_sample(params);
        if is_sampled {
            self.runner.set_slot(0, params, &[]);
        }
        let choices = [SampleRow { row: 0, slot: 0, uniform: 0.5, hold_stops: false }];
        let choices = if is_sampled { &choices[..] } else { &[] };
        let ticket = self.runner.submit(batch, &[rows as u32 - 1], choices, self.group)?;
        self.runner.take(ticket, &mut Vec::new())?;
        let took_ms = began.elapsed().as_secs_f64() * 1e3;
        debug!(start, rows, took_ms, "a step was rehearsed");
        Ok(())
    }
}
