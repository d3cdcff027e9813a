//! A table for each peer: every row that a side has, the other side's figure beside it, and the goal.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{figure::Figure, results::Read, shape::Shape, side::Side};

/// Goals of the design for one H200: model, row, bound.
const GOALS: &[(Shape, &str, f64)] = &[
    (Shape::Llama8b, "start to first token", 8.0),
    (Shape::Llama8b, "decode step, batch 1", 3.9),
    (Shape::Llama8b, "decode step, batch 8", 4.0),
    (Shape::Llama8b, "decode step, batch 32", 4.4),
    (Shape::Llama8b, "decode step, batch 64", 4.8),
    (Shape::Llama8b, "decode step, batch 128", 5.8),
    (Shape::Llama8b, "decode step, batch 256", 7.8),
    (Shape::Llama8b, "prefill 1×512", 12.0),
    (Shape::Llama8b, "prefill 1×2048", 44.0),
    (Shape::Llama8b, "prefill 1×8192", 190.0),
    (Shape::Llama8b, "prefill 16×2048", 47_000.0),
    (Shape::Llama8b, "512 mixed requests at once", 12_500.0),
    (Shape::Qwen06b, "decode step, batch 1", 0.6),
    (Shape::Qwen06b, "decode step, batch 64", 0.9),
    (Shape::Qwen06b, "decode step, batch 256", 1.8),
    (Shape::Qwen06b, "512 mixed requests at once", 40_000.0),
];

/// All rows.
pub struct Table {
    rows: Vec<Row>,
    notes: Vec<String>,
}

struct Row {
    shape: Shape,
    row: String,
    unit: String,
    quire: Option<f64>,
    peer: Side,
    theirs: Option<f64>,
}

impl Row {
    fn less_is_better(&self) -> bool {
        matches!(self.unit.as_str(), "s" | "ms")
    }

    /// How many times as fast Quire is.
    fn ratio(&self) -> Option<f64> {
        let (quire, theirs) = (self.quire?, self.theirs?);
        Some(if self.less_is_better() { theirs / quire } else { quire / theirs })
    }

    fn goal(&self) -> Option<f64> {
        GOALS.iter().find(|(shape, row, _)| *shape == self.shape && *row == self.row).map(|(.., bound)| *bound)
    }

    fn meets_goal(&self) -> Option<bool> {
        let (value, goal) = (self.quire?, self.goal()?);
        Some(if self.less_is_better() { value <= goal } else { value >= goal })
    }
}

impl Table {
    pub fn new(read: &Read) -> Self {
        let shapes: BTreeSet<Shape> = read.figures.keys().map(|(shape, _)| *shape).collect();
        let is_there = |peer: &Side| read.figures.keys().any(|(_, side)| side == peer);
        let mut peers: Vec<Side> = Side::PEERS.into_iter().filter(is_there).collect();
        if peers.is_empty() {
            peers.push(Side::Vllm);
        }
        let mut rows: Vec<Row> = Vec::new();
        for (peer, shape) in peers.iter().flat_map(|peer| shapes.iter().map(move |shape| (*peer, *shape))) {
            let of = |side: Side| read.figures.get(&(shape, side)).map_or(&[][..], Vec::as_slice);
            let mut names: Vec<&Figure> = of(Side::Quire).iter().collect();
            let only_theirs = |theirs: &&Figure| !of(Side::Quire).iter().any(|ours| ours.row == theirs.row);
            names.extend(of(peer).iter().filter(only_theirs));
            for Figure { row, unit, .. } in names {
                let value = |side| of(side).iter().find(|figure| figure.row == *row).map(|figure| figure.value);
                let (quire, theirs) = (value(Side::Quire), value(peer));
                rows.push(Row { shape, row: row.clone(), unit: unit.clone(), quire, peer, theirs });
            }
        }
        Self { rows, notes: read.notes.clone() }
    }

