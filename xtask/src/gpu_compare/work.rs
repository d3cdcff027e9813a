//! What is measured without servers: the cases that both sides get, and the rows of the table that come out of them.

use serde_json::{Value, json};

use super::{
    figure::{Figure, Line},
    shape::Shape,
};

/// Prompts of one case: tokens in, tokens out.
type Prompts = Vec<(u32, u32)>;

const BATCHES: &[u32] = &[1, 8, 32, 64, 128, 256];
const BATCHES_OF_MIXTURES: &[u32] = &[1, 8, 64, 256];
/// Prompts, and tokens of each.
const PREFILLS: &[(u32, u32)] = &[(1, 512), (1, 2048), (1, 8192), (16, 2048)];
const PREFILLS_OF_MIXTURES: &[(u32, u32)] = &[(1, 2048), (1, 8192)];
/// Tokens of the prompts whose decode steps are timed.
const DECODE_INPUT: u32 = 128;
/// A step's time is the difference of two runs of these lengths over the difference of the lengths: prefill drops out.
const DECODE_OUTPUTS: (u32, u32) = (8, 264);
/// Requests of mixed lengths, all at once: how many, and the bounds of their input and output.
const MIXED: (u64, (u32, u32), (u32, u32)) = (512, (64, 1024), (64, 512));
const PREFILL_RUNS: usize = 3;
/// Seconds between warming up and measuring.
pub const PAUSE_S: f64 = 10.0;

/// The lines of the file that both sides read.
pub fn cases(shape: Shape) -> String {
    let mut lines = vec![case("warm-up 4x64", vec![(64, 16); 4], 1), case("warm-up 64x512", vec![(512, 32); 64], 1)];
    // Quire records its decode steps and measures products when it has nothing else to do; vLLM does so before it is
    // ready.
    lines.push(json!({"name": "after a pause", "prompts": [(64, 16)], "idle_s": PAUSE_S}));
    for batch in batches(shape) {
        for output in [DECODE_OUTPUTS.0, DECODE_OUTPUTS.1] {
            // The first run meets the batch size for the first time.
            let runs = if output == DECODE_OUTPUTS.0 { 2 } else { 1 };
            lines.push(case(&decode_name(*batch, output), vec![(DECODE_INPUT, output); *batch as usize], runs));
        }
    }
    for (count, len) in prefills(shape) {
        lines.push(case(&prefill_name(*count, *len), vec![(*len, 1); *count as usize], PREFILL_RUNS));
    }
    if !shape.is_mixture() {
        lines.push(case(&mixed_name(), mixed(), 1));
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// What the lines that a side wrote come to.
pub fn figures(shape: Shape, lines: &[Line]) -> Vec<Figure> {
    let find = |name: &str| lines.iter().find(|line| line.name == name);
    let mut figures = Vec::new();
    figures.extend(find("startup").map(|line| Figure::new("start to first token", "s", line.best())));
    for batch in batches(shape) {
        let (short, long) = DECODE_OUTPUTS;
        let runs = (find(&decode_name(*batch, short)), find(&decode_name(*batch, long)));
        if let (Some(first), Some(second)) = runs {
            let step = (second.best() - first.best()) / f64::from(long - short);
            figures.push(Figure::new(&format!("decode step, batch {batch}"), "ms", step * 1e3));
        }
    }
    for (count, len) in prefills(shape) {
        let Some(line) = find(&prefill_name(*count, *len)) else { continue };
        let row = format!("prefill {count}×{len}");
        figures.push(match count {
            1 => Figure::new(&row, "ms", line.best() * 1e3),
            _ => Figure::new(&row, "tok/s", line.input_tokens as f64 / line.best()),
        });
    }
    let row = format!("{} mixed requests at once", MIXED.0);
    figures.extend(
        find(&mixed_name()).map(|line| Figure::new(&row, "out tok/s", line.output_tokens as f64 / line.best())),
    );
    figures
}

/// The time of each line's best run, for cases that are not the table's.
pub fn plain_figures(lines: &[Line]) -> Vec<Figure> {
    lines.iter().map(|line| Figure::new(&line.name, "ms", line.best() * 1e3)).collect()
}

fn case(name: &str, prompts: Prompts, runs: usize) -> Value {
    json!({"name": name, "prompts": prompts, "runs": runs})
}

fn batches(shape: Shape) -> &'static [u32] {
    if shape.is_mixture() { BATCHES_OF_MIXTURES } else { BATCHES }
}

fn prefills(shape: Shape) -> &'static [(u32, u32)] {
    if shape.is_mixture() { PREFILLS_OF_MIXTURES } else { PREFILLS }
}

fn decode_name(batch: u32, output: u32) -> String {
    format!("decode {batch}x{DECODE_INPUT}+{output}")
}

fn prefill_name(count: u32, len: u32) -> String {
    format!("prefill {count}x{len}")
}

fn mixed_name() -> String {
    format!("mixed {}", MIXED.0)
}

/// Lengths drawn evenly between their bounds, the same ones every time.
fn mixed() -> Prompts {
    let (count, input, output) = MIXED;
    let draw = |at: u64, (least, most): (u32, u32)| least + (mix(at) % u64::from(most - least + 1)) as u32;
    (0..count).map(|at| (draw(2 * at, input), draw(2 * at + 1, output))).collect()
}

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_lengths_keep_their_bounds_and_spread() {
        let prompts = mixed();
        assert_eq!(prompts.len(), 512);
        assert!(prompts.iter().all(|(input, output)| (64..=1024).contains(input) && (64..=512).contains(output)));
        let mean = |length: fn(&(u32, u32)) -> u32| prompts.iter().map(|p| f64::from(length(p))).sum::<f64>() / 512.0;
        assert!((500.0..590.0).contains(&mean(|p| p.0)) && (265.0..311.0).contains(&mean(|p| p.1)));
    }

    #[test]
    fn a_step_is_the_difference_of_two_runs() {
        let line = |name: &str, seconds: f64| Line {
            name: name.to_owned(),
            seconds: vec![9.0, seconds],
            input_tokens: 1024,
            output_tokens: 64,
        };
        let lines = [
            line("decode 8x128+8", 0.5),
            line("decode 8x128+264", 1.78),
            line("prefill 16x2048", 0.5),
            line("mixed 512", 2.0),
        ];
        let figures: Vec<_> = figures(Shape::Llama8b, &lines).into_iter().map(|f| (f.row, f.unit, f.value)).collect();
        let row = |row: &str, unit: &str, value: f64| (row.to_owned(), unit.to_owned(), value);
        assert_eq!(figures[0].0, "decode step, batch 8");
        assert!((figures[0].2 - 5.0).abs() < 1e-9);
        assert_eq!(
            figures[1..],
            [row("prefill 16×2048", "tok/s", 2048.0), row("512 mixed requests at once", "out tok/s", 32.0)]
        );
    }

    #[test]
    fn every_case_gives_a_row_or_warms_up() {
        for shape in [Shape::Llama8b, Shape::Qwen30b] {
            let lines: Vec<Line> = cases(shape)
                .lines()
                .map(|line| serde_json::from_str::<Value>(line).unwrap()["name"].as_str().unwrap().to_owned())
                .map(|name| Line { name, seconds: vec![1.0], input_tokens: 1, output_tokens: 1 })
                .collect();
            let steps = batches(shape).len();
            assert_eq!(figures(shape, &lines).len(), lines.len() - 3 - steps);
        }
    }
}
