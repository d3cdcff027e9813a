//! Random worlds: whatever happens, each answer is the one that its request would get alone.

mod sim;

use proptest::prelude::*;
use sched_core::Config;
use sim::{Source, World, play};

#[test]
fn every_answer_is_as_if_alone() {
    for seed in 0..400 {
        play(Source::Seed(seed), 600);
    }
}

/// A failure that names its seed can be played again: nothing in a world depends on the order of a hash table.
#[test]
fn a_seed_is_one_world() {
    for seed in 3000..3030 {
        let totals = || {
            let mut world = World::new(Source::Seed(seed));
            world.run(600);
            world.finish();
            format!("{:?}", world.stats().totals)
        };
        assert_eq!(totals(), totals(), "seed {seed}");
    }
}

/// The answers are the oracle's either way, hence the same.
#[test]
fn any_number_of_steps_in_flight_gives_the_same_answers() {
    for seed in 2000..2100 {
        for pipeline_depth in [1, 2, 3, 7] {
            let mut source = Source::Seed(seed);
            let config = Config { pipeline_depth, ..sim::draw::config(&mut source) };
            let mut world = World::with(source, config);
            world.run(400);
            world.finish();
        }
    }
}

/// Rare things must really happen in these worlds, or the test above shows little.
#[test]
fn worlds_are_eventful() {
    let (mut preemptions, mut hits, mut generated, mut admitted, mut copies) = (0, 0, 0, 0, 0);
    let (mut drafted, mut accepted, mut pooled, mut searched, mut moves, mut forced) = (0, 0, 0, 0, 0, 0);
    for seed in 1000..1130 {
        let mut world = World::new(Source::Seed(seed));
        world.run(600);
        world.finish();
        let totals = world.stats().totals;
        preemptions += totals.preemptions;
        hits += totals.prefix_cache_hits;
        generated += totals.generation_tokens;
        admitted += totals.admitted;
        copies += world.copies;
        (drafted, accepted) = (drafted + totals.drafted_tokens, accepted + totals.accepted_tokens);
        pooled += world.pooled;
        forced += totals.forced_tokens;
        (searched, moves) = (searched + world.searched, moves + world.moves);
    }
    assert!(preemptions > 100, "{preemptions} preemptions");
    assert!(copies > 100, "{copies} blocks copied");
    assert!(accepted > 500 && drafted > accepted + 300, "{accepted} of {drafted} drafted tokens accepted");
    assert!(forced > 50, "{forced} forced tokens");
    assert!(pooled > 50, "{pooled} pooled outputs");
    assert!(searched > 60 && moves > 60, "{searched} texts of beam searches, {moves} moves");
    assert!(hits > 1000, "{hits} tokens found in the cache");
    assert!(generated > 5000 && admitted > 1000, "{generated} tokens for {admitted} requests");
}

/// Ten million events; half a minute in release. `cargo test --release -p sched-core --test simulation -- --ignored`
#[test]
#[ignore = "takes minutes in debug builds"]
fn ten_million_events() {
    let mut events = 0;
    for seed in 1_000_000.. {
        events += play(Source::Seed(seed), 2000);
        if events >= 10_000_000 {
            break;
        }
    }
}

/// The fuzz target on inputs that never change: bytes of all kinds, mostly small, mostly large, or repeated. What a
/// fuzzer finds joins them.
#[test]
fn fuzz_seeds_pass() {
    for seed in 0..96_u64 {
        let byte = |at: u64| (sim::source::mix(seed << 32 | at) >> 32) as u8;
        let shape = |at: u64| match seed % 4 {
            0 => byte(at),
            1 => byte(at) >> (byte(at ^ 1) % 8),
            2 => byte(at) | 0xf0,
            _ => byte(at % 7),
        };
        let bytes: Vec<u8> = (0..64 + seed * 40).map(shape).collect();
        play(Source::Bytes(&bytes), usize::MAX);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// The fuzz target's way in: any bytes are a world.
    #[test]
    fn any_bytes_are_a_world(bytes in prop::collection::vec(any::<u8>(), 0..3000)) {
        play(Source::Bytes(&bytes), usize::MAX);
    }
}
