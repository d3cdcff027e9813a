//! One rule, one test. Here is what the tests share: a small scheduler, small requests, and a group that answers as
//! told.

mod adapters;
mod admission;
mod beams;
mod cache;
mod ends;
mod jump;
mod memory;
mod pooling;
mod speculation;
mod stages;
mod steps;
mod windows;

use ids::{Epoch, SequenceId};
use proto::{RequestKey, Sampling, StepPlan, StepResult, TokenBatch, Want, prompt::Kind};
use sched_core::{Config, Scheduler};

/// Small numbers: 100 blocks of 4 tokens, 8 slots, end of text is token 9.
fn config() -> Config {
    Config {
        block_size: 4,
        max_num_seqs: 8,
        max_num_batched_tokens: 64,
        max_model_len: 100,
        vocab_size: 1000,
        eos_token_ids: vec![9],
        max_choices: 4,
        pipeline_depth: 1,
        ..Config::default()
    }
}

fn with(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = config();
    change(&mut config);
    config
}

fn formed(config: Config, num_blocks: u32) -> Scheduler {
    let mut scheduler = Scheduler::new(config).expect("a possible configuration");
    scheduler.group_formed(Epoch(7), num_blocks, 0);
    scheduler
}

fn key(number: u64) -> RequestKey {
    RequestKey { gateway: number / 100, number }
}

/// Request `number` with prompt tokens 10, 11, ... shifted so that different lengths share beginnings.
fn request(number: u64, prompt_tokens: u32, max_tokens: u32) -> proto::Request {
    let ids = (0..prompt_tokens).map(|at| 10 + at).collect();
    proto::Request {
        key: Some(key(number)),
        request_id: format!("r{number}"),
        prompt: Some(proto::Prompt { kind: Some(Kind::Ids(proto::TokenIds { ids })), ..Default::default() }),
        sampling: Some(Sampling { seed: Some(5), eos_token_id: Some(9), ..Default::default() }),
        n: 1,
        max_tokens: Some(max_tokens),
        ..Default::default()
    }
}

/// A prompt that shares nothing with others.
fn stranger(number: u64, prompt_tokens: u32, max_tokens: u32) -> proto::Request {
    let mut request = request(number, prompt_tokens, max_tokens);
    request.cache_salt = format!("salt {number}");
    request
}

fn sampling(request: &mut proto::Request) -> &mut Sampling {
    request.sampling.get_or_insert_default()
}

fn admit(scheduler: &mut Scheduler, request: proto::Request) {
    scheduler.admit(request, 0).expect("admitted");
}

fn plan(scheduler: &mut Scheduler) -> StepPlan {
    let plan = scheduler.plan(0).expect("something to run");
    scheduler.check_invariants().expect("sound");
    plan
}

/// Every row that wants something gives `token`.
fn result(plan: &StepPlan, token: u32) -> StepResult {
    let sampled = plan.slot.iter().zip(plan.want()).filter(|(_, want)| *want != Want::None);
    let slot: Vec<u32> = sampled.map(|(slot, _)| *slot).collect();
    StepResult { epoch: plan.epoch, step: plan.step, token: vec![token; slot.len()], slot, ..Default::default() }
}

fn complete(scheduler: &mut Scheduler, plan: &StepPlan, token: u32) -> TokenBatch {
    scheduler.complete(result(plan, token), 0).expect("a right result");
    scheduler.check_invariants().expect("sound");
    output(scheduler)
}

/// Plans and completes one step.
fn step(scheduler: &mut Scheduler, token: u32) -> (StepPlan, TokenBatch) {
    let plan = plan(scheduler);
    let batch = complete(scheduler, &plan, token);
    (plan, batch)
}

fn output(scheduler: &mut Scheduler) -> TokenBatch {
    let mut batch = TokenBatch::default();
    scheduler.take_output(&mut batch);
    batch
}

/// (start, num_tokens, want) of every row.
fn rows(plan: &StepPlan) -> Vec<(u32, u32, i32)> {
    (0..plan.slot.len()).map(|row| (plan.start[row], plan.num_tokens[row], plan.want[row])).collect()
}
