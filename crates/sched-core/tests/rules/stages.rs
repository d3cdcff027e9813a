//! Workers in stages.

use std::collections::{HashMap, VecDeque};

use super::*;

fn in_stages(stages: u32) -> Config {
    with(|c| (c.stages, c.pipeline_depth) = (stages, stages))
}

fn told(plan: &StepPlan) -> Vec<(u32, u32)> {
    plan.told_slot.iter().copied().zip(plan.told_token.iter().copied()).collect()
}

#[test]
fn decodes_are_spread_over_the_plans_in_flight_and_none_waits_for_ever() {
    let mut scheduler = formed(in_stages(2), 50);
    (1..=5).for_each(|number| admit(&mut scheduler, stranger(number, 4, 20)));
    step(&mut scheduler, 20);
    let (first, second) = (plan(&mut scheduler), plan(&mut scheduler));
    assert_eq!((first.slot.len(), second.slot.len()), (3, 2));
    assert!(scheduler.plan(0).is_none(), "as many plans as stages");
    let mut in_flight = VecDeque::from([first, second]);
    for token in 30..36 {
        let done = in_flight.pop_front().expect("a plan");
        complete(&mut scheduler, &done, token);
        let next = plan(&mut scheduler);
        assert_eq!(next.slot, done.slot, "the same sequences go on");
        assert_eq!(told(&next), next.slot.iter().map(|slot| (*slot, token)).collect::<Vec<_>>());
        in_flight.push_back(next);
    }
}

#[test]
fn a_long_prompt_fills_all_stages() {
    let mut scheduler = formed(in_stages(4), 50);
    admit(&mut scheduler, stranger(1, 60, 20));
    let chunks: Vec<_> = (0..4).flat_map(|_| rows(&plan(&mut scheduler))).collect();
    assert_eq!(chunks, [(0, 16, 0), (16, 16, 0), (32, 16, 0), (48, 12, 1)]);
}

#[test]
fn tokens_are_told_once_and_a_new_start_tells_all() {
    let mut scheduler = formed(in_stages(2), 4);
    // Both need more blocks than there are.
    admit(&mut scheduler, stranger(1, 6, 8));
    admit(&mut scheduler, stranger(2, 6, 8));
    let mut known = HashMap::<u32, Vec<u32>>::new();
    let mut restarts = 0;
    for token in 20..60 {
        let Some(plan) = scheduler.plan(0) else { break };
        plan.removed.iter().for_each(|slot| drop(known.remove(slot)));
        for added in &plan.added {
            restarts += usize::from(added.tokens.len() > 6);
            known.insert(added.slot, added.tokens.clone());
        }
        told(&plan).into_iter().for_each(|(slot, token)| known.get_mut(&slot).expect("a slot").push(token));
        for (slot, (start, tokens, _)) in plan.slot.iter().zip(rows(&plan)) {
            assert!((start + tokens) as usize <= known[slot].len(), "the first stage knows what it computes");
        }
        complete(&mut scheduler, &plan, token);
    }
    assert!(restarts > 0, "one gave way to the other");
    assert!(!scheduler.has_unfinished());
}
