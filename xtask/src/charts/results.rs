//! Results of a comparison on disk, and what a chart shows of them.

use std::{fs, path::Path};

use anyhow::Context;
use serde::Deserialize;

/// What `gpu-compare` leaves as `table.json`.
#[derive(Deserialize)]
pub struct Results {
    /// What the runs were made on: "gpu: …", "date: …", "command: …".
    notes: Vec<String>,
    rows: Vec<Row>,
}

#[derive(Deserialize)]
struct Row {
    model: String,
    row: String,
    unit: String,
    quire: Option<f64>,
    vllm: Option<f64>,
}

/// The figures of both sides for one piece of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Pair {
    pub label: String,
    pub unit: String,
    pub quire: f64,
    pub vllm: f64,
}

impl Pair {
    /// Whether the smaller figure is the better one: of times, not of throughputs.
    pub fn is_time(&self) -> bool {
        matches!(self.unit.as_str(), "s" | "ms")
    }

    /// How many times as fast Quire is.
    pub fn ratio(&self) -> f64 {
        if self.is_time() { self.vllm / self.quire } else { self.quire / self.vllm }
    }
}

impl Results {
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
        serde_json::from_str(&text).with_context(|| path.display().to_string())
    }

    /// The named rows of a model, each with its label; a row that a side lacks is an error.
    pub fn pairs(&self, model: &str, rows: &[(&str, &str)]) -> anyhow::Result<Vec<Pair>> {
        let pair = |(name, label): &(&str, &str)| {
            let row = self.rows.iter().find(|row| row.model == model && row.row == *name);
            let sides = row.and_then(|row| Some((row, row.quire?, row.vllm?)));
            let (row, quire, vllm) = sides.with_context(|| format!("no two figures of {model}: {name}"))?;
            Ok(Pair { label: (*label).to_owned(), unit: row.unit.clone(), quire, vllm })
        };
        rows.iter().map(pair).collect()
    }

    /// What stands under a chart: everything that was noted about the runs.
    pub fn caption(&self) -> Vec<String> {
        let is_command = |note: &&String| note.starts_with("command: ");
        let facts: Vec<&str> = self.notes.iter().filter(|note| !is_command(note)).map(String::as_str).collect();
        let commands = self.notes.iter().filter(is_command).cloned();
        std::iter::once(facts.join(" · ")).chain(commands).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let text = r#"{"notes": ["gpu: H", "command: c", "date: d"], "rows": [
            {"model": "m", "row": "a step", "unit": "ms", "quire": 4.0, "vllm": 5.0},
            {"model": "m", "row": "tokens", "unit": "tok/s", "quire": 4.0, "vllm": 5.0},
            {"model": "m", "row": "half", "unit": "s", "quire": 4.0, "vllm": null}]}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn ratios_say_how_many_times_as_fast() {
        let pairs = results().pairs("m", &[("a step", "A"), ("tokens", "B")]).unwrap();
        assert_eq!(pairs.iter().map(Pair::ratio).collect::<Vec<_>>(), [1.25, 0.8]);
    }

    #[test]
    fn a_row_needs_both_sides() {
        for name in ["half", "other"] {
            let error = results().pairs("m", &[(name, "A")]).unwrap_err();
            assert_eq!(error.to_string(), format!("no two figures of m: {name}"));
        }
    }

    #[test]
    fn the_command_has_a_line_of_its_own() {
        assert_eq!(results().caption(), ["gpu: H · date: d", "command: c"]);
    }
}
