//! Beam search: beams share blocks, start and give way together, and end as the choices that were asked for.

use super::*;
use proto::{BeamSearch, Candidates, FinishReason};
use sched_core::{End, Refusal};

fn search(number: u64, prompt_tokens: u32, max_tokens: u32, width: u32) -> proto::Request {
    let beam_search = Some(BeamSearch { width, length_penalty: 1.0, early_stopping: 0 });
    proto::Request { beam_search, n: width, ..request(number, prompt_tokens, max_tokens) }
}

/// Every beam's row gives these candidates; the first row's are likelier by far where `leads`.
fn candidates(plan: &StepPlan, tokens: &[u32], leads: bool) -> StepResult {
    let wanting = plan.slot.iter().zip(plan.want()).filter(|(_, want)| *want == Want::Candidates);
    let slot: Vec<u32> = wanting.map(|(slot, _)| *slot).collect();
    let of = |(row, slot): (usize, &u32)| {
        let base = if leads && row > 0 { -50.0 } else { -1.0 };
        let logprob = (0..tokens.len()).map(|at| base - at as f32 / 8.0).collect();
        Candidates { slot: *slot, token: tokens.to_vec(), logprob }
    };
    let candidates = slot.iter().enumerate().map(of).collect();
    let count = vec![0; slot.len()];
    StepResult { epoch: plan.epoch, step: plan.step, slot, count, candidates, ..StepResult::default() }
}

fn advance(scheduler: &mut Scheduler, tokens: &[u32], leads: bool) -> (StepPlan, TokenBatch) {
    let plan = plan(scheduler);
    scheduler.complete(candidates(&plan, tokens, leads), 0).expect("a right result");
    scheduler.check_invariants().expect("sound");
    (plan, output(scheduler))
}

#[test]
fn beams_share_the_prompt_and_copy_what_they_write() {
    let mut scheduler = formed(config(), 50);
    admit(&mut scheduler, search(1, 10, 3, 3));
    let (first, batch) = advance(&mut scheduler, &[20, 21, 22, 23, 24, 25], false);
    assert_eq!((first.added.len(), first.added[0].candidates), (1, 6));
    assert_eq!(rows(&first), [(0, 10, Want::Candidates as i32)]);
    assert_eq!((batch.started[0].n, batch.token.len()), (3, 0), "the best are not known yet");
    let (second, _) = advance(&mut scheduler, &[20, 21, 22, 23, 24, 25], true);
    assert_eq!((second.added.len(), second.continued.len()), (2, 1));
    assert_eq!(rows(&second), [(10, 1, Want::Candidates as i32); 3]);
    assert_eq!(second.copy_from.len(), 2, "one of three keeps the prompt's last block");
    // Three tables of three blocks: two are the prompt's, and each has its own third.
    let stats = scheduler.stats();
    assert_eq!((stats.used_blocks, stats.shared_blocks), (5, 4));
    // The first beam is continued three times; the others take over what it has.
    let third = plan(&mut scheduler);
    assert_eq!((third.added.len(), third.removed.len(), third.continued.len()), (0, 0, 3));
    assert!(third.continued_from.iter().all(|from| *from == third.continued[0]));
    assert_eq!(third.continued_token, [20, 21, 22]);
    scheduler.complete(candidates(&third, &[9, 20], true), 0).expect("a right result");
    let batch = output(&mut scheduler);
    let lens: Vec<usize> =
        batch.finished.iter().map(|one| batch.sequence.iter().filter(|id| **id == one.sequence).count()).collect();
    assert_eq!(lens, [3, 3, 3]);
    assert_eq!(batch.finished[0].reason(), FinishReason::Stop);
    assert_eq!(batch.finished[1].reason(), FinishReason::Length);
    assert!(!scheduler.has_unfinished() && scheduler.lost_blocks() == 0);
    assert_eq!(scheduler.stats().shared_blocks, 0);
}

#[test]
fn more_beams_than_choices() {
    let mut scheduler = formed(config(), 50);
    admit(&mut scheduler, proto::Request { n: 2, ..search(1, 6, 2, 4) });
    advance(&mut scheduler, &[20, 21, 22, 23], false);
    let (_, batch) = advance(&mut scheduler, &[20, 21, 22, 23], false);
    assert_eq!((batch.finished.len(), batch.token.len()), (2, 4));
    let mut ended = Vec::new();
    scheduler.take_finished(&mut ended);
    assert_eq!(ended.iter().filter(|choice| choice.is_last).count(), 1);
    assert_eq!(ended.iter().map(|choice| choice.generated_tokens).collect::<Vec<_>>(), [2, 2]);
    assert_eq!(scheduler.stats().totals.ended.length, 2);
}

