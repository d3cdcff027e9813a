//! Turns the outcomes of a run into the figures that `vllm bench serve` reports.

use std::time::Duration;

use super::{args::Metric, measure::Outcome};

/// The figures of a run.
#[derive(Clone, Debug)]
pub struct Figures {
    /// Requests with a whole answer.
    pub completed: usize,
    /// All others.
    pub failed: usize,
    /// From the first request's start to the last one's end, seconds.
    pub duration_s: f64,
    /// Prompt tokens of completed requests.
    pub input_tokens: usize,
    /// Generated tokens of completed requests.
    pub output_tokens: usize,
    /// Completed requests that kept every `--goodput` bound; absent without bounds.
    pub good: Option<usize>,
    /// Most tokens in one second of the run.
    pub peak_tokens_per_s: f64,
    /// Most requests in flight at one time.
    pub peak_concurrent: usize,
    /// Distributions, milliseconds, in the order ttft, tpot, itl, e2el.
    pub distributions: Vec<(Metric, Distribution)>,
}

/// Sorted values.
#[derive(Clone, Debug, Default)]
pub struct Distribution {
    sorted: Vec<f64>,
}

impl Figures {
    /// Computes all figures.
    pub fn new(outcomes: &[Outcome], duration: Duration, goodput: &[(Metric, f64)]) -> Self {
        let completed: Vec<_> = outcomes.iter().filter(|outcome| outcome.error.is_none()).collect();
        let good = || {
            completed
                .iter()
                .filter(|outcome| goodput.iter().all(|(metric, bound_ms)| keeps(outcome, *metric, *bound_ms)))
                .count()
        };
        let of = |metric| (metric, Distribution::new(completed.iter().flat_map(|outcome| values(outcome, metric))));
        Self {
            completed: completed.len(),
            failed: outcomes.len() - completed.len(),
            duration_s: duration.as_secs_f64(),
            input_tokens: completed.iter().map(|outcome| outcome.input_tokens).sum(),
            output_tokens: completed.iter().map(|outcome| outcome.output_tokens).sum(),
            good: (!goodput.is_empty()).then(good),
            peak_tokens_per_s: peak_tokens(&completed),
            peak_concurrent: peak_concurrent(outcomes),
            distributions: vec![of(Metric::Ttft), of(Metric::Tpot), of(Metric::Itl), of(Metric::E2el)],
        }
    }

    /// Something counted, per second of the run.
    pub fn per_second(&self, count: usize) -> f64 {
        if self.duration_s > 0.0 { count as f64 / self.duration_s } else { 0.0 }
    }
}

impl Distribution {
    /// Takes values in any order.
    pub fn new(values: impl IntoIterator<Item = f64>) -> Self {
        let mut sorted: Vec<_> = values.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        Self { sorted }
    }

    /// Arithmetic mean; 0 without values.
    pub fn mean(&self) -> f64 {
        if self.sorted.is_empty() { 0.0 } else { self.sorted.iter().sum::<f64>() / self.sorted.len() as f64 }
    }

    /// Standard deviation of the population.
    pub fn deviation(&self) -> f64 {
        let mean = self.mean();
        let squares: f64 = self.sorted.iter().map(|value| (value - mean).powi(2)).sum();
        if self.sorted.is_empty() { 0.0 } else { (squares / self.sorted.len() as f64).sqrt() }
    }

    /// The percentile, interpolated between neighbours as numpy does by default; 0 without values.
    pub fn percentile(&self, percent: f64) -> f64 {
        let Some(last) = self.sorted.len().checked_sub(1) else { return 0.0 };
        let place = percent / 100.0 * last as f64;
        let low = place.floor() as usize;
        let (below, above) = (self.sorted[low.min(last)], self.sorted[(low + 1).min(last)]);
        below + (above - below) * (place - low as f64)
    }
}

/// A request's values of a metric, milliseconds.
fn values(outcome: &Outcome, metric: Metric) -> Vec<f64> {
    let millis = |duration: Duration| duration.as_secs_f64() * 1e3;
    match metric {
        Metric::Ttft => outcome.ttft.map(millis).into_iter().collect(),
        Metric::Tpot => outcome.tpot().map(millis).into_iter().collect(),
        Metric::Itl => outcome.gaps.iter().map(|gap| f64::from(*gap) * 1e3).collect(),
        Metric::E2el => vec![millis(outcome.latency())],
    }
}

