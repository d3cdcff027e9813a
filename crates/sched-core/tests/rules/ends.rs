//! How choices, requests and groups end.

use super::*;
use proto::{Failure, FinishReason, failure};
use sched_core::ProtocolError;

#[test]
fn how_a_choice_ends() {
    let check = |change: fn(&mut Sampling), tokens: &[u32], reason: FinishReason, stop_token: Option<u32>| {
        let mut scheduler = formed(config(), 50);
        let mut request = request(1, 4, 5);
        change(sampling(&mut request));
        admit(&mut scheduler, request);
        for (at, token) in tokens.iter().enumerate() {
            let (_, batch) = step(&mut scheduler, *token);
            assert_eq!(batch.token, [*token]);
            assert_eq!(batch.finished.len(), usize::from(at + 1 == tokens.len()), "after token {at}");
            if let Some(finished) = batch.finished.first() {
                assert_eq!((finished.reason(), finished.stop_token), (reason, stop_token));
            }
        }
        assert!(scheduler.is_idle());
    };
    check(|_| (), &[1, 9], FinishReason::Stop, None);
    // An end token of the model that is not the tokenizer's own.
    check(|s| s.eos_token_id = Some(8), &[1, 9], FinishReason::Stop, Some(9));
    check(|s| s.eos_token_id = None, &[9], FinishReason::Stop, Some(9));
    check(|s| s.ignore_eos = true, &[9, 9, 9, 9, 9], FinishReason::Length, None);
    check(|s| s.stop_token_ids = vec![7, 8], &[1, 8], FinishReason::Stop, Some(8));
    check(|s| s.min_tokens = 3, &[9, 9, 9], FinishReason::Stop, None);
    check(|s| s.stop_token_ids = vec![9], &[9], FinishReason::Stop, None);
    check(|s| (s.stop_token_ids, s.ignore_eos) = (vec![9], true), &[9], FinishReason::Stop, Some(9));
    check(|_| (), &[1, 1, 1, 1, 9], FinishReason::Stop, None);
}

#[test]
fn a_stop_string_ends_without_a_word() {
    let mut scheduler = formed(with(|c| c.pipeline_depth = 2), 50);
    admit(&mut scheduler, request(1, 4, 20));
    let first = plan(&mut scheduler);
    let batch = complete(&mut scheduler, &first, 1);
    let second = plan(&mut scheduler);
    scheduler.stopped(&[batch.sequence[0], 12345], 0);
    assert!(!scheduler.has_output() && !scheduler.has_unfinished());
    assert_eq!(scheduler.stats().used_blocks, 0, "freed at once");
    assert_eq!(complete(&mut scheduler, &second, 1), TokenBatch::default());
    assert_eq!(scheduler.stats().totals.ended.stop, 1);
}

#[test]
fn an_abort_takes_effect_in_the_next_plan() {
    let mut scheduler = formed(with(|c| c.pipeline_depth = 2), 50);
    admit(&mut scheduler, stranger(1, 4, 20));
    admit(&mut scheduler, stranger(2, 4, 20));
    let first = plan(&mut scheduler);
    output(&mut scheduler);
    assert!(scheduler.abort(&key(1), 0));
    assert!(!scheduler.abort(&key(1), 0));
    assert_eq!(output(&mut scheduler).finished[0].reason(), FinishReason::Abort);
    assert_eq!(scheduler.stats().used_blocks, 1);
    let second = plan(&mut scheduler);
    assert_eq!((second.slot.len(), &second.removed), (1, &vec![first.slot[0]]));
    assert_eq!(complete(&mut scheduler, &first, 1).token.len(), 1, "the other one's token");
}

#[test]
fn an_abort_of_a_queued_request_is_announced_and_ended() {
    let mut scheduler = formed(config(), 50);
    admit(&mut scheduler, proto::Request { n: 3, ..request(1, 4, 20) });
    assert!(scheduler.abort_by_id("r1", 0));
    let batch = output(&mut scheduler);
    assert_eq!((batch.started.len(), batch.finished.len()), (1, 3));
    assert_eq!(scheduler.stats().queued_requests, 0);
    assert!(scheduler.is_idle() && scheduler.plan(0).is_none());
}

#[test]
fn a_lost_gateway_takes_its_requests_along() {
    let mut scheduler = formed(config(), 50);
    [101, 102, 201].into_iter().for_each(|number| admit(&mut scheduler, stranger(number, 4, 5)));
    plan(&mut scheduler);
    assert_eq!(scheduler.gateway_gone(1, 0), 2);
    assert_eq!(scheduler.stats().running, 1);
}

#[test]
fn a_lost_group_fails_everything_and_forgets_everything() {
    let mut scheduler = formed(with(|c| c.max_num_seqs = 4), 50);
    admit(&mut scheduler, proto::Request { n: 3, ..request(1, 9, 5) });
    admit(&mut scheduler, stranger(2, 4, 5));
    let stale = plan(&mut scheduler);
    admit(&mut scheduler, stranger(3, 4, 5));
    scheduler.group_lost("a worker exited", 0);
    let batch = output(&mut scheduler);
    assert_eq!(batch.failed.len(), 3);
    let failure = batch.failed[0].failure.clone().expect("a failure");
    assert_eq!((failure.kind(), failure.message.as_str()), (failure::Kind::Unavailable, "a worker exited"));
    assert!(scheduler.is_idle());
    scheduler.check_invariants().expect("sound");
    assert_eq!(scheduler.complete(result(&stale, 1), 0), Err(ProtocolError::Epoch { got: 7, expected: 0 }));

    scheduler.group_formed(Epoch(8), 30, 0);
    admit(&mut scheduler, request(1, 9, 5));
    let plan = plan(&mut scheduler);
    assert_eq!((plan.epoch, plan.step, plan.removed.len()), (8, 1, 0));
    assert_eq!(rows(&plan), [(0, 9, 1)], "nothing is cached");
}

