//! The choice of experts of each row, and their weights, against float64.

use super::{Random, backends, check_relative, encode, filled, host, poisoned};
use kernels::ops::{
    Backend, DType, Epilogue, ExpertGroups, ExpertRouting, MatrixGroup, MatrixUse, RouterScore, Routing,
};

/// The best two by their share, as they are.
pub(super) const PLAIN: Routing =
    Routing { score: RouterScore::Softmax, correction: None, groups: None, top_k: 2, renormalise: false, scale: 1.0 };

/// Weights of all experts of a row, zero for those not chosen.
pub(super) fn reference(logits: &[f32], routing: &Routing, correction: &[f32]) -> Vec<f64> {
    let logits: Vec<f64> = logits.iter().copied().map(f64::from).collect();
    let sum: f64 = logits.iter().map(|x| x.exp()).sum();
    let score = |x: &f64| match routing.score {
        RouterScore::Softmax => x.exp() / sum,
        RouterScore::Sigmoid => 1.0 / (1.0 + (-x).exp()),
    };
    let scores: Vec<f64> = logits.iter().map(score).collect();
    let mut merits: Vec<f64> = scores.iter().zip(correction).map(|(x, shift)| x + f64::from(*shift)).collect();
    if let Some(ExpertGroups { count, kept, best }) = routing.groups {
        let size = merits.len() / count;
        let worth = |group: usize| {
            let mut sorted = merits[group * size..][..size].to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted[..best].iter().sum::<f64>()
        };
        let mut groups: Vec<usize> = (0..count).collect();
        groups.sort_by(|a, b| worth(*b).total_cmp(&worth(*a)));
        for &group in &groups[kept..] {
            merits[group * size..][..size].fill(f64::NEG_INFINITY);
        }
    }
    let mut experts: Vec<usize> = (0..merits.len()).collect();
    experts.sort_by(|a, b| merits[*b].total_cmp(&merits[*a]));
    let chosen = &experts[..routing.top_k];
    let total: f64 = if routing.renormalise { chosen.iter().map(|&expert| scores[expert]).sum() } else { 1.0 };
    let mut weights = vec![0.0; merits.len()];
    chosen.iter().for_each(|&expert| weights[expert] = scores[expert] / total * f64::from(routing.scale));
    weights
}

/// Experts that answer with their number: expert `e` turns 1 into the unit vector `e`.
fn numbers(backend: &mut dyn Backend, experts: usize) -> MatrixGroup {
    let unit = |expert: usize| (0..experts).map(|i| if i == expert { 1.0 } else { 0.0 }).collect::<Vec<f32>>();
    let load =
        |expert| backend.load_matrix(host(DType::F32, experts, 1, &encode(&unit(expert), DType::F32).0), DType::F32);
    let members: Vec<_> = (0..experts).map(load).collect();
    backend.group_matrices(&members, MatrixUse::Experts)
}

/// Weights `[rows, experts]` that a choice gives, zero for experts that were not chosen.
fn weights(
    backend: &mut dyn Backend,
    numbers: MatrixGroup,
    choice: ExpertRouting,
    rows: usize,
    experts: usize,
    top_k: usize,
) -> Vec<f32> {
    let pairs = backend.new_act(rows * top_k, experts);
    let (ones, out) = (filled(backend, 1, &vec![1.0; rows]), poisoned(backend, rows, experts));
    backend.expert_matmul(ones, numbers, None, choice, pairs);
    backend.combine(pairs, choice, Epilogue::Store, out);
    backend.read(out).to_vec()
}

/// The choice of experts that these logits give.
pub(super) fn route(backend: &mut dyn Backend, experts: usize, logits: &[f32], routing: Routing) -> ExpertRouting {
    let rows = logits.len() / experts;
    let choice = backend.new_expert_routing(rows, routing.top_k);
    let logits = filled(backend, experts, logits);
    backend.route(logits, routing, choice);
    choice
}

#[test]
fn rows_choose_as_defined() {
    let groups = |count, kept, best| Some(ExpertGroups { count, kept, best });
    let cases = [
        (4, PLAIN),
        (8, Routing { top_k: 3, renormalise: true, ..PLAIN }),
        (6, Routing { top_k: 1, scale: 2.5, ..PLAIN }),
        (8, Routing { top_k: 3, groups: groups(4, 2, 1), scale: 4.0, ..PLAIN }),
        (
            16,
            Routing {
                score: RouterScore::Sigmoid,
                top_k: 4,
                groups: groups(4, 2, 2),
                renormalise: true,
                scale: 2.5,
                ..PLAIN
            },
        ),
        (160, Routing { score: RouterScore::Sigmoid, top_k: 6, ..PLAIN }),
        (5, Routing { top_k: 5, ..PLAIN }),
    ];
    for mut backend in backends() {
        for (experts, routing) in cases {
            for corrected in [false, true] {
                let rows = 37;
                let mut random = Random(experts as u64);
                let logits = random.values(rows * experts);
                let correction = if corrected { random.values(experts) } else { vec![0.0; experts] };
                let vector = corrected.then(|| backend.load_vector(&correction));
                let want: Vec<f64> =
                    logits.chunks(experts).flat_map(|row| reference(row, &routing, &correction)).collect();
                let choice = route(&mut *backend, experts, &logits, Routing { correction: vector, ..routing });
                let numbers = numbers(&mut *backend, experts);
                let got = weights(&mut *backend, numbers, choice, rows, experts, routing.top_k);
                check_relative(&format!("{} {routing:?}", backend.describe()), &got, &want, 2e-6);
            }
        }
    }
}

#[test]
fn ties_go_to_the_lower_number_and_no_number_harms_nobody() {
    let routing = Routing { top_k: 3, renormalise: true, ..PLAIN };
    for mut backend in backends() {
        let mut logits = vec![f32::NAN; 4];
        logits.extend([0.5; 4]);
        logits.extend([f32::INFINITY, f32::NEG_INFINITY, 0.0, 1.0]);
        logits.extend([f32::NEG_INFINITY; 4]);
        for score in [RouterScore::Softmax, RouterScore::Sigmoid] {
            let choice = route(&mut *backend, 4, &logits, Routing { score, ..routing });
            let numbers = numbers(&mut *backend, 4);
            let got = weights(&mut *backend, numbers, choice, 4, 4, 3);
            check_relative("ties", &got[4..8], &[1.0 / 3.0, 1.0 / 3.0, 1.0 / 3.0, 0.0], 1e-6);
        }
    }
}
