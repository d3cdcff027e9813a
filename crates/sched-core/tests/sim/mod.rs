//! A seeded world around the scheduler: random events, a worker that keeps real block contents, and an oracle that
//! knows every answer. Used by `tests/simulation.rs`, `examples/simulate.rs` and the fuzz target.

pub mod draw;
mod listen;
pub mod oracle;
pub mod source;
pub mod worker;
pub mod world;

pub use source::Source;
pub use world::World;

/// Plays one world until its source ends or `events` are through, then lets everything finish. Returns how many events
/// happened. Panics on anything wrong.
pub fn play(source: Source<'_>, events: usize) -> usize {
    let mut world = World::new(source);
    let happened = world.run(events);
    world.finish();
    happened
}
