//! Host time of decode steps, without links: a worker's engine alone, in this process.
//!
//! `cargo run --release -p worker-svc --example decode_steps -- MODEL_DIR [SEQUENCES]`
//!
//! With the echo model (`tests/fixtures/shapes/echo`), which computes nothing, all of it is the engine's own. Under
//! `valgrind --tool=callgrind --toggle-collect='*Engine*submit*'` the instructions of a step can be compared from
//! commit to commit.

use std::{env, time::Instant};

use worker_svc::{Shape, profile};

fn main() -> anyhow::Result<()> {
    let mut given = env::args().skip(1);
    let model = given.next().unwrap_or_else(|| "tests/fixtures/shapes/echo".into());
    let batch: u32 = given.next().map_or(Ok(256), |text| text.parse())?;
    let max_num_seqs = (batch + 1).to_string();
    let flags =
        ["worker", "--model", &model, "--scheduler", "ring:/unused", "--load-format", "dummy", "--device", "cpu"];
    let args = service_kit::parse_flags(flags.into_iter().chain(["--max-num-seqs", &max_num_seqs]))?;
    let start = Instant::now();
    profile(&args, Shape { batch, context: 16 })?;
    println!("{batch} sequences: {:.3} ms", start.elapsed().as_secs_f64() * 1e3);
    Ok(())
}
