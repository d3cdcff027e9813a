//! Requests that are pooled: they end with their prompt.

use super::*;
use proto::{FinishReason, Pooled, Pooling, pooling::Tokens};
use sched_core::{Features, ProtocolError, Refusal};

const POOL: i32 = Want::Pool as i32;

fn pools() -> Config {
    with(|c| {
        c.features = Features { pooling: true, ..Features::default() };
        c.pipeline_depth = 2;
    })
}

fn pooled(number: u64, prompt_tokens: u32, tokens: Tokens) -> proto::Request {
    let pooling = Some(Pooling { tokens: tokens.into(), ..Pooling::default() });
    proto::Request { pooling, max_tokens: None, ..request(number, prompt_tokens, 0) }
}

/// The result of a plan whose only row pools.
fn answer(plan: &StepPlan) -> StepResult {
    let slot = plan.slot.clone();
    let pooled =
        slot.iter().map(|slot| Pooled { sequence: (*slot).into(), values: vec![0.5, 2.0], more: false }).collect();
    StepResult { epoch: plan.epoch, step: plan.step, count: vec![0; slot.len()], slot, pooled, ..Default::default() }
}

#[test]
fn a_prompt_in_chunks_gives_one_output() {
    let mut scheduler = formed(pools(), 50);
    // A whole context of prompt: nothing is generated.
    admit(&mut scheduler, pooled(1, 100, Tokens::Last));
    let first = plan(&mut scheduler);
    assert_eq!((rows(&first), first.added[0].pooling), (vec![(0, 64, 0)], Some(Pooling::default())));
    let second = plan(&mut scheduler);
    assert_eq!(rows(&second), [(64, 36, POOL)]);
    let nothing = StepResult { epoch: first.epoch, step: first.step, ..Default::default() };
    scheduler.complete(nothing, 0).expect("a right result");
    assert_eq!(scheduler.plan(0), None, "nothing follows the prompt");
    scheduler.complete(answer(&second), 0).expect("a right result");
    let batch = output(&mut scheduler);
    let sequence = batch.started[0].first_sequence;
    assert_eq!(batch.pooled, [Pooled { sequence, values: vec![0.5, 2.0], more: false }]);
    assert_eq!((batch.token.len(), batch.finished.len(), batch.finished[0].reason()), (0, 1, FinishReason::Stop));
    assert!(scheduler.is_idle());
    assert_eq!((scheduler.stats().used_blocks, scheduler.stats().totals.generation_tokens), (0, 0));
}

#[test]
fn the_prefix_cache_serves_the_last_token_alone() {
    let mut scheduler = formed(pools(), 50);
    for (number, tokens, cached) in [(1, Tokens::All, 0), (2, Tokens::All, 0), (3, Tokens::Last, 8)] {
        admit(&mut scheduler, pooled(number, 9, tokens));
        let plan = plan(&mut scheduler);
        assert_eq!(rows(&plan), [(cached, 9 - cached, POOL)]);
        scheduler.complete(answer(&plan), 0).expect("a right result");
        assert_eq!(output(&mut scheduler).started[0].cached_tokens, cached);
    }
}

#[test]
fn what_has_no_meaning_is_refused() {
    let check = |change: fn(&mut proto::Request), expected| {
        let mut request = pooled(1, 9, Tokens::Last);
        change(&mut request);
        assert_eq!(formed(pools(), 50).admit(request, 0), Err(expected));
    };
    check(|r| r.max_tokens = Some(1), Refusal::NotForPooling("max_tokens"));
    check(|r| sampling(r).prompt_logprobs = Some(1), Refusal::NotForPooling("prompt_logprobs"));
    check(|r| r.n = 2, Refusal::Choices { n: 2, max: 1 });
    check(
        |r| *r = pooled(1, 101, Tokens::Last),
        Refusal::PooledPromptTooLong { prompt_tokens: 101, max_model_len: 100 },
    );
}

#[test]
fn outputs_must_be_of_their_rows() {
    let mut scheduler = formed(pools(), 50);
    admit(&mut scheduler, pooled(1, 9, Tokens::Last));
    let plan = plan(&mut scheduler);
    let mut check = |change: fn(&mut StepResult), expected| {
        let mut wrong = answer(&plan);
        change(&mut wrong);
        assert_eq!(scheduler.complete(wrong, 0), Err(expected));
    };
    check(|r| r.pooled[0].sequence = 7, ProtocolError::Pooled { step: 1, row: 0 });
    check(|r| r.pooled.clear(), ProtocolError::Rows { step: 1, slots: 1, tokens: 0, expected: 1 });
    check(|r| (r.count, r.token) = (vec![1], vec![5]), ProtocolError::Count { step: 1, row: 0, got: 1, most: 1 });
}
