//! A chart of pairs of bars as an SVG document, readable on light and on dark pages.

use svg::{
    Document, Node,
    node::element::{Rectangle, Style, Text, Title},
};

use super::results::Pair;

/// Sizes in user units, which are pixels at 100 %.
const WIDTH: f64 = 800.0;
const MARGIN: f64 = 16.0;
const LABELS: f64 = 240.0;
/// Of the longest bar; what follows it is the figure and the ratio.
const BAR: f64 = 370.0;
const THICKNESS: f64 = 13.0;
const GAP: f64 = 2.0;
const ROW: f64 = 2.0 * THICKNESS + GAP + 14.0;
const LINE: f64 = 18.0;

/// Colours pass 4.5:1 as text on white and on GitHub's dark background.
const STYLE: &str = "
text { font: 13px -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif; fill: #1f2328; }
.title { font-size: 16px; font-weight: 600; }
.head { font-weight: 600; }
.note { font-size: 11px; fill: #59636e; }
.figure { font-size: 12px; }
.ratio { font-weight: 600; text-anchor: end; }
.quire { fill: #0969da; }
.vllm { fill: #9aa4af; }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc; }
.note { fill: #9198a1; }
.quire { fill: #4493f8; }
.vllm { fill: #6e7681; }
}
";

/// The document.
pub fn svg(title: &str, caption: &[String], pairs: &[Pair]) -> String {
    // What a screen reader says comes first.
    let mut chart = Chart { nodes: vec![Title::new(title).into(), Style::new(STYLE).into()], y: MARGIN };
    chart.head(title);
    let (times, throughputs): (Vec<&Pair>, Vec<&Pair>) = pairs.iter().partition(|pair| pair.is_time());
    chart.section("Time: shorter is better", &times);
    chart.section("Throughput: longer is better", &throughputs);
    chart.caption(caption);
    chart.finish()
}

struct Chart {
    nodes: Vec<Box<dyn Node>>,
    /// Where the next line begins.
    y: f64,
}

impl Chart {
    fn head(&mut self, title: &str) {
        self.y += LINE;
        self.add(text(MARGIN, self.y, "title", title));
        let legend = [("quire", "Quire"), ("vllm", "vLLM")];
        for (place, (class, name)) in legend.into_iter().enumerate() {
            let x = WIDTH - MARGIN - 130.0 + 70.0 * place as f64;
            self.add(bar(x, self.y - 11.0, 12.0, class));
            self.add(text(x + 17.0, self.y, "figure", name));
        }
        self.y += 8.0;
    }

    /// Pairs of one kind, each to its own scale, since units differ.
    fn section(&mut self, head: &str, pairs: &[&Pair]) {
        if pairs.is_empty() {
            return;
        }
        self.y += LINE;
        self.add(text(MARGIN, self.y, "head", head));
        self.y += 12.0;
        for pair in pairs {
            self.pair(pair);
        }
    }

    fn pair(&mut self, pair: &Pair) {
        let longest = pair.quire.max(pair.vllm);
        let x = MARGIN + LABELS;
        self.add(text(MARGIN, self.y + THICKNESS + GAP + 3.0, "label", &pair.label));
        for (place, (class, value)) in [("quire", pair.quire), ("vllm", pair.vllm)].into_iter().enumerate() {
            let y = self.y + place as f64 * (THICKNESS + GAP);
            let width = BAR * value / longest;
            self.add(bar(x, y, width, class));
            let figure = format!("{} {}", short(value), pair.unit);
            self.add(text(x + width + 6.0, y + THICKNESS - 2.5, "figure", &figure));
        }
        let ratio = format!("{} ×", short(pair.ratio()));
        self.add(text(WIDTH - MARGIN, self.y + THICKNESS + GAP + 3.0, "ratio", &ratio));
        self.y += ROW;
    }

    fn caption(&mut self, lines: &[String]) {
        for line in lines {
            self.y += LINE - 2.0;
            self.add(text(MARGIN, self.y, "note", line));
        }
    }

    fn add(&mut self, node: impl Into<Box<dyn Node>>) {
        self.nodes.push(node.into());
    }

    fn finish(self) -> String {
        let document = Document::new().set("viewBox", (0, 0, WIDTH, self.y + MARGIN)).set("role", "img");
        self.nodes.into_iter().fold(document, |document, node| document.add(node)).to_string() + "\n"
    }
}

fn text(x: f64, y: f64, class: &str, words: &str) -> Text {
    Text::new(words).set("class", class).set("x", x).set("y", y)
}

fn bar(x: f64, y: f64, width: f64, class: &str) -> Rectangle {
    let shape = Rectangle::new().set("class", class).set("x", x).set("y", y);
    shape.set("width", (width * 10.0).round() / 10.0).set("height", THICKNESS).set("rx", 2)
}

/// Three digits that count, thousands apart.
fn short(value: f64) -> String {
    match value {
        _ if value < 9.995 => format!("{value:.2}"),
        _ if value < 99.95 => format!("{value:.1}"),
        _ if value < 1000.0 => format!("{value:.0}"),
        _ => format!("{},{:03}", value as u64 / 1000, value.round() as u64 % 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(label: &str, unit: &str, quire: f64, vllm: f64) -> Pair {
        Pair { label: label.to_owned(), unit: unit.to_owned(), quire, vllm }
    }

    #[test]
    fn the_longer_bar_fills_the_width() {
        let drawn = svg("A & B", &["gpu: H".to_owned()], &[pair("step", "ms", 2.0, 4.0)]);
        assert!(drawn.contains(r#"class="quire" height="13" rx="2" width="185""#), "{drawn}");
        assert!(drawn.contains(r#"class="vllm" height="13" rx="2" width="370""#), "{drawn}");
        assert!(drawn.contains("A &amp; B") && drawn.contains("2.00 ×"), "{drawn}");
        assert!(!drawn.contains("Throughput"), "{drawn}");
    }

    #[test]
    fn figures_are_short() {
        assert_eq!([0.514, 12.34, 999.4, 9236.0, 450_000.0].map(short), ["0.51", "12.3", "999", "9,236", "450,000"]);
    }
}
