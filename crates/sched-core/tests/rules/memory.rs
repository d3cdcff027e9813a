//! Shared blocks of parallel samples, and what happens when blocks run out.

use super::*;

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

#[test]
fn prompt_log_probabilities_are_not_computed_again_after_the_first_token() {
    let mut scheduler = formed(config(), 4);
    for number in 1..=2 {
        let mut request = stranger(number, 4, 9);
        sampling(&mut request).prompt_logprobs = Some(1);
        admit(&mut scheduler, request);
    }
    let wants = |plan: &StepPlan| {
        let sampling = plan.added.iter().filter_map(|added| added.sampling.as_ref());
        sampling.map(|sampling| sampling.prompt_logprobs).collect::<Vec<_>>()
    };
    assert_eq!(wants(&step(&mut scheduler, 1).0), [Some(1), Some(1)]);
    let mut again = Vec::new();
    while scheduler.has_unfinished() {
        again.extend(wants(&step(&mut scheduler, 1).0));
    }
    assert_eq!(again, [None]);
}
