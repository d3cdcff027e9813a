//! One rule, one test.

use ids::Epoch;
use proto::{Failure, FinishReason, RequestKey, Sampling, StepPlan, StepResult, TokenBatch, failure, prompt::Kind};
use sched_core::{Config, ConfigError, End, Pipeline, Policy, ProtocolError, QueueBound, Refusal, Scheduler};

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
        pipeline: Pipeline::InOrder,
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
        sampling: Some(Sampling { seed: Some(5), ..Default::default() }),
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

/// Every sampled row gives `token`.
fn result(plan: &StepPlan, token: u32) -> StepResult {
    let sampled = plan.slot.iter().zip(&plan.sample).filter(|(_, sample)| **sample == 1);
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

/// (start, num_tokens, sample) of every row.
fn rows(plan: &StepPlan) -> Vec<(u32, u32, u32)> {
    (0..plan.slot.len()).map(|row| (plan.start[row], plan.num_tokens[row], plan.sample[row])).collect()
}

// ---- configuration and admission

#[test]
fn impossible_configurations_are_refused() {
    let check = |change: fn(&mut Config), expected| assert_eq!(with(change).check(), Err(expected));
    check(|c| c.block_size = 0, ConfigError::Zero("block_size"));
    check(|c| c.max_num_batched_tokens = 4, ConfigError::BudgetBelowSeqs { batched: 4, seqs: 8 });
    check(|c| c.enable_chunked_prefill = false, ConfigError::BudgetBelowPrompt { batched: 64, len: 100 });
    check(|c| c.watermark = 1.5, ConfigError::Watermark(1.5));
    check(|c| c.watermark = -0.1, ConfigError::Watermark(-0.1));
    assert!(with(|c| c.watermark = f32::NAN).check().is_err());
    assert_eq!(config().check(), Ok(()));
}

#[test]
fn refusals_name_the_reason() {
    let check = |change: fn(&mut proto::Request), expected: Refusal| {
        let mut scheduler = formed(config(), 20); // 80 positions
        let mut request = request(1, 10, 5);
        change(&mut request);
        assert_eq!(scheduler.admit(request, 0), Err(expected));
        assert!(scheduler.is_idle() && !scheduler.has_output());
        assert_eq!(scheduler.stats().totals.refused, 1);
    };
    check(|r| r.prompt = None, Refusal::Incomplete("prompt token ids"));
    check(|r| r.key = None, Refusal::Incomplete("key"));
    check(|r| *r = request(1, 0, 5), Refusal::EmptyPrompt);
    check(|r| *r = request(1, 100, 1), Refusal::PromptTooLong { prompt_tokens: 100, max_model_len: 100 });
    check(
        |r| r.max_tokens = Some(91),
        Refusal::MaxTokensTooLarge { max_tokens: 91, prompt_tokens: 10, max_model_len: 100 },
    );
    check(|r| r.max_tokens = Some(0), Refusal::ZeroMaxTokens);
    check(|r| r.n = 0, Refusal::Choices { n: 0, max: 4 });
    check(|r| r.n = 5, Refusal::Choices { n: 5, max: 4 });
    // 10 + 72 tokens: 81 positions.
    check(|r| r.max_tokens = Some(72), Refusal::NeverFits { blocks: 21, num_blocks: 20 });
    check(
        |r| {
            if let Some(Kind::Ids(ids)) = r.prompt.as_mut().and_then(|prompt| prompt.kind.as_mut()) {
                ids.ids[3] = 1000;
            }
        },
        Refusal::TokenOutOfRange { token: 1000, position: 3, vocab_size: 1000 },
    );
}

#[test]
fn refusals_know_whose_fault_they_are() {
    let check = |refusal: Refusal, kind: failure::Kind, param: &str| {
        let failure = refusal.to_failure();
        assert_eq!((failure.kind(), failure.param.as_str()), (kind, param));
    };
    check(Refusal::EmptyPrompt, failure::Kind::Invalid, "prompt");
    check(Refusal::Choices { n: 0, max: 4 }, failure::Kind::Invalid, "n");
    check(Refusal::Overloaded { bound: QueueBound::Requests, limit: 1 }, failure::Kind::Overloaded, "");
    check(Refusal::Draining, failure::Kind::Unavailable, "");
    check(Refusal::NotReady, failure::Kind::Unavailable, "");
    check(Refusal::Duplicate, failure::Kind::Internal, "");
}

#[test]
fn the_longest_possible_request_fits() {
    let mut scheduler = formed(config(), 20);
    admit(&mut scheduler, request(1, 10, 71)); // 81 tokens, 80 positions, 20 blocks
    let mut generated = 0;
    while scheduler.has_unfinished() {
        generated += step(&mut scheduler, 1).1.token.len();
    }
    assert_eq!(generated, 71);
}

#[test]
fn without_max_tokens_the_context_or_the_blocks_end_it() {
    let check = |num_blocks, expected| {
        let mut scheduler = formed(config(), num_blocks);
        admit(&mut scheduler, proto::Request { max_tokens: None, ..request(1, 10, 0) });
        let mut generated = 0;
        while scheduler.has_unfinished() {
            generated += step(&mut scheduler, 1).1.token.len();
        }
        assert_eq!(generated, expected);
    };
    check(50, 90);
    check(20, 71);
}

#[test]
fn queue_bounds_refuse_until_something_starts() {
    let mut scheduler = formed(with(|c| c.max_num_queued_reqs = Some(2)), 50);
    admit(&mut scheduler, request(1, 4, 5));
    admit(&mut scheduler, request(2, 4, 5));
    let full = Refusal::Overloaded { bound: QueueBound::Requests, limit: 2 };
    assert_eq!(scheduler.admit(request(3, 4, 5), 0), Err(full));
    plan(&mut scheduler);
    admit(&mut scheduler, request(3, 4, 5));

    let mut scheduler = formed(with(|c| c.max_num_queued_tokens = Some(10)), 50);
    admit(&mut scheduler, request(1, 30, 5)); // an empty queue takes any
    let full = Refusal::Overloaded { bound: QueueBound::Tokens, limit: 10 };
    assert_eq!(scheduler.admit(request(2, 1, 5), 0), Err(full));
    assert_eq!((scheduler.stats().queued_requests, scheduler.stats().queued_tokens), (1, 30));
    plan(&mut scheduler);
    assert_eq!(scheduler.stats().queued_tokens, 0);
    admit(&mut scheduler, request(2, 10, 5));
}

#[test]
fn draining_and_missing_groups_refuse() {
    let mut scheduler = Scheduler::new(config()).expect("possible");
    assert_eq!(scheduler.admit(request(1, 4, 5), 0), Err(Refusal::NotReady));
    scheduler.group_formed(Epoch(1), 50, 0);
    admit(&mut scheduler, request(1, 4, 2));
    assert_eq!(scheduler.admit(request(1, 4, 5), 0), Err(Refusal::Duplicate));
    scheduler.drain();
    assert_eq!(scheduler.admit(request(2, 4, 5), 0), Err(Refusal::Draining));
    step(&mut scheduler, 1);
    let (_, batch) = step(&mut scheduler, 1);
    assert_eq!(batch.finished.len(), 1, "what was there ends as usual");
}

// ---- steps

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

#[test]
fn decodes_go_first_and_prompts_come_in_chunks() {
    let config = with(|c| {
        c.max_num_batched_tokens = 16;
        c.max_prefill_tokens_beside_decodes = 6;
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

// ---- run-ahead

#[test]
fn one_step_ahead_and_never_beyond_the_limit() {
    let mut scheduler = formed(with(|c| c.pipeline = Pipeline::RunAhead), 50);
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
    let mut scheduler = formed(with(|c| c.pipeline = Pipeline::RunAhead), 50);
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

// ---- ends

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
    check(|s| s.ignore_eos = true, &[9, 9, 9, 9, 9], FinishReason::Length, None);
    check(|s| s.stop_token_ids = vec![7, 8], &[1, 8], FinishReason::Stop, Some(8));
    check(|s| s.min_tokens = 3, &[9, 9, 9], FinishReason::Stop, None);
    check(|s| s.stop_token_ids = vec![9], &[9], FinishReason::Stop, None);
    check(|_| (), &[1, 1, 1, 1, 9], FinishReason::Stop, None);
}

#[test]
fn a_stop_string_ends_without_a_word() {
    let mut scheduler = formed(with(|c| c.pipeline = Pipeline::RunAhead), 50);
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
    let mut scheduler = formed(with(|c| c.pipeline = Pipeline::RunAhead), 50);
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

// ---- prefix cache

#[test]
fn whole_blocks_are_found_again_but_never_the_last_token() {
    let check = |second_tokens: u32, expected_start: u32| {
        let mut scheduler = formed(config(), 50);
        admit(&mut scheduler, request(1, 12, 1));
        step(&mut scheduler, 1);
        admit(&mut scheduler, request(2, second_tokens, 1));
        let (plan, batch) = step(&mut scheduler, 1);
        assert_eq!(rows(&plan), [(expected_start, second_tokens - expected_start, 1)]);
        assert_eq!(batch.started[0].cached_tokens, expected_start);
        let totals = scheduler.stats().totals;
        assert_eq!(totals.prefix_cache_queries, u64::from(12 + second_tokens));
        assert_eq!(totals.prefix_cache_hits, u64::from(expected_start));
    };
    check(20, 12);
    check(13, 12);
    check(12, 8);
    check(9, 8);
    check(8, 4);
    check(4, 0);
}

#[test]
fn generated_blocks_are_found_again_too() {
    let mut scheduler = formed(config(), 50);
    admit(&mut scheduler, request(1, 3, 6));
    // The answer continues the prompt: 13, 14, ...
    (0..6).for_each(|at| drop(step(&mut scheduler, 13 + at)));
    admit(&mut scheduler, request(2, 20, 1));
    // Nine tokens, of which the last one's keys and values were never computed: two blocks.
    assert_eq!(rows(&plan(&mut scheduler)), [(8, 12, 1)]);
}

#[test]
fn a_block_is_found_only_after_its_result() {
    let mut scheduler = formed(with(|c| c.pipeline = Pipeline::RunAhead), 50);
    admit(&mut scheduler, request(1, 8, 5));
    let first = plan(&mut scheduler);
    admit(&mut scheduler, request(2, 9, 5));
    let second = plan(&mut scheduler);
    assert_eq!(rows(&second), [(8, 1, 1), (0, 9, 1)]);
    complete(&mut scheduler, &first, 1);
    admit(&mut scheduler, request(3, 9, 5));
    assert_eq!(rows(&plan(&mut scheduler)).last(), Some(&(8, 1, 1)));
}

#[test]
fn what_keeps_prompts_apart() {
    let check = |change: fn(&mut proto::Request), config: Config| {
        let mut scheduler = formed(config, 50);
        admit(&mut scheduler, request(1, 12, 1));
        step(&mut scheduler, 1);
        let mut second = request(2, 20, 1);
        change(&mut second);
        admit(&mut scheduler, second);
        assert_eq!(rows(&plan(&mut scheduler)), [(0, 20, 1)]);
    };
    check(|r| r.cache_salt = "tenant".into(), config());
    check(|r| sampling(r).prompt_logprobs = Some(1), config());
    check(|_| (), with(|c| c.enable_prefix_caching = false));
}

#[test]
fn a_reset_forgets_the_cache_also_for_what_runs() {
    let mut scheduler = formed(config(), 50);
    admit(&mut scheduler, request(1, 12, 1));
    step(&mut scheduler, 1);
    assert_eq!(scheduler.stats().cached_blocks, 3);
    scheduler.reset_prefix_cache();
    assert_eq!(scheduler.stats().cached_blocks, 0);
    admit(&mut scheduler, request(2, 12, 9));
    let running = plan(&mut scheduler);
    scheduler.reset_prefix_cache();
    complete(&mut scheduler, &running, 1);
    admit(&mut scheduler, request(3, 20, 1));
    assert_eq!(rows(&plan(&mut scheduler)).last(), Some(&(0, 20, 1)));
}

#[test]
fn the_longest_unused_block_is_evicted_first() {
    let check = |salt: u64, expected_start| {
        let mut scheduler = formed(with(|c| c.max_model_len = 24), 6);
        let salted = |number, salt: u64| proto::Request { cache_salt: format!("salt {salt}"), ..request(number, 9, 1) };
        for request in [stranger(1, 8, 1), stranger(2, 8, 1), salted(3, 1)] {
            admit(&mut scheduler, request); // the third uses the first one's blocks again
            step(&mut scheduler, 1);
        }
        assert_eq!(scheduler.stats().cached_blocks, 4);
        admit(&mut scheduler, stranger(4, 12, 1)); // takes two free blocks and evicts one
        step(&mut scheduler, 1);
        admit(&mut scheduler, salted(5, salt));
        assert_eq!(rows(&plan(&mut scheduler)), [(expected_start, 9 - expected_start, 1)]);
    };
    check(1, 8);
    check(2, 4); // its second block went: of a chain the end goes first
}

// ---- parallel samples

#[test]
fn choices_share_the_prompt_and_copy_its_last_block() {
    let mut scheduler = formed(with(|c| c.enable_prefix_caching = false), 50);
    admit(&mut scheduler, proto::Request { n: 3, ..request(1, 10, 4) });
    assert_eq!(scheduler.stats().waiting_deferred, 2);
    let (first, _) = step(&mut scheduler, 1);
    assert_eq!(rows(&first), [(0, 10, 1)]);
    let blocks = first.added[0].blocks.clone();
    let second = plan(&mut scheduler);
    assert_eq!(rows(&second), [(10, 1, 1), (9, 1, 1), (9, 1, 1)]);
    assert!(second.added.iter().all(|added| added.blocks == blocks));
    assert_eq!(second.copy_from, [blocks[2], blocks[2]]);
    assert_eq!((&second.replace_index, &second.replace_block), (&vec![2, 2], &second.copy_to));
    assert_eq!(scheduler.stats().used_blocks, 5, "two shared, three own");
    let seeds = [first.added[0].seed, second.added[0].seed, second.added[1].seed];
    assert!(seeds[0] == 5 && seeds[1] != seeds[0] && seeds[2] != seeds[0] && seeds[1] != seeds[2]);
}

#[test]
fn seeds_are_drawn_for_those_who_bring_none() {
    let seeds = |start| {
        let mut scheduler = formed(with(|c| c.seed = start), 50);
        for number in 1..=2 {
            let mut request = stranger(number, 4, 4);
            sampling(&mut request).seed = None;
            admit(&mut scheduler, request);
        }
        plan(&mut scheduler).added.iter().map(|added| added.seed).collect::<Vec<_>>()
    };
    assert_eq!(seeds(1), seeds(1));
    assert_ne!(seeds(1), seeds(2));
    assert_ne!(seeds(1)[0], seeds(1)[1]);
}

// ---- memory

#[test]
fn the_latest_gives_way_and_comes_back_with_all_it_had() {
    let mut scheduler = formed(with(|c| c.enable_prefix_caching = false), 4);
    admit(&mut scheduler, stranger(1, 4, 9));
    admit(&mut scheduler, stranger(2, 4, 9));
    (0..5).for_each(|_| drop(step(&mut scheduler, 1)));
    assert_eq!(scheduler.stats().used_blocks, 4);
    let (plan, _) = step(&mut scheduler, 1); // both need a third block
    assert_eq!((plan.slot.len(), plan.new_block.len()), (1, 1));
    let stats = scheduler.stats();
    assert_eq!((stats.totals.preemptions, stats.waiting_for_capacity), (1, 1));
    let mut back = None;
    while scheduler.has_unfinished() {
        let (plan, _) = step(&mut scheduler, 1);
        back = back.or(plan.added.into_iter().next());
    }
    let back = back.expect("it came back");
    assert_eq!((back.tokens.len(), back.num_prompt_tokens), (9, 4));
    let mut choices = Vec::new();
    scheduler.take_finished(&mut choices);
    assert_eq!(
        choices.iter().map(|choice| (choice.generated_tokens, choice.preemptions)).collect::<Vec<_>>(),
        [(9, 0), (9, 1)]
    );
}

#[test]
fn the_watermark_keeps_room_for_those_who_run() {
    let mut scheduler = formed(with(|c| c.watermark = 0.25), 8);
    admit(&mut scheduler, stranger(1, 16, 2));
    admit(&mut scheduler, stranger(2, 12, 2));
    assert_eq!(plan(&mut scheduler).added.len(), 1, "4 blocks free, 3 wanted, 2 kept");
    let mut scheduler = formed(with(|c| c.watermark = 1.0), 8);
    admit(&mut scheduler, stranger(1, 16, 2));
    assert_eq!(plan(&mut scheduler).added.len(), 1, "alone, it may have all");
}

// ---- figures

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
    let mut scheduler = formed(with(|c| c.pipeline = Pipeline::RunAhead), 50);
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
