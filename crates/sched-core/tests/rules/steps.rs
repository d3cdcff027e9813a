//! What a step contains, and how its result comes back.

use super::*;
use prost::Message;
use proto::FinishReason;
use sched_core::{End, MixedPrefill, Policy, PrefillBudget, ProtocolError};

#[test]
fn a_request_from_start_to_end() {
    let mut scheduler = formed(config(), 50);
    admit(&mut scheduler, request(1, 6, 3));
    assert!(!scheduler.has_output());
    let first = plan(&mut scheduler);
    assert_eq!((first.epoch, first.step), (7, 1));
    assert_eq!(rows(&first), [(0, 6, 1)]);
    let added = &first.added[0];
    assert_eq!((added.tokens.len(), added.num_prompt_tokens, added.blocks.len(), added.seed), (6, 6, 2, 5));
    assert_eq!(added.request_id, "r1");
    let started = output(&mut scheduler).started.remove(0);
    assert_eq!((started.prompt_tokens, started.cached_tokens, started.n), (6, 0, 1));
    assert_eq!(scheduler.plan(0), None, "in order: the result first");

    let batch = complete(&mut scheduler, &first, 20);
    assert_eq!((batch.sequence, batch.token), (vec![started.first_sequence], vec![20]));
    let second = plan(&mut scheduler);
    assert_eq!(rows(&second), [(6, 1, 1)]);
    assert!(second.added.is_empty() && second.new_block.is_empty());
    complete(&mut scheduler, &second, 21);
    let (third, batch) = step(&mut scheduler, 22);
    assert_eq!(rows(&third), [(7, 1, 1)]);
    assert_eq!(batch.finished[0].reason(), FinishReason::Length);
    assert!(scheduler.is_idle());

    admit(&mut scheduler, stranger(2, 6, 3));
    let next = plan(&mut scheduler);
    assert_eq!(next.removed, [added.slot], "told when it matters");
}

/// A plan is one message to the workers, and every new request brings all its tokens.
#[test]
fn new_requests_of_one_plan_fit_a_message() {
    let most = 3_000;
    let config = with(|c| {
        c.max_num_batched_tokens = 512;
        c.max_model_len = 1000;
        c.max_choices = 6;
        c.max_new_request_bytes = most;
    });
    let mut scheduler = formed(config, 800);
    let mut long = request(1, 200, 1);
    (long.n, long.sampling.as_mut().unwrap().allowed_token_ids) = (6, (0..30).collect());
    admit(&mut scheduler, long);
    let mut new_requests = Vec::new();
    while !scheduler.is_idle() {
        let plan = step(&mut scheduler, 20).0;
        new_requests.push(plan.added.len());
        let bytes: usize = plan.added.iter().map(proto::NewSequence::encoded_len).sum();
        assert!(bytes <= most, "{bytes}");
    }
    assert_eq!(new_requests, [1, 2, 2, 1], "choices fork once the prompt is computed");
    // One that is larger than that comes alone.
    admit(&mut scheduler, stranger(2, 900, 1));
    admit(&mut scheduler, stranger(3, 20, 1));
    assert_eq!(step(&mut scheduler, 20).0.added.len(), 1);
    assert_eq!(step(&mut scheduler, 20).0.added.len(), 1);
}

#[test]
fn decodes_go_first_and_prompts_come_in_chunks() {
    let config = with(|c| {
        c.max_num_batched_tokens = 16;
        c.mixed_prefill = MixedPrefill::AtMost(6);
        c.long_prefill_token_threshold = 12;
    });
    let mut scheduler = formed(config, 50);
    admit(&mut scheduler, stranger(1, 30, 5));
    assert_eq!(rows(&step(&mut scheduler, 1).0), [(0, 12, 0)], "the threshold");
    admit(&mut scheduler, stranger(2, 4, 9));
    assert_eq!(rows(&step(&mut scheduler, 1).0), [(12, 12, 0), (0, 4, 1)], "the rest of the budget");
    admit(&mut scheduler, stranger(3, 9, 9));
    assert_eq!(rows(&step(&mut scheduler, 1).0), [(4, 1, 1), (24, 6, 1)], "six beside a decode");
    assert_eq!(rows(&step(&mut scheduler, 1).0), [(30, 1, 1), (5, 1, 1), (0, 6, 0)]);
}

