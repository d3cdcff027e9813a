//! Drafted tokens: what is verified, what is kept of it, and what it may not do.

use super::*;
use sched_core::{ConfigError, DraftRefusal, History, ProtocolError};

const VERIFY: i32 = Want::Verify as i32;

fn speculating() -> Config {
    with(|c| (c.speculative_tokens, c.pipeline_depth) = (3, 2))
}

/// A request that runs, its prompt computed and its first token known; and its handle.
fn running(config: Config, num_blocks: u32, request: proto::Request) -> (Scheduler, SequenceId) {
    let mut scheduler = formed(config, num_blocks);
    admit(&mut scheduler, request);
    let (_, batch) = step(&mut scheduler, 1);
    (scheduler, SequenceId(batch.sequence[0]))
}

/// The plan's only row gives these tokens.
fn give(scheduler: &mut Scheduler, plan: &StepPlan, tokens: &[u32]) -> TokenBatch {
    let answer = StepResult { token: tokens.to_vec(), count: vec![tokens.len() as u32], ..result(plan, 0) };
    scheduler.complete(answer, 0).expect("a right result");
    scheduler.check_invariants().expect("sound");
    output(scheduler)
}

#[test]
fn what_is_right_is_kept_and_the_next_row_begins_behind_it() {
    let (mut scheduler, sequence) = running(speculating(), 50, request(1, 6, 20));
    let prompt: Vec<u32> = (10..16).collect();
    assert_eq!(scheduler.history(sequence), Some(History { prompt: &prompt, output: &[1] }));
    scheduler.propose(sequence, &[5, 6, 7]).expect("taken");
    let first = plan(&mut scheduler);
    assert_eq!((rows(&first), &first.num_draft, &first.draft), (vec![(6, 4, VERIFY)], &vec![3], &vec![5, 6, 7]));
    assert_eq!(scheduler.plan(0), None, "where the next row begins is not known");
    assert_eq!(scheduler.propose(sequence, &[8]), Err(DraftRefusal::InFlight));
    let batch = give(&mut scheduler, &first, &[5, 6, 8]);
    assert_eq!((batch.token, batch.sequence), (vec![5, 6, 8], vec![sequence.0; 3]));
    let second = plan(&mut scheduler);
    assert_eq!(rows(&second), [(9, 1, 1)], "a draft is used once");
    give(&mut scheduler, &second, &[4]);
    scheduler.propose(sequence, &[3, 3, 3, 3, 3]).expect("taken");
    let third = plan(&mut scheduler);
    assert_eq!(third.draft, [3, 3, 3], "as long as the configuration says");
    assert_eq!(give(&mut scheduler, &third, &[2]).token, [2], "nothing is right");
    assert_eq!(rows(&plan(&mut scheduler)), [(11, 1, 1)]);
    let totals = scheduler.stats().totals;
    assert_eq!((totals.drafted_tokens, totals.accepted_tokens, totals.generation_tokens), (6, 2, 6));
}

#[test]
fn other_sequences_fill_the_pipeline() {
    let mut scheduler = formed(speculating(), 50);
    admit(&mut scheduler, stranger(1, 4, 20));
    let first = plan(&mut scheduler);
    admit(&mut scheduler, stranger(2, 4, 20));
    assert_eq!(rows(&plan(&mut scheduler)), [(0, 4, 1)], "the other one's");
    complete(&mut scheduler, &first, 1);
    assert_eq!(rows(&plan(&mut scheduler)), [(4, 1, 1)]);
}

#[test]
fn tokens_behind_the_end_are_dropped() {
    let (mut scheduler, sequence) = running(speculating(), 50, request(1, 4, 20));
    scheduler.propose(sequence, &[5, 9, 6]).expect("taken");
    let plan = plan(&mut scheduler);
    let mut answer = StepResult { token: vec![5, 9, 6, 7], count: vec![4], ..result(&plan, 0) };
    answer.logprobs = (0..4).map(|index| proto::TokenLogprobs { index, ..Default::default() }).collect();
    scheduler.complete(answer, 0).expect("a right result");
    let batch = output(&mut scheduler);
    assert_eq!((batch.token, batch.logprobs.len(), batch.finished.len()), (vec![5, 9], 2, 1));
    assert!(scheduler.is_idle());
}

#[test]
fn a_draft_ends_where_the_answer_must() {
    for (max_tokens, drafted) in [(2, 0), (3, 1), (4, 2), (5, 3), (6, 3)] {
        let (mut scheduler, sequence) = running(speculating(), 50, request(1, 4, max_tokens));
        scheduler.propose(sequence, &[5, 6, 7]).expect("taken");
        assert_eq!(plan(&mut scheduler).draft.len(), drafted, "{max_tokens} tokens");
    }
}