#[test]
fn log_probabilities_come_with_the_texts() {
    let mut scheduler = formed(config(), 50);
    let mut request = search(1, 6, 2, 2);
    sampling(&mut request).logprobs = Some(1);
    admit(&mut scheduler, request);
    advance(&mut scheduler, &[20, 21, 22], false);
    let (_, batch) = advance(&mut scheduler, &[20, 21, 22], true);
    assert_eq!(batch.token, [20, 20, 20, 21]);
    let found: Vec<_> = batch.logprobs.iter().map(|one| (one.index, one.token, one.rank, one.logprob)).collect();
    assert_eq!(found, [(0, 20, 1, -1.0), (1, 20, 1, -1.0), (2, 20, 1, -1.0), (3, 21, 2, -1.125)]);
    assert!(batch.logprobs.iter().all(|one| one.top_ids == [20]));
}

/// What was there first gets on; the search gives up all its beams, and comes back with them.
#[test]
fn a_search_gives_way_as_a_whole() {
    let mut scheduler = formed(config(), 7);
    admit(&mut scheduler, stranger(1, 8, 12));
    step(&mut scheduler, 30);
    admit(&mut scheduler, search(2, 4, 9, 2));
    let all = |scheduler: &mut Scheduler| {
        let plan = plan(scheduler);
        let mut result = candidates(&plan, &[20, 21, 22, 23], false);
        if plan.want.first() == Some(&(Want::Sample as i32)) {
            (result.slot, result.count) =
                ([&[plan.slot[0]], result.slot.as_slice()].concat(), [&[1], result.count.as_slice()].concat());
            result.token = vec![31];
        }
        scheduler.complete(result, 0).expect("a right result");
        scheduler.check_invariants().expect("sound");
        (plan, output(scheduler))
    };
    let (mut came_back, mut ended) = (0, Vec::new());
    for _ in 0..60 {
        if !scheduler.has_unfinished() {
            break;
        }
        let (plan, batch) = all(&mut scheduler);
        came_back += plan.added.iter().filter(|added| added.candidates > 0 && added.tokens.len() > 4).count();
        ended.extend(batch.finished);
    }
    assert_eq!(ended.len(), 3);
    assert!(scheduler.stats().totals.preemptions > 0 && came_back >= 2, "{came_back} beams computed anew");
}

#[test]
fn an_abort_frees_all_beams() {
    let mut scheduler = formed(config(), 50);
    for steps in 0..3 {
        admit(&mut scheduler, search(steps, 6, 9, 4));
        for _ in 0..steps {
            advance(&mut scheduler, &[20, 21, 22, 23], false);
        }
        assert!(scheduler.abort(&key(steps), 0));
        scheduler.check_invariants().expect("sound");
        assert_eq!(output(&mut scheduler).finished.len(), 4);
        assert_eq!((scheduler.stats().used_blocks, scheduler.has_unfinished()), (0, false));
        let mut ended = Vec::new();
        scheduler.take_finished(&mut ended);
        assert!(ended.iter().all(|choice| choice.end == End::Abort) && ended.last().is_some_and(|last| last.is_last));
        scheduler.plan(0);
        scheduler.group_formed(Epoch(8 + steps), 50, 0);
    }
}

#[test]
fn what_a_search_cannot_have_is_refused() {
    let refusal = |change: fn(&mut proto::Request)| {
        let mut scheduler = formed(config(), 12);
        let mut request = search(1, 6, 4, 3);
        change(&mut request);
        scheduler.admit(request, 0).expect_err("refused")
    };
    assert_eq!(refusal(|r| sampling(r).prompt_logprobs = Some(0)), Refusal::NotForBeams("prompt_logprobs"));
    assert_eq!(refusal(|r| r.n = 4), Refusal::Choices { n: 4, max: 3 });
    assert_eq!(refusal(|r| r.beam_search.as_mut().unwrap().width = 5), Refusal::Choices { n: 5, max: 4 });
    // Each beam may come to need all of its own blocks.
    assert_eq!(refusal(|r| r.max_tokens = Some(14)), Refusal::NeverFits { blocks: 15, num_blocks: 12 });
    let mut scheduler = formed(with(|c| (c.recurrent, c.enable_prefix_caching) = (true, false)), 50);
    assert_eq!(scheduler.admit(search(1, 6, 4, 3), 0), Err(Refusal::RecurrentBeams));
}

#[test]
fn candidates_must_be_of_the_rows() {
    let mut scheduler = formed(config(), 50);
    admit(&mut scheduler, search(1, 6, 4, 2));
    let plan = plan(&mut scheduler);
    let changes: [fn(&mut StepResult); 5] = [
        |result| result.candidates.clear(),
        |result| result.candidates[0].slot += 1,
        |result| result.candidates[0].token[0] = 1000,
        |result| result.candidates[0].logprob.truncate(1),
        |result| result.count[0] = 1,
    ];
    for change in changes {
        let mut wrong = candidates(&plan, &[20, 21], false);
        change(&mut wrong);
        assert!(scheduler.complete(wrong, 0).is_err());
    }
    scheduler.complete(candidates(&plan, &[20, 21], false), 0).expect("the right one");
}
