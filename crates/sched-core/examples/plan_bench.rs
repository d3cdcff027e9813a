//! How long `plan()` and `complete()` take on one core.
//!
//! `cargo run --release -p sched-core --example plan_bench [STEPS]`
//!
//! Each row decodes with that many running sequences, one step ahead, over a prompt of 256 tokens each: what a step
//! costs in steady state, block allocation and naming of full blocks included. Workers cost nothing here.

use ids::Epoch;
use proto::{RequestKey, Sampling, StepPlan, StepResult, TokenBatch, Want, prompt::Kind};
use sched_core::{Config, Scheduler};
use std::{hint::black_box, time::Instant};

const PROMPT: u32 = 256;

fn main() {
    let steps: usize = std::env::args().nth(1).and_then(|steps| steps.parse().ok()).unwrap_or(2000);
    println!(
        "{:>8} {:>12} {:>12} {:>12} {:>14} {:>14}",
        "running", "plan min", "plan median", "plan p99", "complete min", "complete median"
    );
    for running in [64, 256, 1024, 4096] {
        let (mut plan, mut complete) = measure(running, steps);
        plan.sort_by(f64::total_cmp);
        complete.sort_by(f64::total_cmp);
        let at = |sorted: &[f64], share: f64| sorted[((sorted.len() - 1) as f64 * share) as usize];
        println!(
            "{running:>8} {:>9.1} µs {:>9.1} µs {:>9.1} µs {:>11.1} µs {:>11.1} µs",
            plan[0],
            at(&plan, 0.5),
            at(&plan, 0.99),
            complete[0],
            at(&complete, 0.5)
        );
    }
}

fn scheduler(running: u32, steps: usize) -> Scheduler {
    let config = Config {
        max_num_seqs: running,
        max_num_batched_tokens: (running * PROMPT).max(8192),
        max_model_len: PROMPT + 2 * steps as u32 + 64,
        vocab_size: 32_000,
        eos_token_ids: vec![2],
        ..Config::default()
    };
    let blocks = running * (config.max_model_len / config.block_size + 1);
    let mut scheduler = Scheduler::new(config).expect("a possible configuration");
    scheduler.group_formed(Epoch(1), blocks, 0);
    for number in 0..running {
        let ids = (0..PROMPT).map(|at| (at * 31 + number * 17) % 32_000).collect();
        let request = proto::Request {
            key: Some(RequestKey { gateway: 1, number: number.into() }),
            request_id: format!("cmpl-{number}"),
            prompt: Some(proto::Prompt { kind: Some(Kind::Ids(proto::TokenIds { ids })), ..Default::default() }),
            sampling: Some(Sampling { temperature: 1.0, ..Default::default() }),
            n: 1,
            max_tokens: Some(2 * steps as u32 + 32),
            ..Default::default()
        };
        scheduler.admit(request, 0).expect("admitted");
    }
    scheduler
}

fn answer(plan: &StepPlan) -> StepResult {
    let sampled = plan.slot.iter().zip(plan.want()).filter(|(_, want)| *want == Want::Sample);
    let slot: Vec<u32> = sampled.map(|(slot, _)| *slot).collect();
    let token = slot.iter().map(|slot| 100 + (slot * 7 + plan.step as u32) % 30_000).collect();
    StepResult { epoch: plan.epoch, step: plan.step, slot, token, ..Default::default() }
}

fn measure(running: u32, steps: usize) -> (Vec<f64>, Vec<f64>) {
    let mut scheduler = scheduler(running, steps);
    let mut batch = TokenBatch::default();
    let (mut planned, mut completed) = (Vec::with_capacity(steps), Vec::with_capacity(steps));
    let mut flight = scheduler.plan(0).map(|plan| answer(&plan));
    for step in 0..steps + 50 {
        let before = Instant::now();
        let plan = black_box(scheduler.plan(step as u64)).expect("something to run");
        let plan_us = before.elapsed().as_secs_f64() * 1e6;
        let next = answer(&plan);
        let result = flight.replace(next).expect("one step in flight");
        let before = Instant::now();
        scheduler.complete(result, step as u64).expect("the planned rows");
        let complete_us = before.elapsed().as_secs_f64() * 1e6;
        batch.clear_all();
        scheduler.take_output(&mut batch);
        if step >= 50 {
            assert_eq!(plan.slot.len(), running as usize);
            planned.push(plan_us);
            completed.push(complete_us);
        }
    }
    (planned, completed)
}

/// Empties a batch without giving its buffers back, as a service does between steps.
trait ClearAll {
    fn clear_all(&mut self);
}

impl ClearAll for TokenBatch {
    fn clear_all(&mut self) {
        self.started.clear();
        self.sequence.clear();
        self.token.clear();
        self.logprobs.clear();
        self.finished.clear();
        self.failed.clear();
        self.pooled.clear();
    }
}
