//! `cargo xtask charts`: draws the charts of README and docs/benchmarks.md from the results in `docs/results`, which
//! are `table.json` as `cargo xtask gpu-compare` leaves it.

mod draw;
mod results;

use std::{fs, path::Path};

use anyhow::{Context, ensure};

use results::Results;

/// A chart: where it lies under `docs/charts`, what it is drawn from, and which rows of that it shows.
struct Chart {
    file: &'static str,
    results: &'static str,
    model: &'static str,
    title: &'static str,
    /// The row's name in the results, and the chart's words for it.
    rows: &'static [(&'static str, &'static str)],
}

const CHARTS: &[Chart] = &[
    Chart {
        file: "llama-8b-h200.svg",
        results: "llama-8b-h200.json",
        model: "llama-8b",
        title: "Llama 3.1 8B's shape, bf16, one NVIDIA H200",
        rows: &[
            ("start to serving", "start to serving"),
            ("decode step, batch 1", "decode step, 1 sequence"),
            ("decode step, batch 64", "decode step, 64 sequences"),
            ("prefill 1×8192", "prefill of 8,192 tokens"),
            ("64 clients, 1k in, 256 out: TTFT p50", "time to first token, 64 clients"),
            ("512 mixed requests at once", "512 mixed requests"),
            ("64 clients, 1k in, 256 out: output", "64 clients, 1,024 in, 256 out"),
        ],
    },
    Chart {
        file: "qwen3-0.6b-h200.svg",
        results: "qwen3-0.6b-h200.json",
        model: "qwen3-0.6b",
        title: "Qwen3 0.6B's shape, bf16, one NVIDIA H200",
        rows: &[
            ("start to serving", "start to serving"),
            ("decode step, batch 1", "decode step, 1 sequence"),
            ("decode step, batch 64", "decode step, 64 sequences"),
            ("decode step, batch 256", "decode step, 256 sequences"),
            ("prefill 1×8192", "prefill of 8,192 tokens"),
            ("64 clients, 1k in, 256 out: TTFT p50", "time to first token, 64 clients"),
            ("512 mixed requests at once", "512 mixed requests"),
            ("64 clients, 1k in, 256 out: output", "64 clients, 1,024 in, 256 out"),
        ],
    },
    Chart {
        file: "qwen3-32b-two-h200.svg",
        results: "qwen3-32b-two-h200.json",
        model: "qwen3-32b",
        title: "Qwen3 32B's shape, bf16, two NVIDIA H200, tensor parallel",
        rows: &[
            ("decode step, batch 1", "decode step, 1 sequence"),
            ("decode step, batch 16", "decode step, 16 sequences"),
            ("decode step, batch 64", "decode step, 64 sequences"),
            ("decode step, batch 128", "decode step, 128 sequences"),
            ("decode step, batch 256", "decode step, 256 sequences"),
            ("prefill 1×7000", "prefill of 7,000 tokens"),
            ("400 mixed requests at once", "400 mixed requests"),
        ],
    },
];

/// Writes every chart.
pub fn run(root: &Path) -> anyhow::Result<()> {
    for chart in CHARTS {
        let path = root.join("docs/charts").join(chart.file);
        fs::write(&path, chart.svg(root)?).with_context(|| path.display().to_string())?;
        println!("{}", path.display());
    }
    Ok(())
}

impl Chart {
    fn svg(&self, root: &Path) -> anyhow::Result<String> {
        let results = Results::read(&root.join("docs/results").join(self.results))?;
        let pairs = results.pairs(self.model, self.rows)?;
        ensure!(!pairs.is_empty(), "{} shows nothing", self.file);
        Ok(draw::svg(self.title, &results.caption(), &pairs))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charts_are_fresh() {
        let root = crate::root();
        for chart in CHARTS {
            let drawn = fs::read_to_string(root.join("docs/charts").join(chart.file)).unwrap_or_default();
            assert!(drawn == chart.svg(&root).unwrap(), "{} is stale: `cargo xtask charts`", chart.file);
        }
    }
}