#[test]
fn fail_all_keeps_group_and_cache() {
    let mut scheduler = formed(config(), 50);
    admit(&mut scheduler, request(1, 9, 5));
    step(&mut scheduler, 1);
    let stale = plan(&mut scheduler);
    assert_eq!(scheduler.fail_all(&Failure::default(), 0), 1);
    assert_eq!(output(&mut scheduler).failed.len(), 1);
    assert_eq!(complete(&mut scheduler, &stale, 1), TokenBatch::default());
    admit(&mut scheduler, request(2, 9, 5));
    assert_eq!(rows(&plan(&mut scheduler)), [(8, 1, 1)]);
}

/// The detokenizer would have to be broken; the other choices must end nevertheless.
#[test]
fn a_stop_before_the_prompt_is_done_strands_nobody() {
    let mut scheduler = formed(with(|c| c.max_num_batched_tokens = 8), 50);
    admit(&mut scheduler, proto::Request { n: 4, ..request(1, 20, 2) });
    plan(&mut scheduler);
    let first = output(&mut scheduler).started[0].first_sequence;
    scheduler.stopped(&[first + 2, first], 0);
    scheduler.check_invariants().expect("sound");
    assert_eq!((scheduler.stats().waiting_deferred, scheduler.stats().waiting_for_capacity), (0, 2));
    let stale = StepResult { epoch: 7, step: 1, ..Default::default() };
    scheduler.complete(stale, 0).expect("a result without samples");
    let mut finished = 0;
    while scheduler.has_unfinished() {
        finished += step(&mut scheduler, 1).1.finished.len();
    }
    assert_eq!(finished, 2);
}

#[test]
fn a_row_that_cannot_go_on_ends_its_request_alone() {
    let mut scheduler = formed(with(|c| c.pipeline_depth = 2), 50);
    for number in [1, 2] {
        let mut request = stranger(number, 4, 20);
        let constraint = proto::Constraint { param: "structured_outputs".into(), ..Default::default() };
        sampling(&mut request).constraint = Some(constraint);
        admit(&mut scheduler, request);
    }
    let first = plan(&mut scheduler);
    let ahead = plan(&mut scheduler);
    let failed = vec![proto::FailedRow { slot: first.slot[0], reason: "too complex".into() }];
    scheduler.complete(StepResult { failed, ..result(&first, 1) }, 0).expect("a right result");
    scheduler.check_invariants().expect("sound");
    let batch = output(&mut scheduler);
    let failure = batch.failed[0].failure.clone().expect("a failure");
    assert_eq!((failure.kind(), &*failure.message), (failure::Kind::Invalid, "too complex"));
    assert_eq!((&*failure.param, batch.failed.len(), batch.token.len()), ("structured_outputs", 1, 1));
    let batch = complete(&mut scheduler, &ahead, 1);
    assert_eq!((batch.failed.len(), batch.token.len()), (0, 1), "what was under way is dropped");
    assert_eq!(scheduler.stats().totals.ended.failed, 1);
}

#[test]
fn a_text_that_repeats_itself_ends() {
    let mut scheduler = formed(config(), 50);
    let mut asked = request(1, 4, 40);
    let rule = proto::RepetitionDetection { min_pattern_size: 2, max_pattern_size: 4, min_count: 3 };
    (sampling(&mut asked).repetition_detection, sampling(&mut asked).min_tokens) = (Some(rule), 7);
    admit(&mut scheduler, asked);
    let mut tokens = [20, 21, 20, 21, 20, 21, 22, 30, 31, 32, 30, 31, 32, 30, 31, 32].into_iter();
    let mut ends = Vec::new();
    while ends.is_empty() {
        let token = tokens.next().expect("an end");
        ends = step(&mut scheduler, token).1.finished;
    }
    assert_eq!((ends[0].reason(), ends[0].stop_token, tokens.len()), (FinishReason::Repetition, None, 0));
    assert_eq!(scheduler.stats().totals.ended.repetition, 1);
}

#[test]
fn more_choices_than_slots_come_in_waves() {
    let config = with(|c| (c.max_num_seqs, c.max_choices) = (3, 100));
    let mut scheduler = formed(config, 50);
    let mut many = request(1, 6, 2);
    many.n = 20;
    admit(&mut scheduler, many);
    let (mut ended, mut computed) = (0, 0);
    while scheduler.has_unfinished() {
        let (plan, batch) = step(&mut scheduler, 20);
        assert!(plan.slot.len() <= 3);
        ended += batch.finished.len();
        computed += plan.num_tokens.iter().sum::<u32>();
    }
    assert_eq!((ended, scheduler.stats().used_blocks), (20, 0));
    // The prompt once, its last token again for each other choice, and a token of each.
    assert!(computed <= 6 + 19 * 3 + 20, "{computed} tokens");
}
