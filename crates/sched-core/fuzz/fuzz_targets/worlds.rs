//! Any bytes are a world of the simulation: `cargo +nightly fuzz run worlds` in `crates/sched-core`.
//! The same decoder runs on random bytes in `tests/simulation.rs`, so it cannot rot.
#![no_main]

#[path = "../../tests/sim/mod.rs"]
#[allow(dead_code)]
mod sim;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    sim::play(sim::Source::Bytes(bytes), usize::MAX);
});
