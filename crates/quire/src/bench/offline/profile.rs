//! Where the microseconds of a step go: `quire bench latency --profile FILE` runs a worker alone, in this process.

use std::path::Path;

use serde_json::{Value, json};
use worker_svc::{CaptureStats, Profile, Shape, Share};

use super::{Stage, flags::LatencyArgs, save};
use crate::serve::offline;

/// Kernels that are printed.
const PRINTED: usize = 16;

pub(super) async fn run(args: &LatencyArgs, file: &Path, stage: Stage<'_>) -> anyhow::Result<()> {
    let (worker, _runtime_dir) = offline::worker(stage.settings, stage.environment).await?;
    let shape = Shape { batch: u32::try_from(args.batch_size)?, context: args.input_len.most };
    let profile = worker_svc::profile(&worker, shape)?;
    println!("{}: {} sequences, context {}", profile.device, shape.batch, shape.context);
    let CaptureStats { graphs: count, took, bytes } = profile.graphs;
    let seconds = took.as_secs_f64();
    println!("{count} CUDA graphs of decode steps captured in {seconds:.2} s, {} MiB", bytes >> 20);
    let replay = profile.replay_and_gap();
    match replay {
        Some((step, gap)) => println!(
            "Decode step replayed as a CUDA graph: {step:.1} us, gap to the next {gap:.1} us ({:.1} %)",
            100.0 * gap / (step + gap)
        ),
        None => println!("No CUDA graphs are captured: decode steps are launched kernel by kernel"),
    }
    let decode = table("A decode step kernel by kernel, none overlapping", &profile.decode);
    let prefill = table("The prefill kernel by kernel, none overlapping", &profile.prefill);
    let report = json!({
        "device": profile.device,
        "batch_size": shape.batch,
        "context": shape.context,
        "cuda_graphs": {"count": count, "seconds": seconds, "bytes": bytes},
        "replay_us": replay.map(|(step, _)| step),
        "gap_us": replay.map(|(_, gap)| gap),
        "decode": decode,
        "prefill": prefill,
    });
    save(Some(file), &report)
}

/// Prints where the time went, and returns it.
fn table(title: &str, timings: &[kernels::ops::Timing]) -> Value {
    let shares = Profile::shares(timings);
    let all: f64 = shares.iter().map(|share| share.micros).sum();
    let percent = |micros: f64| if all > 0.0 { 100.0 * micros / all } else { 0.0 };
    println!("{title}: {} launches, {all:.1} us", timings.len());
    for Share { name, count, micros } in shares.iter().take(PRINTED) {
        println!(
            "  {micros:>10.1} us {:>5.1} %  {count:>4} x {:>7.2} us  {name}",
            percent(*micros),
            micros / *count as f64
        );
    }
    let line = |share: &Share| {
        let percent = percent(share.micros);
        json!({"kernel": share.name, "count": share.count, "us": share.micros, "percent": percent})
    };
    json!({"us": all, "kernels": shares.iter().map(line).collect::<Vec<_>>()})
}
