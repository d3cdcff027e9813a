//! What is measured: a line of a side's report, and the cell of the table that lines come to.

use serde::{Deserialize, Serialize};

/// A line of a side's report on its cases.
#[derive(Deserialize, Clone, Debug)]
pub struct Line {
    pub name: String,
    /// Time of each run.
    pub seconds: Vec<f64>,
    pub input_tokens: u64,
    pub output_tokens: u64,
}

impl Line {
    /// Time of the fastest run, seconds.
    pub fn best(&self) -> f64 {
        self.seconds.iter().copied().fold(f64::INFINITY, f64::min)
    }
}

/// One cell of the table.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Figure {
    pub row: String,
    /// "s" and "ms" are better when less, everything else when more.
    pub unit: String,
    pub value: f64,
}

impl Figure {
    pub fn new(row: &str, unit: &str, value: f64) -> Self {
        Self { row: row.to_owned(), unit: unit.to_owned(), value }
    }
}
