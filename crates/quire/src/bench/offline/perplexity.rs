//! `quire bench perplexity`: how well a model predicts a text, for comparing what quantization costs.

use anyhow::{Context, bail};
use serde_json::json;
use worker_svc::Windows;

use super::{Stage, flags::PerplexityArgs, save};
use crate::serve::offline;

pub(super) async fn run(args: &PerplexityArgs, stage: Stage<'_>) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(&args.text).with_context(|| format!("cannot read {}", args.text.display()))?;
    let (worker, _runtime_dir) = offline::worker(stage.settings, stage.environment).await?;
    if worker.group.world_size() > 1 {
        bail!("perplexity is measured on one device; leave out --tensor-parallel-size and --pipeline-parallel-size");
    }
    let windows = Windows { window: args.window, stride: args.stride.unwrap_or(args.window / 2) };
    let found = worker_svc::perplexity(&worker, &text, windows)?;
    let (seconds, mib) = (found.took.as_secs_f64(), found.weight_bytes as f64 / f64::from(1 << 20));
    println!(
        "{}: perplexity {:.4} over {} tokens (windows of {}, every {}) in {seconds:.2} s; weights {mib:.1} MiB",
        found.device,
        found.value(),
        found.tokens,
        windows.window,
        windows.stride
    );
    let report = json!({
        "device": found.device,
        "perplexity": found.value(),
        "nats": found.nats,
        "tokens": found.tokens,
        "window": windows.window,
        "stride": windows.stride,
        "seconds": seconds,
        "weight_bytes": found.weight_bytes,
    });
    save(args.output_json.as_deref(), &report)
}
