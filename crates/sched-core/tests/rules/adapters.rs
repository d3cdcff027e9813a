//! Slots of adapters: who gets them, what the workers are told, and that nobody starves.

use super::*;
use sched_core::{ProtocolError, Refusal};

fn slots(count: u32) -> Config {
    with(|c| c.adapter_slots = count)
}

fn adapted(number: u64, adapter: &str, max_tokens: u32) -> proto::Request {
    proto::Request { adapter: adapter.into(), ..stranger(number, 4, max_tokens) }
}

/// (slot, adapter) of what a plan loads.
fn loads(plan: &StepPlan) -> Vec<(u32, &str)> {
    plan.adapters.iter().map(|load| (load.slot, load.adapter.as_str())).collect()
}

/// What a plan loads has come.
fn place(scheduler: &mut Scheduler, plan: &StepPlan) {
    plan.adapters.iter().for_each(|load| scheduler.adapter_placed(load.slot));
    scheduler.check_invariants().expect("sound");
}

/// One step, and what it loads has come when it ends.
fn step(scheduler: &mut Scheduler) -> StepPlan {
    let (plan, _) = super::step(scheduler, 1);
    place(scheduler, &plan);
    plan
}

fn added(plan: &StepPlan) -> Vec<(&str, Option<u32>)> {
    plan.added.iter().map(|added| (added.request_id.as_str(), added.adapter)).collect()
}

#[test]
fn an_adapter_is_loaded_once_and_stays() {
    let mut scheduler = formed(slots(2), 50);
    admit(&mut scheduler, adapted(1, "a", 2));
    admit(&mut scheduler, adapted(2, "a", 1));
    admit(&mut scheduler, adapted(3, "", 1));
    let plan = step(&mut scheduler);
    assert_eq!((loads(&plan), added(&plan)), (vec![(0, "a")], vec![("r3", None)]));
    let plan = step(&mut scheduler);
    assert_eq!((loads(&plan), added(&plan)), (vec![], vec![("r1", Some(0)), ("r2", Some(0))]));
    while scheduler.has_unfinished() {
        assert!(loads(&step(&mut scheduler)).is_empty());
    }
    admit(&mut scheduler, adapted(4, "a", 1));
    let plan = step(&mut scheduler);
    assert_eq!((loads(&plan), added(&plan)), (vec![], vec![("r4", Some(0))]), "it is still there");
}

#[test]
fn nobody_waits_for_an_adapter_that_is_coming_but_those_who_use_it() {
    let mut scheduler = formed(slots(1), 50);
    admit(&mut scheduler, adapted(1, "", 9));
    admit(&mut scheduler, adapted(2, "a", 1));
    let first = plan(&mut scheduler);
    assert_eq!((loads(&first), added(&first)), (vec![(0, "a")], vec![("r1", None)]));
    complete(&mut scheduler, &first, 1);
    for _ in 0..3 {
        let plan = plan(&mut scheduler);
        assert_eq!((plan.slot.len(), loads(&plan), added(&plan)), (1, vec![], vec![]), "it is not there yet");
        complete(&mut scheduler, &plan, 1);
    }
    place(&mut scheduler, &first);
    assert_eq!(added(&plan(&mut scheduler)), [("r2", Some(0))]);
}

/// Ranks may be writing to it.
#[test]
fn the_slot_of_an_adapter_that_is_coming_is_not_given_away() {
    let mut scheduler = formed(slots(1), 50);
    admit(&mut scheduler, adapted(1, "a", 1));
    let first = plan(&mut scheduler);
    assert_eq!((first.slot.len(), loads(&first)), (0, vec![(0, "a")]), "an idle scheduler has it brought, too");
    complete(&mut scheduler, &first, 1);
    assert!(scheduler.abort(&adapted(1, "a", 1).key.expect("a key"), 0));
    admit(&mut scheduler, adapted(2, "b", 1));
    assert_eq!(scheduler.plan(0), None);
    place(&mut scheduler, &first);
    assert_eq!(loads(&step(&mut scheduler)), [(0, "b")]);
    assert_eq!(added(&step(&mut scheduler)), [("r2", Some(0))]);
}

#[test]
fn the_slot_used_longest_ago_is_given_away() {
    let mut scheduler = formed(slots(2), 50);
    for (number, adapter) in [(1, "a"), (2, "b"), (3, "a")] {
        admit(&mut scheduler, adapted(number, adapter, 1));
        while scheduler.has_unfinished() {
            step(&mut scheduler);
        }
    }
    admit(&mut scheduler, adapted(4, "c", 1));
    assert_eq!(loads(&step(&mut scheduler)), [(1, "c")], "b was used before a");
}

