//! Forced tokens: appended as they come, computed as a chunk, and never counted twice.

use super::*;
use proto::Constraint;
use sched_core::ProtocolError;

fn jumping() -> Config {
    with(|c| (c.jump_forward, c.pipeline_depth) = (true, 2))
}

fn constrained(max_tokens: u32) -> proto::Request {
    let mut request = request(1, 6, max_tokens);
    sampling(&mut request).constraint = Some(Constraint::default());
    request
}

/// The plan's only row gives these tokens.
fn giving(plan: &StepPlan, tokens: &[u32]) -> StepResult {
    StepResult { token: tokens.to_vec(), count: vec![tokens.len() as u32], ..result(plan, 0) }
}

fn give(scheduler: &mut Scheduler, plan: &StepPlan, tokens: &[u32]) -> TokenBatch {
    scheduler.complete(giving(plan, tokens), 0).expect("a right result");
    scheduler.check_invariants().expect("sound");
    output(scheduler)
}

#[test]
fn they_are_computed_as_a_chunk_behind_the_row_under_way() {
    let mut scheduler = formed(jumping(), 50);
    admit(&mut scheduler, constrained(20));
    let first = plan(&mut scheduler);
    assert!(first.added[0].jump_forward);
    let second = plan(&mut scheduler);
    assert_eq!((rows(&first), rows(&second)), (vec![(0, 6, 1)], vec![(6, 1, 1)]));
    assert_eq!(give(&mut scheduler, &first, &[1, 2, 3, 4]).token, [1, 2, 3, 4]);
    let third = plan(&mut scheduler);
    assert_eq!(rows(&third), [(7, 3, 1)], "positions of 2, 3 and 4");
    let wrong = scheduler.complete(giving(&second, &[2]), 0);
    assert!(matches!(wrong, Err(ProtocolError::Count { got: 1, .. })), "{wrong:?}");
    assert_eq!(give(&mut scheduler, &second, &[]).token, [0; 0]);
    assert_eq!(rows(&plan(&mut scheduler)), [(10, 1, 1)]);
    let wrong = scheduler.complete(giving(&third, &[]), 0);
    assert!(matches!(wrong, Err(ProtocolError::Count { got: 0, .. })), "{wrong:?}");
    assert_eq!(give(&mut scheduler, &third, &[5]).token, [5]);
    let totals = scheduler.stats().totals;
    assert_eq!((totals.forced_tokens, totals.generation_tokens), (3, 5));
}

#[test]
fn a_row_that_was_not_told_to_jump_gives_one_token() {
    for config in [with(|_| {}), jumping()] {
        let mut scheduler = formed(config, 50);
        admit(&mut scheduler, request(1, 6, 20));
        let first = plan(&mut scheduler);
        let wrong = scheduler.complete(giving(&first, &[1, 2]), 0);
        assert!(matches!(wrong, Err(ProtocolError::Count { got: 2, .. })), "{wrong:?}");
        assert_eq!(give(&mut scheduler, &first, &[1]).token, [1]);
    }
}

#[test]
fn what_is_behind_the_last_token_is_dropped() {
    for (max_tokens, given, kept) in [(3, [1, 2, 3, 4], 3), (20, [1, 9, 3, 4], 2)] {
        let mut scheduler = formed(jumping(), 50);
        admit(&mut scheduler, constrained(max_tokens));
        let (first, second) = (plan(&mut scheduler), plan(&mut scheduler));
        let batch = give(&mut scheduler, &first, &given);
        assert_eq!((&batch.token[..], batch.finished.len()), (&given[..kept], 1));
        give(&mut scheduler, &second, &[7]);
        assert_eq!(scheduler.stats().running, 0);
    }
}

#[test]
fn a_request_that_looks_at_each_token_samples_each() {
    let change: [fn(&mut Sampling); 7] = [
        |s| s.constraint = None,
        |s| s.logprobs = Some(1),
        |s| s.min_tokens = 3,
        |s| s.frequency_penalty = 0.5,
        |s| s.repetition_penalty = 1.1,
        |s| s.allowed_token_ids = vec![1],
        |s| s.bad_token_ids = vec![proto::TokenIds { ids: vec![1] }],
    ];
    for change in change {
        let mut scheduler = formed(jumping(), 50);
        let mut request = constrained(20);
        change(sampling(&mut request));
        admit(&mut scheduler, request);
        assert!(!plan(&mut scheduler).added[0].jump_forward);
    }
    for config in [with(|_| {}), with(|c| (c.jump_forward, c.pipeline_depth) = (true, 3))] {
        let mut scheduler = formed(config, 50);
        admit(&mut scheduler, constrained(20));
        assert!(!plan(&mut scheduler).added[0].jump_forward);
    }
}