    /// For people.
    pub fn markdown(&self) -> String {
        let mut text: String = self.notes.iter().map(|note| format!("{note}\n")).collect();
        let mut peer = None;
        for row in &self.rows {
            if peer.replace(row.peer) != Some(row.peer) {
                let peer = row.peer.title();
                text.push_str(&format!(
                    "\n| model | work | Quire | {peer} | ratio | goal |\n|---|---|---|---|---|---|\n"
                ));
            }
            let value =
                |value: Option<f64>| value.map_or("".to_owned(), |value| format!("{} {}", short(value), row.unit));
            let ratio = row.ratio().map_or(String::new(), |ratio| format!("{ratio:.2}"));
            let bound = if row.less_is_better() { '≤' } else { '≥' };
            let met = if row.meets_goal() == Some(false) { ", missed" } else { "" };
            let goal = row.goal().map_or(String::new(), |goal| format!("{bound} {}{met}", short(goal)));
            let (title, name) = (row.shape.title(), &row.row);
            text.push_str(&format!(
                "| {title} | {name} | {} | {} | {ratio} | {goal} |\n",
                value(row.quire),
                value(row.theirs)
            ));
        }
        text
    }

    /// For programs.
    pub fn json(&self) -> String {
        let row = |row: &Row| {
            json!({"model": row.shape.to_string(), "row": row.row, "unit": row.unit, "quire": row.quire,
                row.peer.to_string(): row.theirs, "ratio": row.ratio(), "goal": row.goal(),
                "meets_goal": row.meets_goal()})
        };
        json!({"notes": self.notes, "rows": self.rows.iter().map(row).collect::<Vec<Value>>()}).to_string()
    }
}

/// Three digits that count, thousands apart.
fn short(value: f64) -> String {
    match value {
        _ if value < 10.0 => format!("{value:.2}"),
        _ if value < 1000.0 => format!("{value:.1}"),
        _ => {
            let whole = format!("{value:.0}");
            let groups = whole.as_bytes().rchunks(3).rev().map(String::from_utf8_lossy);
            groups.collect::<Vec<_>>().join(",")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(quire: &[(&str, &str, f64)], vllm: &[(&str, &str, f64)]) -> Table {
        let figures =
            |list: &[(&str, &str, f64)]| list.iter().map(|(row, unit, value)| Figure::new(row, unit, *value)).collect();
        let both = [((Shape::Llama8b, Side::Quire), figures(quire)), ((Shape::Llama8b, Side::Vllm), figures(vllm))];
        Table::new(&Read { figures: both.into_iter().collect(), notes: vec!["gpu: H".to_owned()] })
    }

    #[test]
    fn ratios_tell_how_many_times_as_fast() {
        let table = table(
            &[("decode step, batch 1", "ms", 4.0), ("512 mixed requests at once", "out tok/s", 15_000.0)],
            &[("decode step, batch 1", "ms", 5.0), ("512 mixed requests at once", "out tok/s", 10_000.0)],
        );
        let text = table.markdown();
        assert!(
            text.contains("| Llama-8B | decode step, batch 1 | 4.00 ms | 5.00 ms | 1.25 | ≤ 3.90, missed |"),
            "{text}"
        );
        assert!(text.contains("| 15,000 out tok/s | 10,000 out tok/s | 1.50 | ≥ 12,500 |"), "{text}");
        let json: Value = serde_json::from_str(&table.json()).unwrap();
        assert_eq!(
            (json["rows"][0]["ratio"].as_f64(), json["rows"][0]["meets_goal"].as_bool()),
            (Some(1.25), Some(false))
        );
    }

    #[test]
    fn a_row_of_one_side_has_no_ratio() {
        let text = table(&[], &[("start to serving", "s", 60.0)]).markdown();
        assert!(text.contains("| Llama-8B | start to serving |  | 60.0 s |  |  |"), "{text}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.514, 12.34, 999.94, 1234.5, 1_234_567.0].map(short),
            ["0.51", "12.3", "999.9", "1,234", "1,234,567"]
        );
    }
}