/// The prefix cache would be poisoned: the positions hold keys and values of other tokens.
#[test]
fn blocks_of_rejected_tokens_are_not_found() {
    let (mut scheduler, sequence) = running(speculating(), 50, request(1, 6, 20));
    // Positions 4 to 7 are a block: two of the prompt, the first token, and one drafted.
    scheduler.propose(sequence, &[5, 6, 7]).expect("taken");
    let verified = plan(&mut scheduler);
    give(&mut scheduler, &verified, &[8]);
    let cached = |scheduler: &mut Scheduler, number, tail: &[u32]| {
        let mut next = request(number, 6, 1);
        let Some(Kind::Ids(ids)) = next.prompt.as_mut().and_then(|prompt| prompt.kind.as_mut()) else { unreachable!() };
        ids.ids.extend(tail);
        admit(scheduler, next);
        plan(scheduler);
        output(scheduler).started[0].cached_tokens
    };
    assert_eq!(cached(&mut scheduler, 2, &[1, 5, 6, 7]), 4, "the prompt's own block");
    // The token that was right instead fills the block one step later.
    let (mut scheduler, sequence) = running(speculating(), 50, request(1, 6, 20));
    scheduler.propose(sequence, &[5, 6, 7]).expect("taken");
    let verified = plan(&mut scheduler);
    give(&mut scheduler, &verified, &[5, 8]);
    assert_eq!(cached(&mut scheduler, 2, &[1, 5, 6, 7]), 8, "accepted tokens' too");
}

#[test]
fn a_draft_preempts_nobody() {
    let config = with(|c| (c.speculative_tokens, c.enable_prefix_caching) = (3, false));
    let mut scheduler = formed(config, 3);
    admit(&mut scheduler, stranger(1, 4, 5));
    admit(&mut scheduler, stranger(2, 4, 5));
    let (_, batch) = step(&mut scheduler, 1);
    for sequence in batch.sequence {
        scheduler.propose(SequenceId(sequence), &[5, 6, 7]).expect("taken");
    }
    let plan = plan(&mut scheduler);
    assert_eq!(plan.draft, [5, 6, 7], "one block is left");
    assert_eq!(
        (plan.slot.len(), scheduler.stats().totals.preemptions),
        (1, 1),
        "the next token may take what it needs"
    );
}

#[test]
fn drafts_that_make_no_sense_are_refused() {
    let (mut scheduler, sequence) = running(speculating(), 50, request(1, 4, 20));
    assert_eq!(scheduler.propose(SequenceId(99), &[1]), Err(DraftRefusal::NotRunning));
    let out_of_range = DraftRefusal::TokenOutOfRange { token: 1000, vocab_size: 1000 };
    assert_eq!(scheduler.propose(sequence, &[1, 1000]), Err(out_of_range));
    let (mut scheduler, sequence) = running(config(), 50, request(1, 4, 20));
    assert_eq!(scheduler.propose(sequence, &[1]), Err(DraftRefusal::Off));
}

#[test]
fn outcomes_must_be_possible() {
    let (mut scheduler, sequence) = running(speculating(), 50, request(1, 4, 20));
    scheduler.propose(sequence, &[5, 6]).expect("taken");
    let plan = plan(&mut scheduler);
    let mut check = |token: &[u32], count: &[u32], expected| {
        let answer = StepResult { token: token.to_vec(), count: count.to_vec(), ..result(&plan, 0) };
        assert_eq!(scheduler.complete(answer, 0), Err(expected));
    };
    let count = |got| ProtocolError::Count { step: 2, row: 0, got, most: 3 };
    let rows = |tokens| ProtocolError::Rows { step: 2, slots: 1, tokens, expected: 1 };
    check(&[], &[0], count(0));
    check(&[5, 6, 7, 8], &[4], count(4));
    check(&[5, 6], &[3], rows(2));
    check(&[5, 6], &[1], rows(2));
    check(&[5, 6], &[1, 1], rows(2));
    check(&[6, 6], &[2], ProtocolError::Accepted { step: 2, row: 0 });
    check(&[5, 1000], &[2], ProtocolError::Token { step: 2, row: 0, token: 1000, vocab_size: 1000 });
}

#[test]
fn every_sequence_must_be_able_to_verify() {
    let check = |change: fn(&mut Config), expected| assert_eq!(with(change).check(), Err(expected));
    check(|c| c.speculative_tokens = 8, ConfigError::BudgetBelowDrafts { batched: 64, seqs: 8, each: 9 });
    check(|c| c.speculative_tokens = 70_000, ConfigError::SpeculativeTokens { tokens: 70_000, most: 65_534 });
    let recurrent = |c: &mut Config| {
        (c.speculative_tokens, c.recurrent, c.enable_prefix_caching) = (1, true, false);
    };
    check(recurrent, ConfigError::RecurrentSpeculation);
}
