//! The prefix cache.

use super::*;
use proto::Media;
use sched_core::Features;

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
    let mut scheduler = formed(with(|c| c.pipeline_depth = 2), 50);
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
        let mut next = plan(&mut scheduler);
        if !next.adapters.is_empty() {
            // An adapter has to come first.
            assert_eq!(rows(&next), []);
            complete(&mut scheduler, &next, 1);
            next.adapters.iter().for_each(|load| scheduler.adapter_placed(load.slot));
            next = plan(&mut scheduler);
        }
        assert_eq!(rows(&next), [(0, 20, 1)]);
    };
    check(|r| r.cache_salt = "tenant".into(), config());
    let features = || with(|c| (c.adapter_slots, c.features) = (1, Features { media: true, ..Features::default() }));
    check(|r| r.adapter = "lora".into(), features());
    check(|r| r.media.push(image(2, b"cat")), features());
    check(|r| sampling(r).prompt_logprobs = Some(1), config());
    check(|_| (), with(|c| c.enable_prefix_caching = false));
}

fn image(start: u32, hash: &'static [u8]) -> Media {
    Media { start, num_tokens: 4, hash: hash.into() }
}

#[test]
fn equal_images_are_found_and_others_are_not() {
    let mut scheduler = formed(with(|c| c.features = Features { media: true, ..Features::default() }), 50);
    let with_image = |number, hash| proto::Request { media: vec![image(6, hash)], ..request(number, 20, 1) };
    admit(&mut scheduler, with_image(1, b"cat"));
    step(&mut scheduler, 1);
    // Its placeholders are at 6 to 9: a block before them, two with them.
    for (number, hash, cached) in [(2, &b"cat"[..], 16), (3, b"dog", 4)] {
        admit(&mut scheduler, with_image(number, hash));
        assert_eq!(step(&mut scheduler, 1).1.started[0].cached_tokens, cached);
    }
}

#[test]
fn a_block_that_an_answer_fills_knows_the_image_in_it() {
    let mut scheduler = formed(with(|c| c.features = Features { media: true, ..Features::default() }), 50);
    let image = |hash: &'static [u8]| vec![Media { start: 4, num_tokens: 2, hash: hash.into() }];
    admit(&mut scheduler, proto::Request { media: image(b"cat"), ..request(1, 6, 4) });
    // The answer continues the prompt: 16, 17, ...
    (0..4).for_each(|at| drop(step(&mut scheduler, 16 + at)));
    for (number, hash, cached) in [(2, &b"cat"[..], 8), (3, b"dog", 4)] {
        admit(&mut scheduler, proto::Request { media: image(hash), ..request(number, 12, 1) });
        assert_eq!(step(&mut scheduler, 1).1.started[0].cached_tokens, cached);
    }
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
