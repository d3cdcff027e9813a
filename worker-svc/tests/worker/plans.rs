//! Plans and settings that make no sense: a failure reason and an end, never a panic or a wrong token.

use std::path::Path;

use proto::{StepPlan, from_worker::Event};

use crate::{
    reference::{folder, recorded},
    scheduler::{Scheduler, greedy, row},
    worker,
};

/// A plan that adds a good sequence in slot 0, changed by `spoil`.
fn spoiled(spoil: impl FnOnce(&mut StepPlan)) -> StepPlan {
    let mut plan = StepPlan { step: 1, added: vec![greedy(0, &[1, 2, 3])], ..StepPlan::default() };
    row(&mut plan, 0, 0, 3, true);
    spoil(&mut plan);
    plan
}

/// The worker must say `why` and end.
async fn check(plan: StepPlan, why: &str) {
    let mut scheduler = Scheduler::bind().await;
    let worker = worker::start(&folder("llama"), &scheduler.address, (0, 1), &[]);
    scheduler.meet(1).await;
    scheduler.form().await;
    scheduler.send(plan).await;
    let words = scheduler.until_hung_up(0).await;
    let [Event::Failed(failed)] = &words[..] else { panic!("{why}: {words:?}") };
    assert!(failed.reason.contains(why), "{why}: {}", failed.reason);
    let ended = worker.ended.await.unwrap().unwrap_err();
    assert!(ended.to_string().contains(why));
}

#[tokio::test]
async fn malformed_plans_end_the_worker() {
    check(spoiled(|plan| plan.slot[0] = 5), "slot 5").await;
    check(spoiled(|plan| plan.slot[0] = u32::MAX), "slot").await;
    check(spoiled(|plan| plan.added[0].slot = 8), "slot 8").await;
    check(spoiled(|plan| plan.added.push(greedy(0, &[1]))), "slot 0 is taken").await;
    check(spoiled(|plan| plan.removed.push(99)), "slot 99").await;
    check(spoiled(|plan| plan.added[0].blocks[0] = u32::MAX), "block").await;
    check(spoiled(|plan| plan.added[0].blocks.clear()), "blocks").await;
    check(spoiled(|plan| plan.num_tokens[0] = u32::MAX), "tokens").await;
    check(spoiled(|plan| plan.start.clear()), "differ in length").await;
    check(spoiled(|plan| plan.added[0].tokens[1] = 100_000), "token").await;
    check(spoiled(|plan| plan.copy_from.push(1)), "differ in length").await;
    check(spoiled(|plan| plan.want[0] = proto::Want::Pool as i32), "WANT_POOL").await;
    check(spoiled(|plan| plan.replace_slot.push(1)), "differ in length").await;
}

async fn start_fails(model: &Path, flags: &[&str], why: &str) {
    let mut scheduler = Scheduler::bind().await;
    let worker = worker::start(model, &scheduler.address, (0, 1), flags);
    let ended = worker.ended.await.unwrap().unwrap_err();
    let text = format!("{ended:#}");
    assert!(text.contains(why), "{text}");
    scheduler.epoch += 1; // nobody came
}

#[tokio::test]
async fn a_model_that_cannot_be_served_says_why() {
    start_fails(&folder("llama"), &["--kv-cache-memory-bytes=10000"], "--kv-cache-memory-bytes").await;
    start_fails(&folder("llama"), &["--num-gpu-blocks-override=2"], "--max-model-len 32").await;
    start_fails(Path::new("/nonexistent"), &[], "/nonexistent").await;
    start_fails(&folder("lora-llama-r8-qv"), &[], "config.json").await;
}

#[tokio::test]
async fn plans_of_older_epochs_are_passed_over() {
    let mut scheduler = Scheduler::bind().await;
    worker::start(&folder("llama"), &scheduler.address, (0, 1), &[]);
    scheduler.meet(1).await;
    scheduler.form().await;
    let stale = StepPlan { epoch: scheduler.epoch, ..spoiled(|plan| plan.slot[0] = 5) };
    scheduler.form().await;
    scheduler.send_to(0, proto::to_worker::Command::Step(stale)).await;
    let recorded = &recorded("llama")[1];
    let tokens = scheduler.generate(vec![greedy(0, &recorded.prompt)], 24, 2048).await;
    assert_eq!(tokens[0], recorded.greedy);
}
