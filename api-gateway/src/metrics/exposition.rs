//! Joins the metrics of several processes into one text, as Prometheus wants it: each family once, each series once.
//!
//! Series that several processes report alike are added up: the gateways of one engine count the same things, each its
//! own part.

use std::collections::HashMap;

#[derive(Default)]
struct Family {
    help: String,
    kind: String,
    /// In order of first appearance.
    series: Vec<(String, Sample)>,
    places: HashMap<String, usize>,
}

enum Sample {
    Whole(u64),
    Other(f64),
}

/// Joins texts, in order. Counters are named as in Prometheus' own text format: with `_total` in the family's name too.
pub fn join<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut names: Vec<String> = Vec::new();
    let mut families: HashMap<String, Family> = HashMap::new();
    for text in texts {
        let mut current = String::new();
        for line in text.lines() {
            if let Some((name, kind, rest)) = header(line) {
                current = name.to_owned();
                let family = entry(&mut names, &mut families, name);
                let slot = if kind == "HELP" { &mut family.help } else { &mut family.kind };
                if slot.is_empty() {
                    *slot = rest.to_owned();
                }
            } else if let Some((series, value)) = sample(line) {
                entry(&mut names, &mut families, &current).add(series, value);
            }
        }
    }
    let mut out = String::new();
    for name in &names {
        families[name].write(name, &mut out);
    }
    out
}

fn entry<'f>(names: &mut Vec<String>, families: &'f mut HashMap<String, Family>, name: &str) -> &'f mut Family {
    if !families.contains_key(name) {
        names.push(name.to_owned());
    }
    families.entry(name.to_owned()).or_default()
}

/// `# HELP name text` and `# TYPE name kind`. Counters may be named with or without `_total`.
fn header(line: &str) -> Option<(&str, &str, &str)> {
    let rest = line.strip_prefix("# ")?;
    let (kind, rest) = rest.split_once(' ').filter(|(kind, _)| matches!(*kind, "HELP" | "TYPE"))?;
    let (name, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    Some((name, kind, rest))
}

/// A series with its labels, and its value. The value is what follows the last space outside of quotes.
fn sample(line: &str) -> Option<(&str, &str)> {
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let end_of_labels = line.rfind('}').map_or(0, |at| at + 1);
    let (name, value) = line.split_at(line[end_of_labels..].find(' ')? + end_of_labels);
    Some((name, value.trim().split(' ').next()?))
}

impl Family {
    fn add(&mut self, series: &str, value: &str) {
        let sample = match (value.parse(), value.parse()) {
            (Ok(whole), _) => Sample::Whole(whole),
            (Err(_), Ok(other)) => Sample::Other(other),
            (Err(_), Err(_)) => return,
        };
        match self.places.get(series) {
            Some(place) => self.series[*place].1.add(sample),
            None => {
                self.places.insert(series.to_owned(), self.series.len());
                self.series.push((series.to_owned(), sample));
            }
        }
    }

    fn write(&self, name: &str, out: &mut String) {
        use std::fmt::Write;
        let suffix = if self.kind == "counter" && !name.ends_with("_total") { "_total" } else { "" };
        let kind = if self.kind.is_empty() { "unknown" } else { &self.kind };
        let kind = if kind == "unknown" { "untyped" } else { kind };
        // Writing to a String cannot fail.
        if !name.is_empty() {
            let _ = writeln!(out, "# HELP {name}{suffix} {}\n# TYPE {name}{suffix} {kind}", self.help);
        }
        for (series, sample) in &self.series {
            let _ = match sample {
                Sample::Whole(value) => writeln!(out, "{series} {value}"),
                Sample::Other(value) => writeln!(out, "{series} {value:?}"),
            };
        }
    }
}

impl Sample {
    fn add(&mut self, other: Self) {
        *self = match (&*self, &other) {
            (Self::Whole(a), Self::Whole(b)) => Self::Whole(a.saturating_add(*b)),
            (a, b) => Self::Other(a.float() + b.float()),
        };
    }

    fn float(&self) -> f64 {
        match self {
            Self::Whole(value) => *value as f64,
            Self::Other(value) => *value,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: &str = "# HELP vllm:x Things.\n# TYPE vllm:x counter\nvllm:x_total{m=\"a b} c\"} 3\n\
                       # HELP load Load.\n# TYPE load gauge\nload 0.5\n";
    const TWO: &str = "# HELP load Load.\n# TYPE load gauge\nload 0.25\nload{p=\"2\"} 1\n\
                       # HELP vllm:x Things.\n# TYPE vllm:x counter\nvllm:x_total{m=\"a b} c\"} 4\n# EOF\n";

    #[test]
    fn families_and_series_come_once() {
        let expected = "# HELP vllm:x_total Things.\n# TYPE vllm:x_total counter\nvllm:x_total{m=\"a b} c\"} 7\n\
                        # HELP load Load.\n# TYPE load gauge\nload 0.75\nload{p=\"2\"} 1\n";
        assert_eq!(join([ONE, TWO]), expected);
    }

    #[test]
    fn histograms_keep_their_order() {
        let text =
            "# HELP h H.\n# TYPE h histogram\nh_sum 1.5\nh_count 2\nh_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 2\n";
        assert_eq!(join([text]), text);
    }

    #[test]
    fn garbage_is_left_out() {
        assert_eq!(join(["", "x", "x y", "# TYPE", "\n\n"]), "");
    }
}
