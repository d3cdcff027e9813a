//! Which experts each row goes to, with what weights; and the rows in the order of their experts.

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::{Kernel, Simd, math, vectorize};
use crate::ops::{ExpertGroups, RouterScore, Routing};

/// The choices of a step's rows.
pub(crate) struct Choices {
    max_rows: usize,
    pub(crate) top_k: usize,
    /// Rows of the newest choice.
    pub(crate) rows: usize,
    /// `[rows][top_k]`.
    experts: Vec<u32>,
    pub(crate) weights: Vec<f32>,
    /// Pairs `row * top_k + slot`, by expert and then ascending.
    order: Vec<u32>,
    /// Where each expert's pairs begin in `order`; one more than experts.
    starts: Vec<usize>,
    /// Working memory of rows: scores, and what is chosen by, `[rows][experts]` each.
    scores: Vec<f32>,
    merits: Vec<f32>,
}

impl Choices {
    pub(crate) fn new(max_rows: usize, top_k: usize) -> Self {
        let pairs = max_rows * top_k;
        Self {
            max_rows,
            top_k,
            rows: 0,
            experts: vec![0; pairs],
            weights: vec![0.0; pairs],
            order: vec![0; pairs],
            starts: Vec::new(),
            scores: Vec::new(),
            merits: Vec::new(),
        }
    }

    /// Experts that the choice was made among.
    pub(crate) fn experts(&self) -> usize {
        self.starts.len().saturating_sub(1)
    }

    /// The expert of each pair.
    pub(crate) fn chosen(&self) -> &[u32] {
        &self.experts[..self.rows * self.top_k]
    }

    /// The pairs of an expert, ascending.
    pub(crate) fn pairs(&self, expert: usize) -> &[u32] {
        &self.order[self.starts[expert]..self.starts[expert + 1]]
    }

    /// Sorts pairs by expert: a counting sort, so pairs of an expert keep their order.
    fn sort(&mut self, experts: usize) {
        let chosen = &self.experts[..self.rows * self.top_k];
        self.starts.clear();
        self.starts.resize(experts + 1, 0);
        chosen.iter().for_each(|&expert| self.starts[expert as usize + 1] += 1);
        for expert in 0..experts {
            self.starts[expert + 1] += self.starts[expert];
        }
        // Each start moves up to its end, which is the next one's start.
        for (pair, &expert) in chosen.iter().enumerate() {
            let place = &mut self.starts[expert as usize];
            self.order[*place] = pair as u32;
            *place += 1;
        }
        self.starts.copy_within(..experts, 1);
        self.starts[0] = 0;
    }
}

/// See [`crate::ops::Ops::route`].
pub(crate) fn route(
    isa: Isa,
    pool: &mut Pool,
    logits: View,
    routing: Routing,
    correction: Option<&[f32]>,
    choices: &mut Choices,
) {
    let (experts, top_k) = (logits.width, routing.top_k);
    routing.check(experts, choices.top_k, correction.map(<[f32]>::len));
    assert!(logits.rows <= choices.max_rows, "{} rows in choices for {}", logits.rows, choices.max_rows);
    choices.rows = logits.rows;
    choices.scores.resize(logits.rows * experts, 0.0);
    choices.merits.resize(logits.rows * experts, 0.0);
    let (scores, merits) = (Shared::new(choices.scores.as_mut_ptr()), Shared::new(choices.merits.as_mut_ptr()));
    let (chosen, weights) = (Shared::new(choices.experts.as_mut_ptr()), Shared::new(choices.weights.as_mut_ptr()));
    logits.for_each_row(pool, 4 + top_k, &|row| {
        // SAFETY: a row is one task's, in every buffer; all were made large enough.
        unsafe {
            let scores = std::slice::from_raw_parts_mut(scores.at(row * experts), experts);
            let merits = std::slice::from_raw_parts_mut(merits.at(row * experts), experts);
            let chosen = std::slice::from_raw_parts_mut(chosen.at(row * top_k), top_k);
            let weights = std::slice::from_raw_parts_mut(weights.at(row * top_k), top_k);
            vectorize(isa, Score { logits: logits.row(row), score: routing.score, out: scores });
            let shifts = correction.into_iter().flatten().copied().chain(std::iter::repeat(0.0));
            // What is no number comes last, and is a number from here on.
            let merit = |(score, shift): (&f32, f32)| if (score + shift).is_nan() { f32::MIN } else { score + shift };
            merits.iter_mut().zip(scores.iter().zip(shifts).map(merit)).for_each(|(to, from)| *to = from);
            if let Some(groups) = routing.groups {
                keep_groups(groups, merits);
            }
            choose(merits, chosen);
            weigh(routing, scores, chosen, weights);
        }
    });
    choices.sort(experts);
}