fn keeps(outcome: &Outcome, metric: Metric, bound_ms: f64) -> bool {
    values(outcome, metric).iter().all(|value| *value <= bound_ms)
}

/// Most tokens whose events fell into one second of the run; an event counts for its share of the answer's tokens.
fn peak_tokens(outcomes: &[&Outcome]) -> f64 {
    let mut seconds = Vec::<f64>::new();
    for outcome in outcomes {
        let Some(ttft) = outcome.ttft else { continue };
        let share = outcome.output_tokens as f64 / (outcome.gaps.len() + 1) as f64;
        let mut at = (outcome.start + ttft).as_secs_f64();
        for gap in outcome.gaps.iter().map(Some).chain([None]) {
            let second = at as usize;
            if seconds.len() <= second {
                seconds.resize(second + 1, 0.0);
            }
            seconds[second] += share;
            at += gap.map_or(0.0, |gap| f64::from(*gap));
        }
    }
    seconds.into_iter().fold(0.0, f64::max)
}

fn peak_concurrent(outcomes: &[Outcome]) -> usize {
    let mut changes: Vec<_> = outcomes.iter().flat_map(|outcome| [(outcome.start, 1_i64), (outcome.end, -1)]).collect();
    // An end and a start at the same time do not overlap: -1 sorts first.
    changes.sort_unstable();
    let mut running = 0;
    changes
        .iter()
        .map(|(_, change)| {
            running += change;
            running
        })
        .max()
        .unwrap_or(0) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(start_ms: u64, end_ms: u64, ttft_ms: u64, gaps: &[f32]) -> Outcome {
        Outcome {
            start: Duration::from_millis(start_ms),
            end: Duration::from_millis(end_ms),
            ttft: Some(Duration::from_millis(ttft_ms)),
            gaps: gaps.to_vec(),
            input_tokens: 10,
            output_tokens: gaps.len() + 1,
            error: None,
        }
    }

    #[test]
    fn percentiles_interpolate() {
        let four = Distribution::new([4.0, 1.0, 3.0, 2.0]);
        for (percent, value) in [(0.0, 1.0), (50.0, 2.5), (99.0, 3.97), (100.0, 4.0)] {
            assert!((four.percentile(percent) - value).abs() < 1e-9, "{percent}");
        }
        assert_eq!(four.mean(), 2.5);
        assert!((four.deviation() - 1.25_f64.sqrt()).abs() < 1e-12);
        let none = Distribution::default();
        assert_eq!((none.mean(), none.percentile(99.0), none.deviation()), (0.0, 0.0, 0.0));
    }

    #[test]
    fn figures_count_what_completed() {
        let mut lost = outcome(0, 100, 50, &[]);
        lost.error = Some("lost".to_owned());
        let outcomes = [outcome(0, 1000, 100, &[0.5, 0.5]), outcome(500, 1500, 200, &[0.8]), lost];
        let figures = Figures::new(&outcomes, Duration::from_secs(2), &[(Metric::Ttft, 150.0)]);
        assert_eq!((figures.completed, figures.failed, figures.good), (2, 1, Some(1)));
        assert_eq!((figures.input_tokens, figures.output_tokens), (20, 5));
        assert_eq!(figures.per_second(figures.output_tokens), 2.5);
        // Events at 0.1, 0.6, 1.1 and 0.7, 1.5.
        assert_eq!(figures.peak_tokens_per_s, 3.0);
        assert_eq!(figures.peak_concurrent, 2);
        let [ttft, tpot, itl, e2el] = &figures.distributions[..] else { panic!() };
        assert_eq!(ttft.1.mean().round(), 150.0);
        assert_eq!(tpot.1.mean().round(), 625.0, "(450 + 800) / 2");
        assert_eq!(itl.1.percentile(100.0).round(), 800.0);
        assert_eq!(e2el.1.mean().round(), 1000.0);
    }

    #[test]
    fn back_to_back_requests_do_not_overlap() {
        assert_eq!(peak_concurrent(&[outcome(0, 10, 1, &[]), outcome(10, 20, 1, &[])]), 1);
        assert_eq!(peak_concurrent(&[]), 0);
    }
}
