//! docs/metrics.md, made from the tables of metrics of all processes.

use std::fmt::Write;

use service_kit::metrics::Description;

const INTRO: &str = "\
# Metrics

`GET /metrics` answers with the metrics of all processes of the engine as one text for Prometheus. Series that several
processes report alike are added up. This page is made from the processes' own tables by `cargo xtask docs`; a test
keeps it fresh, and another compares it with what a running server shows.

Names and buckets of `vllm:` series are vLLM's; `engine` is always `0`. `quire:` series are Quire's own. A histogram has
the series `…_bucket` (with the label `le`), `…_sum` and `…_count`.

| metric | type | labels | what it says | process |
|---|---|---|---|---|
";

/// A metric, and the processes that have it.
struct Row {
    of: Description,
    processes: Vec<&'static str>,
}

fn rows() -> Vec<Row> {
    let processes = [
        ("gateway", api_gateway::metrics()),
        ("tokenizer", tokenizer_svc::metrics()),
        ("scheduler", scheduler_svc::metrics()),
        ("worker", worker_svc::metrics()),
        ("detokenizer", detokenizer_svc::metrics()),
    ];
    let mut rows: Vec<Row> = Vec::new();
    for (process, metrics) in processes {
        for of in metrics {
            match rows.iter_mut().find(|row| row.of.name == of.name) {
                Some(row) => {
                    assert_eq!((row.of.kind, &row.of.labels), (of.kind, &of.labels), "{} has two shapes", of.name);
                    row.processes.push(process);
                }
                None => rows.push(Row { of, processes: vec![process] }),
            }
        }
    }
    // vLLM's first.
    rows.sort_by_key(|row| (!row.of.name.starts_with("vllm:"), row.of.name.clone()));
    rows
}

fn page() -> String {
    let mut page = INTRO.to_owned();
    for Row { of: Description { name, kind, labels, help }, processes } in rows() {
        let labels: Vec<_> = labels.iter().map(|label| format!("`{label}`")).collect();
        let (labels, processes) = (labels.join(", "), processes.join(", "));
        writeln!(page, "| `{name}` | {kind} | {labels} | {help} | {processes} |").unwrap();
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `cargo xtask docs` runs this with leave to write.
    #[test]
    fn metrics_page_is_fresh() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let page = page();
        if std::env::var_os("QUIRE_WRITE_DOCS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert!(stored == page, "docs/metrics.md is not what the tables say: run `cargo xtask docs`");
    }
}