/// A row's scores.
struct Score<'a> {
    logits: &'a [f32],
    score: RouterScore,
    out: &'a mut [f32],
}

impl Kernel for Score<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { logits, score, out } = self;
        let highest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        for start in (0..logits.len()).step_by(S::N) {
            let count = S::N.min(logits.len() - start);
            // SAFETY: `count` elements are left in both.
            unsafe {
                let x = S::load_up_to(logits.as_ptr().add(start), count);
                let y = match score {
                    RouterScore::Softmax => math::exp(x.sub(S::splat(highest))),
                    RouterScore::Sigmoid => math::sigmoid(x),
                };
                y.store_up_to(out.as_mut_ptr().add(start), count);
            }
        }
        if score == RouterScore::Softmax {
            let sum: f32 = out.iter().sum();
            out.iter_mut().for_each(|x| *x /= sum);
        }
    }
}

/// Puts the experts of all but the best groups out of reach.
fn keep_groups(groups: ExpertGroups, merits: &mut [f32]) {
    let size = merits.len() / groups.count;
    let mut worth: Vec<f32> = merits.chunks_exact(size).map(|group| sum_of_best(group, groups.best)).collect();
    let mut kept = vec![false; groups.count];
    for _ in 0..groups.kept {
        let best = highest(&worth);
        (kept[best], worth[best]) = (true, f32::NEG_INFINITY);
    }
    for (group, kept) in merits.chunks_exact_mut(size).zip(kept) {
        if !kept {
            group.fill(f32::NEG_INFINITY);
        }
    }
}

/// Sum of the `count` largest.
fn sum_of_best(values: &[f32], count: usize) -> f32 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let sum = sorted[..count].iter().sum::<f32>();
    // Infinite scores of both signs must not make what nothing compares with.
    if sum.is_nan() { f32::MIN } else { sum.max(f32::MIN) }
}

/// The first of the largest.
fn highest(values: &[f32]) -> usize {
    (1..values.len()).fold(0, |best, i| if values[i] > values[best] { i } else { best })
}

/// The best experts, the best one first; `merits` is used up.
fn choose(merits: &mut [f32], chosen: &mut [u32]) {
    // Real merits lie above what is out of reach, so that a row that has been chosen is never chosen again.
    merits.iter_mut().filter(|merit| **merit != f32::NEG_INFINITY).for_each(|merit| *merit = merit.max(f32::MIN));
    for to in chosen {
        let best = highest(merits);
        (*to, merits[best]) = (best as u32, f32::NEG_INFINITY);
    }
}

/// Weights of the chosen.
fn weigh(routing: Routing, scores: &[f32], chosen: &[u32], weights: &mut [f32]) {
    weights.iter_mut().zip(chosen).for_each(|(weight, &expert)| *weight = scores[expert as usize]);
    let sum = if routing.renormalise { weights.iter().sum::<f32>().max(f32::MIN_POSITIVE) } else { 1.0 };
    weights.iter_mut().for_each(|weight| *weight = *weight / sum * routing.scale);
}
