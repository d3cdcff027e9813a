//! Groups of layers: what a window gives back, what the cache finds in it, and what admission counts.

use super::*;

/// One group that keeps everything, and one with a window of 8 tokens: two blocks.
fn mixed() -> Config {
    with(|c| {
        c.windows = vec![None, Some(8)];
        c.max_num_batched_tokens = 16;
    })
}

/// Steps until nothing is left; the most blocks that were held at once.
fn run_out(scheduler: &mut Scheduler) -> u32 {
    let mut most = 0;
    while scheduler.has_unfinished() {
        let plan = plan(scheduler);
        most = most.max(scheduler.stats().used_blocks);
        complete(scheduler, &plan, 1);
    }
    most
}

#[test]
fn a_long_prompt_holds_its_window_and_a_chunk() {
    let mut scheduler = formed(with(|c| (c.windows, c.max_num_batched_tokens) = (vec![Some(8)], 16)), 50);
    admit(&mut scheduler, request(1, 90, 5));
    // A chunk of 4 blocks, the window behind it, and one for where blocks begin.
    assert!(run_out(&mut scheduler) <= 7);
}

#[test]
fn a_group_without_a_window_keeps_everything() {
    let mut scheduler = formed(mixed(), 50);
    admit(&mut scheduler, request(1, 80, 5));
    let most = run_out(&mut scheduler);
    assert!((21..=21 + 7).contains(&most), "{most}");
}

#[test]
fn new_requests_bring_a_table_for_each_group() {
    let mut scheduler = formed(mixed(), 50);
    admit(&mut scheduler, request(1, 24, 5));
    let (first, _) = step(&mut scheduler, 1);
    let added = &first.added[0];
    assert_eq!((added.group_len.as_slice(), added.group_first.as_slice()), (&[6, 4][..], &[0, 0][..]));
    assert_eq!(added.blocks.len(), 10);
    let (second, _) = step(&mut scheduler, 1);
    assert_eq!(
        (second.new_block_group.as_slice(), second.new_block.len()),
        (&[1, 1][..], 2),
        "the window's, as it moves"
    );
}

#[test]
fn a_cached_prefix_needs_only_the_windows_end() {
    let mut scheduler = formed(mixed(), 50);
    admit(&mut scheduler, request(1, 40, 2));
    run_out(&mut scheduler);
    admit(&mut scheduler, request(2, 41, 2));
    let (plan, _) = step(&mut scheduler, 1);
    assert_eq!(rows(&plan), [(40, 1, 1)]);
    // The token at 40 sees 33 to 40: entries 8 and 9 of the window's table, and its own.
    assert_eq!((plan.added[0].group_len.as_slice(), plan.added[0].group_first.as_slice()), (&[11, 3][..], &[0, 8][..]));
}

#[test]
fn a_window_whose_end_is_gone_is_computed_again() {
    // Room for little more than one sequence: its oldest window blocks are taken by what follows.
    let mut scheduler = formed(mixed(), 18);
    admit(&mut scheduler, request(1, 40, 2));
    run_out(&mut scheduler);
    admit(&mut scheduler, request(2, 18, 2));
    let (plan, _) = step(&mut scheduler, 1);
    // Shorter prefixes of the same prompt may have lost their window; whatever is found, the rest is computed.
    let (start, tokens, sample) = rows(&plan)[0];
    assert!(start % 4 == 0 && start + tokens <= 18 && (sample == 1) == (start + tokens == 18));
    run_out(&mut scheduler);
}

#[test]
fn admission_counts_every_group() {
    let mut scheduler = formed(mixed(), 20);
    // 12 blocks of everything, and 7 of the window.
    admit(&mut scheduler, request(1, 40, 9));
    let refused = scheduler.admit(request(2, 50, 9), 0).unwrap_err();
    assert_eq!(refused, sched_core::Refusal::NeverFits { blocks: 22, num_blocks: 20 });
    run_out(&mut scheduler);
}

#[test]
fn a_recurrent_state_is_not_shared() {
    let recurrent = with(|c| (c.recurrent, c.enable_prefix_caching) = (true, false));
    assert!(Scheduler::new(with(|c| c.recurrent = true)).is_err(), "no prefix cache");
    let mut scheduler = formed(recurrent, 50);
    admit(&mut scheduler, proto::Request { n: 3, ..request(1, 10, 4) });
    let (first, _) = step(&mut scheduler, 1);
    assert_eq!(rows(&first), [(0, 10, 1), (0, 10, 1), (0, 10, 1)], "each computes its own prompt");
    assert!(first.copy_from.is_empty());
    run_out(&mut scheduler);
}