#[test]
fn prompts_beside_decodes_take_what_has_time() {
    let config = with(|c| {
        c.max_num_batched_tokens = 2048;
        c.max_model_len = 4000;
        c.vocab_size = 9000;
        let budget = PrefillBudget {
            min_tokens: 100,
            target_us: 5000,
            target_tokens: 2048,
            tokens_per_decode: 512,
            max_us: 11_000,
            row_multiple: 256,
            large_row_multiple: 1024,
            ..PrefillBudget::default()
        };
        c.mixed_prefill = MixedPrefill::Timed(budget);
    });
    let mut scheduler = formed(config, 9000);
    let timed = |scheduler: &mut Scheduler, compute_us| {
        let plan = plan(scheduler);
        scheduler.complete(StepResult { compute_us, ..result(&plan, 1) }, 0).expect("a right result");
        rows(&plan)
    };
    admit(&mut scheduler, stranger(1, 20, 50));
    assert_eq!(timed(&mut scheduler, 50), [(0, 20, 1)]);
    admit(&mut scheduler, stranger(2, 3000, 50));
    assert_eq!(timed(&mut scheduler, 50)[1], (0, 100, 0), "nothing is known yet");
    scheduler.abort(&key(1), 0);
    assert_eq!(timed(&mut scheduler, 20_000)[0], (100, 2048, 0), "no decode: nothing to wait for it");
    admit(&mut scheduler, stranger(3, 20, 50));
    timed(&mut scheduler, 0);
    admit(&mut scheduler, stranger(4, 3000, 50));
    let beside = timed(&mut scheduler, 0);
    assert_eq!(beside.last(), Some(&(0, 1022, 0)), "512 for each of two decodes; four multiples of 256 rows in all");
}

#[test]
fn a_prompts_last_tokens_beyond_the_pace_go_along() {
    let paced = PrefillBudget { min_tokens: 100, ..PrefillBudget::default() };
    for (mixed_prefill, beside) in [
        (MixedPrefill::Timed(paced), vec![(0, 164, 1)]),
        (MixedPrefill::Timed(PrefillBudget { min_tokens: 99, ..paced }), vec![(0, 99, 0)]),
        // The next prompt has more than may go along.
        (MixedPrefill::Timed(PrefillBudget { min_tokens: 164, ..paced }), vec![(0, 164, 1)]),
        (MixedPrefill::AtMost(100), vec![(0, 100, 0)]),
    ] {
        let config = with(|c| {
            (c.max_num_batched_tokens, c.max_model_len, c.vocab_size) = (2048, 4000, 9000);
            c.mixed_prefill = mixed_prefill;
        });
        let mut scheduler = formed(config, 9000);
        admit(&mut scheduler, stranger(1, 20, 50));
        step(&mut scheduler, 1);
        admit(&mut scheduler, stranger(2, 164, 50));
        admit(&mut scheduler, stranger(3, 165, 50));
        assert_eq!(rows(&step(&mut scheduler, 1).0)[1..], beside[..], "{mixed_prefill:?}");
    }
}

#[test]
fn without_chunks_a_prompt_waits_for_room() {
    let config = with(|c| {
        c.enable_chunked_prefill = false;
        c.max_num_batched_tokens = 100;
    });
    let mut scheduler = formed(config, 99);
    admit(&mut scheduler, stranger(1, 60, 5));
    admit(&mut scheduler, stranger(2, 60, 5));
    assert_eq!(rows(&step(&mut scheduler, 1).0), [(0, 60, 1)]);
    assert_eq!(rows(&step(&mut scheduler, 1).0), [(60, 1, 1), (0, 60, 1)]);
}

#[test]
fn slots_bound_what_runs() {
    let mut scheduler = formed(with(|c| c.max_num_seqs = 2), 50);
    (1..=3).for_each(|number| admit(&mut scheduler, stranger(number, 4, 2)));
    assert_eq!(step(&mut scheduler, 1).0.slot.len(), 2);
    assert_eq!(scheduler.stats().waiting_for_capacity, 1);
    step(&mut scheduler, 1);
    let (plan, _) = step(&mut scheduler, 1);
    assert_eq!((plan.removed.len(), plan.added.len()), (2, 1));
}

#[test]
fn priority_decides_who_starts_and_who_gives_way() {
    let config = with(|c| {
        c.policy = Policy::Priority;
        c.max_num_seqs = 2;
    });
    let mut scheduler = formed(config, 8);
    let of = |number, priority| proto::Request { priority, ..stranger(number, 8, 17) };
    admit(&mut scheduler, of(1, 2));
    admit(&mut scheduler, of(2, -1));
    admit(&mut scheduler, of(3, 0));
    let ids = |plan: &StepPlan| plan.added.iter().map(|added| added.request_id.clone()).collect::<Vec<_>>();
    assert_eq!(ids(&step(&mut scheduler, 1).0), ["r2", "r3"]);
    let mut preempted_by = None;
    while scheduler.stats().totals.preemptions == 0 {
        preempted_by = Some(step(&mut scheduler, 1).0);
    }
    let plan = preempted_by.expect("a step");
    assert_eq!(plan.slot.len(), 1, "nobody starts in a step that preempts");
    assert!(scheduler.has_unfinished());
    let mut order = Vec::new();
    while scheduler.has_unfinished() {
        let (plan, _) = step(&mut scheduler, 1);
        order.extend(ids(&plan));
    }
    assert_eq!(order[..2], ["r3", "r1"], "the preempted one comes back in front of its inferiors");
}

