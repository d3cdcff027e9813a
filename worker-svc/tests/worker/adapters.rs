//! Adapters come to the device beside the steps of others: the worker says when, and no plan may use one before.

use proto::{AdapterLoad, AdapterPlaced, LoadAdapter, NewSequence, StepPlan, from_worker::Event, to_worker::Command};

use crate::{
    reference::{folder, recorded},
    scheduler::{Scheduler, greedy, row},
    worker,
};

const ADAPTER: &str = "lora-llama-r8-qv";

/// A group whose workers have the adapter on the host.
async fn formed(world_size: u32) -> Scheduler {
    let mut scheduler = Scheduler::bind().await;
    for rank in 0..world_size {
        let flags = ["--enable-lora", "--max-loras=2", "--max-lora-rank=8"];
        worker::start(&folder("llama"), &scheduler.address, (rank, world_size), &flags);
    }
    scheduler.meet(world_size as usize).await;
    scheduler.form().await;
    for rank in 0..world_size as usize {
        let load = LoadAdapter { adapter: ADAPTER.into(), path: folder(ADAPTER).display().to_string() };
        scheduler.send_to(rank, Command::LoadAdapter(load)).await;
        match scheduler.event(rank).await {
            Event::AdapterLoaded(loaded) => assert_eq!(loaded.error, ""),
            other => panic!("{other:?} instead of loaded"),
        }
    }
    scheduler
}

/// A step of a sequence without an adapter in slot 0, beside which the adapter is brought to a slot of the device.
fn bringing(slot: u32) -> StepPlan {
    let mut plan = StepPlan { step: 1, added: vec![greedy(0, &[1, 2, 3])], ..StepPlan::default() };
    row(&mut plan, 0, 0, 3, true);
    plan.adapters.push(AdapterLoad { slot, adapter: ADAPTER.into() });
    plan
}

async fn check_tokens(world_size: u32) {
    let mut scheduler = formed(world_size).await;
    scheduler.send(bringing(1)).await;
    for rank in 0..world_size as usize {
        let events = [scheduler.event(rank).await, scheduler.event(rank).await];
        let placed = Event::AdapterPlaced(AdapterPlaced { epoch: scheduler.epoch, slot: 1 });
        assert!(events.contains(&placed), "{events:?}");
        assert!(events.iter().any(|event| matches!(event, Event::Result(_))), "{events:?}");
    }
    scheduler.run(StepPlan { step: 2, removed: vec![0], ..StepPlan::default() }).await;
    let recorded = recorded(ADAPTER);
    let adapted = |(slot, prompt)| NewSequence { adapter: Some(1), ..greedy(slot, prompt) };
    let sequences = (0..).zip(recorded.iter().map(|recorded| &*recorded.prompt)).map(adapted).collect();
    let tokens = scheduler.generate(sequences, 8, 2048).await;
    for (got, want) in tokens.iter().zip(&recorded) {
        assert_eq!(got, &want.greedy[..8], "{world_size} ranks");
    }
}

#[tokio::test]
async fn an_adapter_that_is_placed_gives_its_tokens() {
    check_tokens(1).await;
    check_tokens(2).await;
}

/// The worker must say `why` and end.
async fn check_refused(plan: StepPlan, why: &str) {
    let mut scheduler = formed(1).await;
    scheduler.send(plan).await;
    let words = scheduler.until_hung_up(0).await;
    let Some(Event::Failed(failed)) = words.last() else { panic!("{words:?}") };
    assert!(failed.reason.contains(why), "{failed:?}");
}

#[tokio::test]
async fn plans_that_use_slots_wrongly_end_the_worker() {
    let mut early = bringing(0);
    early.added[0].adapter = Some(0);
    check_refused(early, "no adapter is in slot 0").await;
    check_refused(bringing(2), "for slot 2").await;
    let mut twice = bringing(1);
    twice.adapters.push(AdapterLoad { slot: 1, adapter: ADAPTER.into() });
    check_refused(twice, "for slot 1").await;
    let mut unknown = bringing(1);
    unknown.adapters[0].adapter = "other".into();
    check_refused(unknown, "adapter \"other\"").await;
}
