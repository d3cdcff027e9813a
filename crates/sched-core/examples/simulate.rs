//! Random worlds by the million: `cargo run --release -p sched-core --example simulate -- --events 10000000 --seed 1`
//!
//! A world that fails panics with its seed; `--events 1 --seed THAT` plays it alone.

#[path = "../tests/sim/mod.rs"]
#[allow(dead_code)] // The tests use all of it.
mod sim;

use sim::{Source, World};

const EVENTS_PER_WORLD: usize = 2000;

fn main() {
    let events = argument("--events").unwrap_or(1_000_000);
    let mut seed = argument("--seed").unwrap_or(1);
    let (mut happened, mut requests, mut tokens, mut preemptions, mut hits, mut copies) = (0, 0, 0, 0, 0, 0);
    while happened < events {
        let played = std::panic::catch_unwind(|| {
            let mut world = World::new(Source::Seed(seed));
            let happened = world.run(EVENTS_PER_WORLD);
            world.finish();
            (happened, world.admitted, world.copies, world.stats().totals)
        });
        let Ok((count, admitted, copied, totals)) = played else {
            eprintln!("the world of seed {seed} failed");
            std::process::exit(1);
        };
        happened += count as u64;
        requests += admitted;
        copies += copied;
        tokens += totals.generation_tokens;
        preemptions += totals.preemptions;
        hits += totals.prefix_cache_hits;
        seed += 1;
    }
    println!(
        "{happened} events: {requests} requests, {tokens} tokens, {preemptions} preemptions, \
         {hits} tokens found in the prefix cache, {copies} blocks copied; all answers right"
    );
}

fn argument(name: &str) -> Option<u64> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1).and_then(|value| value.parse().ok())
}
