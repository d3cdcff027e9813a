//! Groups that form again: after a request, after a lost link, after a killed rank.

use proto::{FormGroup, Ping, StepPlan, WorkerRefused, from_worker::Event, to_worker::Command, worker_refused::Cause};
use service_kit::{Readiness, StartAgain};

use crate::{
    reference::{folder, recorded},
    scheduler::{Scheduler, greedy, row},
    worker::{self, spawn},
};

/// Forms the group of who is there, and has it generate.
async fn check_group(scheduler: &mut Scheduler) {
    scheduler.form().await;
    let recorded = &recorded("llama")[2];
    let tokens = scheduler.generate(vec![greedy(0, &recorded.prompt)], 24, 2048).await;
    assert_eq!(tokens[0], recorded.greedy);
}

/// A plan in which nobody finds fault, for slot 4.
fn plan() -> StepPlan {
    let mut plan = StepPlan { step: 1, added: vec![greedy(4, &[1, 2, 3])], ..StepPlan::default() };
    row(&mut plan, 4, 0, 3, true);
    plan
}

#[tokio::test]
async fn a_group_forms_again_with_empty_slots() {
    for world_size in [1, 2] {
        let mut scheduler = Scheduler::bind().await;
        for rank in 0..world_size {
            worker::start(&folder("llama"), &scheduler.address, (rank, world_size), &[]);
        }
        scheduler.meet(world_size as usize).await;
        for _ in 0..3 {
            check_group(&mut scheduler).await;
            // Left behind in slot 4; the next epoch must not find it.
            scheduler.run(plan()).await;
        }
    }
}