#[test]
fn what_waits_for_a_slot_is_overtaken_by_what_needs_none() {
    let mut scheduler = formed(slots(1), 50);
    for (number, adapter) in [(1, "a"), (2, "b"), (3, "a"), (4, "")] {
        admit(&mut scheduler, adapted(number, adapter, 3));
    }
    assert_eq!(added(&step(&mut scheduler)), [("r4", None)]);
    // The third would keep the slot from the second.
    assert_eq!(added(&step(&mut scheduler)), [("r1", Some(0))]);
    let mut later = Vec::new();
    while scheduler.has_unfinished() {
        let plan = step(&mut scheduler);
        later.extend(plan.added.iter().map(|added| added.request_id.clone()));
    }
    assert_eq!(later, ["r2", "r3"]);
}

#[test]
fn beams_and_choices_share_a_slot() {
    let mut scheduler = formed(slots(1), 50);
    admit(&mut scheduler, proto::Request { n: 3, ..adapted(1, "a", 3) });
    let mut slots = Vec::new();
    while scheduler.has_unfinished() {
        let plan = step(&mut scheduler);
        slots.extend(plan.added.iter().map(|added| added.adapter));
    }
    assert_eq!(slots, [Some(0); 3]);
}

#[test]
fn a_scheduler_without_slots_refuses_adapters() {
    let mut scheduler = formed(slots(0), 50);
    assert_eq!(scheduler.admit(adapted(1, "a", 1), 0), Err(Refusal::Unsupported("adapter")));
}

/// However many requests for popular adapters arrive, one for another starts when the sequences end that run in one
/// slot: behind it, nobody takes that slot.
#[test]
fn seldom_used_adapters_are_not_starved() {
    const MOST_TOKENS: u32 = 6;
    for seed in 0..200_u64 {
        let mut state = seed;
        let mut draw = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let (count, popular) = (1 + draw(3) as u32, 1 + draw(4));
        let mut scheduler = formed(slots(count), 100);
        let mut number = 0;
        let mut arrive = |scheduler: &mut Scheduler, name: &str, tokens: u32| {
            number += 1;
            admit(scheduler, adapted(number, name, tokens));
            number
        };
        let mut crowd = |scheduler: &mut Scheduler, draw: &mut dyn FnMut(u64) -> u64| {
            // Always more than there is room for.
            while scheduler.stats().waiting_for_capacity < 8 {
                let name = format!("popular {}", draw(popular));
                arrive(scheduler, &name, 1 + draw(u64::from(MOST_TOKENS)) as u32);
            }
        };
        for _ in 0..draw(20) {
            crowd(&mut scheduler, &mut draw);
            step(&mut scheduler);
        }
        let before = u64::from(scheduler.stats().waiting_for_capacity);
        admit(&mut scheduler, adapted(1_000_000, "seldom", 1));
        // Those before it start first: at worst one by one, each after the one before has ended and its own adapter has
        // come.
        let bound = (before + 2) * (u64::from(MOST_TOKENS) + 1);
        let mut started = None;
        for at in 0..bound {
            let plan = step(&mut scheduler);
            if plan.added.iter().any(|added| added.request_id == "r1000000") {
                started = Some(at);
                break;
            }
            crowd(&mut scheduler, &mut draw);
        }
        assert!(started.is_some(), "seed {seed}: starved for {bound} steps");
    }
}

/// Tokens behind the model's own are for requests whose adapter knows them, in prompts as in answers.
#[test]
fn adapters_may_know_more_tokens() {
    let config = || with(|c| (c.adapter_slots, c.extra_vocab_size) = (2, 5));
    let asks = |adapter: &str, vocab_size: u32, token: u32| {
        let mut request = proto::Request { vocab_size, ..adapted(1, adapter, 2) };
        if let Some(Kind::Ids(ids)) = request.prompt.as_mut().and_then(|prompt| prompt.kind.as_mut()) {
            ids.ids[2] = token;
        }
        request
    };
    let refused = |token: u32, vocab_size: u32| Err(Refusal::TokenOutOfRange { token, position: 2, vocab_size });
    for (adapter, vocab_size, token, expected) in [
        ("", 0, 999, Ok(())),
        ("", 0, 1000, refused(1000, 1000)),
        ("a", 0, 1000, refused(1000, 1000)),
        ("a", 1003, 1002, Ok(())),
        ("a", 1003, 1003, refused(1003, 1003)),
        ("a", 900, 950, refused(950, 900)),
        ("a", 2000, 1005, refused(1005, 1005)),
    ] {
        assert_eq!(formed(config(), 50).admit(asks(adapter, vocab_size, token), 0).map(drop), expected);
    }
    let mut scheduler = formed(config(), 50);
    admit(&mut scheduler, asks("a", 1003, 1002));
    admit(&mut scheduler, adapted(2, "", 9));
    step(&mut scheduler);
    let plan = plan(&mut scheduler);
    let beyond = ProtocolError::Token { step: plan.step, row: 0, token: 1005, vocab_size: 1005 };
    assert_eq!(scheduler.complete(result(&plan, 1005), 0), Err(beyond));
    assert_eq!(scheduler.complete(result(&plan, 1004), 0), Ok(()));
}