#[test]
fn one_step_ahead_and_never_beyond_the_limit() {
    let mut scheduler = formed(with(|c| c.pipeline_depth = 2), 50);
    admit(&mut scheduler, request(1, 4, 2));
    let first = plan(&mut scheduler);
    let second = plan(&mut scheduler);
    assert_eq!((rows(&first), rows(&second)), (vec![(0, 4, 1)], vec![(4, 1, 1)]));
    assert_eq!(scheduler.plan(0), None, "the pipeline is full");
    complete(&mut scheduler, &first, 1);
    assert_eq!(scheduler.plan(0), None, "both tokens are on their way");
    assert_eq!(complete(&mut scheduler, &second, 1).finished.len(), 1);
}

#[test]
fn a_stop_is_found_one_step_late_and_the_extra_token_is_dropped() {
    let mut scheduler = formed(with(|c| c.pipeline_depth = 2), 50);
    admit(&mut scheduler, request(1, 4, 20));
    let first = plan(&mut scheduler);
    let second = plan(&mut scheduler);
    let batch = complete(&mut scheduler, &first, 9);
    assert_eq!((batch.token, batch.finished[0].stop_token), (vec![9], None));
    assert_eq!(scheduler.stats().used_blocks, 0);
    assert!(!scheduler.is_idle(), "a result is still to come");
    assert_eq!(complete(&mut scheduler, &second, 30), TokenBatch::default());
    assert!(scheduler.is_idle());
}

#[test]
fn results_must_answer_the_oldest_plan() {
    let mut scheduler = formed(config(), 50);
    admit(&mut scheduler, request(1, 4, 20));
    let plan = plan(&mut scheduler);
    let right = result(&plan, 1);
    let mut check = |change: fn(&mut StepResult), expected| {
        let mut wrong = right.clone();
        change(&mut wrong);
        assert_eq!(scheduler.complete(wrong, 0), Err(expected));
    };
    check(|r| r.epoch = 6, ProtocolError::Epoch { got: 6, expected: 7 });
    check(|r| r.step = 2, ProtocolError::Step { got: 2, expected: Some(1) });
    check(|r| r.token.clear(), ProtocolError::Rows { step: 1, slots: 1, tokens: 0, expected: 1 });
    check(|r| r.slot[0] = 5, ProtocolError::Slot { step: 1, row: 0, got: 5, expected: 0 });
    check(|r| r.token[0] = 1000, ProtocolError::Token { step: 1, row: 0, token: 1000, vocab_size: 1000 });
    check(
        |r| r.logprobs.push(proto::TokenLogprobs { index: 1, ..Default::default() }),
        ProtocolError::Logprobs { step: 1 },
    );
    assert_eq!(scheduler.complete(right.clone(), 0), Ok(()));
    assert_eq!(scheduler.complete(right, 0), Err(ProtocolError::Step { got: 1, expected: None }));
}

#[test]
fn durations_of_a_choice() {
    let mut scheduler = formed(config(), 50);
    scheduler.admit(request(1, 4, 3), 100).expect("admitted");
    for (planned_us, completed_us) in [(130, 170), (180, 200), (210, 260)] {
        let plan = scheduler.plan(planned_us).expect("a plan");
        scheduler.complete(result(&plan, 1), completed_us).expect("a right result");
    }
    let mut choices = Vec::new();
    scheduler.take_finished(&mut choices);
    let choice = choices[0];
    assert_eq!((choice.queue_us, choice.prefill_us, choice.decode_us, choice.inference_us), (30, 40, 90, 130));
    assert_eq!((choice.end, choice.prompt_tokens, choice.generated_tokens), (End::Length, 4, 3));
    assert_eq!(scheduler.stats().totals.generation_tokens, 3);
}

#[test]
fn log_probabilities_follow_their_tokens() {
    let mut scheduler = formed(with(|c| c.pipeline_depth = 2), 50);
    for number in 1..=2 {
        let mut request = stranger(number, 4, 9);
        sampling(&mut request).logprobs = Some(0);
        admit(&mut scheduler, request);
    }
    let first = plan(&mut scheduler);
    scheduler.abort(&key(1), 0);
    let mut answer = result(&first, 1);
    answer.token = vec![21, 22];
    answer.logprobs =
        (0..2).map(|index| proto::TokenLogprobs { index, token: 21 + index, ..Default::default() }).collect();
    scheduler.complete(answer, 0).expect("a right result");
    // The batch has a token already, as when it is filled by several calls.
    let mut batch = TokenBatch { sequence: vec![99], token: vec![5], ..Default::default() };
    scheduler.take_output(&mut batch);
    assert_eq!(batch.token, [5, 22]);
    assert_eq!((batch.logprobs.len(), batch.logprobs[0].index, batch.logprobs[0].token), (1, 1, 22));
}