#[tokio::test]
async fn a_lost_link_is_dialled_again_and_the_weights_stay() {
    let mut scheduler = Scheduler::bind().await;
    let worker = worker::start(&folder("llama"), &scheduler.address, (0, 1), &[]);
    for _ in 0..3 {
        scheduler.meet(1).await;
        check_group(&mut scheduler).await;
        assert_eq!(worker.process.status.readiness(), Readiness::Ready);
        scheduler.run(plan()).await;
        scheduler.ranks.clear();
    }
    worker.process.shutdown.cancel();
    worker.ended.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_step_that_hangs_ends_with_the_next_group() {
    let mut scheduler = Scheduler::bind().await;
    for rank in [0, 1] {
        worker::start(&folder("llama"), &scheduler.address, (rank, 2), &[]);
    }
    scheduler.meet(2).await;
    scheduler.form().await;
    // Only rank 0 gets the plan: it waits in a collective for rank 1, until the next group forms.
    let epoch = scheduler.epoch;
    scheduler.send_to(0, Command::Step(StepPlan { epoch, ..plan() })).await;
    check_group(&mut scheduler).await;
}

#[tokio::test]
async fn ranks_wait_for_each_other_as_long_as_they_are_told() {
    let mut scheduler = Scheduler::bind().await;
    for rank in [0, 1] {
        worker::start(&folder("llama"), &scheduler.address, (rank, 2), &["--distributed-timeout-seconds=1"]);
    }
    scheduler.meet(2).await;
    scheduler.form().await;
    // Only rank 0 gets the plan. By default it waits for longer than this test does.
    let epoch = scheduler.epoch;
    scheduler.send_to(0, Command::Step(StepPlan { epoch, ..plan() })).await;
    scheduler.until_hung_up(0).await;
}

#[tokio::test]
async fn a_rank_that_leaves_ends_the_epoch_of_the_other() {
    let mut scheduler = Scheduler::bind().await;
    worker::start(&folder("llama"), &scheduler.address, (0, 2), &[]);
    let one = worker::start(&folder("llama"), &scheduler.address, (1, 2), &[]);
    scheduler.meet(2).await;
    check_group(&mut scheduler).await;
    one.process.shutdown.cancel();
    one.ended.await.unwrap().unwrap();
    // Rank 0 finds its group gone, leaves the link, and dials again with its weights.
    let epoch = scheduler.epoch;
    scheduler.send_to(0, Command::Step(StepPlan { epoch, ..plan() })).await;
    assert!(scheduler.until_hung_up(0).await.is_empty());
    scheduler.ranks.clear();
    worker::start(&folder("llama"), &scheduler.address, (1, 2), &[]);
    scheduler.meet(2).await;
    check_group(&mut scheduler).await;
}

#[tokio::test]
async fn a_killed_rank_leaves_the_other_alive_and_the_group_forms_again() {
    let model = folder("llama");
    let mut scheduler = Scheduler::bind().await;
    let mut zero = spawn(&model, &scheduler.address, (0, 2));
    let mut one = spawn(&model, &scheduler.address, (1, 2));
    scheduler.meet(2).await;
    check_group(&mut scheduler).await;
    one.kill();
    scheduler.ranks.truncate(1);
    // Rank 0 does not know yet, and waits for the dead one in a collective.
    let epoch = scheduler.epoch;
    scheduler.send_to(0, Command::Step(StepPlan { epoch, ..plan() })).await;
    let _again = spawn(&model, &scheduler.address, (1, 2));
    scheduler.meet(1).await;
    check_group(&mut scheduler).await;
    assert!(zero.is_alive());
}

/// What a worker is told when its group forms, which fits one that was started with the tests' flags.
fn form() -> FormGroup {
    FormGroup {
        epoch: 1,
        world_size: 1,
        num_blocks: 8,
        max_num_seqs: 8,
        max_num_batched_tokens: 2048,
        ..FormGroup::default()
    }
}

/// What a worker says and ends with when its group is to form like this.
async fn refuses(form: FormGroup, words: &[&str]) {
    let mut scheduler = Scheduler::bind().await;
    let worker = worker::start(&folder("llama"), &scheduler.address, (0, 1), &[]);
    scheduler.meet(1).await;
    scheduler.send_to(0, Command::FormGroup(form)).await;
    let said = match scheduler.until_hung_up(0).await.as_slice() {
        [Event::Failed(failed)] => failed.reason.clone(),
        other => panic!("{other:?}"),
    };
    let ended = worker.ended.await.unwrap().unwrap_err().to_string();
    assert_eq!(ended, said);
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
}

#[tokio::test]
async fn a_group_that_asks_for_more_than_was_offered_is_refused_with_the_flag() {
    refuses(FormGroup { max_num_batched_tokens: 2049, ..form() }, &["--max-num-batched-tokens", "2049", "2048"]).await;
    refuses(FormGroup { max_num_seqs: 9, ..form() }, &["--max-num-seqs", "9", "8"]).await;
    refuses(FormGroup { world_size: 2, ..form() }, &["--tensor-parallel-size", "group of 2", "one of 1"]).await;
}

#[tokio::test]
async fn a_worker_that_is_refused_says_why_and_ends() {
    for (cause, again) in [(Cause::RankTaken, true), (Cause::Misfit, false)] {
        let mut scheduler = Scheduler::bind().await;
        let worker = worker::start(&folder("llama"), &scheduler.address, (0, 1), &[]);
        scheduler.meet(1).await;
        let refused = WorkerRefused { cause: cause.into(), reason: "because".into() };
        scheduler.send_to(0, Command::Refused(refused)).await;
        let error = worker.ended.await.unwrap().unwrap_err();
        assert!(error.to_string().ends_with("refuses this worker: because"), "{error}");
        // Only where that may help.
        assert_eq!(error.is::<StartAgain>(), again);
    }
}

/// Whoever does not get on ends, though nobody asks: here rank 0, which waits for a rank 1 that got no plan, and is
/// never hung up on.
#[tokio::test]
async fn a_compute_thread_that_hangs_ends_its_worker() {
    let mut scheduler = Scheduler::bind().await;
    let zero = worker::start(&folder("llama"), &scheduler.address, (0, 2), &[]);
    worker::start(&folder("llama"), &scheduler.address, (1, 2), &[]);
    scheduler.meet(2).await;
    scheduler.step_timeout_ms = 200;
    scheduler.form().await;
    let epoch = scheduler.epoch;
    scheduler.send_to(0, Command::Step(StepPlan { epoch, ..plan() })).await;
    // Its process answers all the while, and knows whom it waits for.
    let pong = loop {
        scheduler.send_to(0, Command::Ping(Ping { number: 7 })).await;
        match scheduler.event(0).await {
            Event::Pong(pong) if pong.waits_for.is_empty() => {}
            Event::Pong(pong) => break pong,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((pong.number, pong.waits_for), (7, vec![1]));
    match scheduler.until_hung_up(0).await.as_slice() {
        [.., Event::Failed(failed)] => {
            assert!(failed.reason.contains("has not finished a step within 0.2 s"), "{failed:?}")
        }
        other => panic!("{other:?}"),
    }
    assert!(zero.ended.await.unwrap().unwrap_err().is::<StartAgain>());
    assert!(matches!(zero.process.status.readiness(), Readiness::NotReady { reason, .. } if reason.contains("hangs")));
}
