//! Whole choices: greedy, frequencies against the softmax, seeds, and rows that hold anything at all.

use proptest::prelude::*;
use proto::{LogitBias, Sampling, TokenIds};
use sampling::{History, Sampled, SamplingPlan, Scratch, sample};

fn choose(row: &[f32], plan: &SamplingPlan, history: &History) -> Sampled {
    sample(&mut row.to_vec(), plan, history, &mut Scratch::default())
}

/// `count` tokens, one output position after the other, all from the same row.
fn generate(row: &[f32], sampling: &Sampling, seed: u64, count: usize) -> Vec<u32> {
    let plan = SamplingPlan::compile(sampling, seed, &[]);
    let mut history = History::new(vec![1], 1, &plan);
    let mut scratch = Scratch::default();
    for _ in 0..count {
        let token = sample(&mut row.to_vec(), &plan, &history, &mut scratch).token;
        history.push(token);
    }
    history.output().to_vec()
}

fn softmax(row: &[f32], temperature: f64) -> Vec<f64> {
    let weights: Vec<f64> = row.iter().map(|&x| (f64::from(x) / temperature).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}

#[test]
fn greedy_takes_the_best_and_the_lowest_of_equals() {
    let plan = SamplingPlan::compile(&Sampling::default(), 1, &[]);
    let history = History::new(vec![], 0, &plan);
    assert_eq!(choose(&[0.0, 3.0, 3.0, 1.0], &plan, &history), Sampled { token: 1, logprobs: None });
    assert!(plan.is_greedy());
}

#[test]
fn frequencies_follow_the_softmax() {
    let row: Vec<f32> = (0..24).map(|i| ((i * 7) % 24) as f32 / 8.0).collect();
    for (temperature, seed) in [(1.0, 11), (0.7, 12), (1.6, 13)] {
        const DRAWS: usize = 40_000;
        let sampling = Sampling { temperature: temperature as f32, ..Default::default() };
        let mut counts = vec![0.0f64; row.len()];
        generate(&row, &sampling, seed, DRAWS).iter().for_each(|&token| counts[token as usize] += 1.0);
        let expected = softmax(&row, temperature).into_iter().map(|p| p * DRAWS as f64);
        let chi_square: f64 = counts.iter().zip(expected).map(|(&n, want)| (n - want).powi(2) / want).sum();
        // The 99.9 % point for 23 degrees of freedom; the seeds are fixed, so this cannot flake.
        assert!(chi_square < 49.7, "temperature {temperature}: {chi_square}");
    }
}

#[test]
fn never_outside_the_nucleus_or_the_top_k() {
    let row: Vec<f32> = (0..200).map(|i| ((i * 37) % 200) as f32 / 20.0).collect();
    let probabilities = softmax(&row, 1.0);
    let mut ranked: Vec<usize> = (0..row.len()).collect();
    ranked.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    let mut sum = 0.0;
    let nucleus = 1 + ranked
        .iter()
        .position(|&id| {
            sum += probabilities[id];
            sum >= 0.95
        })
        .unwrap();
    let inside = |tokens: Vec<u32>, size: usize| {
        let mut seen: Vec<usize> = tokens.iter().map(|&t| t as usize).collect();
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.iter().all(|id| ranked[..size].contains(id)));
        seen.len()
    };
    let top_p = Sampling { temperature: 1.0, top_p: 0.95, ..Default::default() };
    assert_eq!(inside(generate(&row, &top_p, 5, 20_000), nucleus), nucleus, "and all of it is reached");
    let top_k = Sampling { temperature: 2.0, top_k: 7, ..Default::default() };
    assert_eq!(inside(generate(&row, &top_k, 5, 2_000), 7), 7);
}

#[test]
fn a_seed_repeats_itself_and_other_seeds_differ() {
    let row: Vec<f32> = (0..50).map(|i| (i as f32).sin()).collect();
    let sampling = Sampling { temperature: 1.0, top_p: 0.9, ..Default::default() };
    let first = generate(&row, &sampling, 42, 64);
    assert_eq!(first, generate(&row, &sampling, 42, 64));
    assert_ne!(first, generate(&row, &sampling, 43, 64));
    // After a preemption at any place, the rest is the same.
    let plan = SamplingPlan::compile(&sampling, 42, &[]);
    for cut in 0..first.len() {
        let tokens = [&[1], &first[..cut]].concat();
        assert_eq!(choose(&row, &plan, &History::new(tokens, 1, &plan)).token, first[cut]);
    }
}

#[test]
fn logprobs_are_of_the_untouched_row() {
    let sampling = Sampling {
        logprobs: Some(2),
        logit_bias: vec![LogitBias { token: 0, bias: 50.0 }],
        repetition_penalty: 1.5,
        ..Default::default()
    };
    let plan = SamplingPlan::compile(&sampling, 0, &[]);
    let row = [1.0, 3.0, 2.0];
    let got = choose(&row, &plan, &History::new(vec![1], 1, &plan));
    let want: Vec<f64> = softmax(&row, 1.0).iter().map(|p| p.ln()).collect();
    let logprobs = got.logprobs.unwrap();
    assert_eq!((got.token, logprobs.rank), (0, 3));
    assert_eq!(logprobs.top.iter().map(|&(id, _)| id).collect::<Vec<_>>(), [1, 2]);
    assert!((f64::from(logprobs.logprob) - want[0]).abs() < 1e-6);
    assert!(logprobs.top.iter().all(|&(id, value)| (f64::from(value) - want[id as usize]).abs() < 1e-6));
}

#[test]
fn when_all_is_masked_an_allowed_token_is_taken() {
    let sampling = Sampling { allowed_token_ids: vec![3], min_tokens: 2, ..Default::default() };
    let plan = SamplingPlan::compile(&sampling, 0, &[3]);
    assert_eq!(choose(&[1.0; 5], &plan, &History::new(vec![1], 1, &plan)).token, 3);
}

fn any_logit() -> impl Strategy<Value = f32> {
    let odd = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    prop_oneof![8 => -20.0f32..20.0, 1 => any::<f32>(), 3 => prop::sample::select(odd.to_vec())]
}

fn any_sampling() -> impl Strategy<Value = Sampling> {
    let floats = (any::<f32>(), any::<f32>(), any::<f32>(), any::<f32>(), any::<f32>(), any::<f32>());
    let plain = (0.0f32..2.0, 0.0f32..1.0, 0.0f32..1.0, 0.0f32..2.0, -2.0f32..2.0, -2.0f32..2.0);
    let lists = (prop::collection::vec(0u32..40, 0..5), prop::collection::vec(0u32..40, 0..4), any::<u32>());
    (prop_oneof![floats, plain], lists, 0u32..50, 0u32..4, prop::option::of(-1i32..40)).prop_map(
        |(
            (temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty),
            lists,
            top_k,
            min_tokens,
            logprobs,
        )| {
            Sampling {
                temperature,
                top_p,
                top_k,
                min_p,
                repetition_penalty,
                presence_penalty,
                frequency_penalty,
                allowed_token_ids: lists.0.clone(),
                bad_token_ids: vec![TokenIds { ids: lists.1.clone() }],
                logit_bias: vec![LogitBias { token: lists.2, bias: temperature }],
                stop_token_ids: lists.1,
                min_tokens,
                logprobs,
                ..Default::default()
            }
        },
    )
}

proptest! {
    #[test]
    fn anything_goes_in_and_a_token_comes_out(
        row in prop::collection::vec(any_logit(), 1..40),
        sampling in any_sampling(),
        tokens in prop::collection::vec(0u32..64, 0..20),
        seed in any::<u64>(),
    ) {
        let plan = SamplingPlan::compile(&sampling, seed, &[0, 7]);
        let history = History::new(tokens.clone(), tokens.len() / 2, &plan);
        let got = choose(&row, &plan, &history);
        prop_assert!((got.token as usize) < row.len());
        if sampling.allowed_token_ids.iter().any(|&token| (token as usize) < row.len()) {
            prop_assert!(sampling.allowed_token_ids.contains(&got.token));
        }
        prop_assert_eq!(got, choose(&row, &plan, &history));
    }
}

/// `cargo test --release -p sampling --test choose -- --ignored --nocapture`
#[test]
#[ignore = "prints times, asserts nothing"]
fn time_of_a_row() {
    let row: Vec<f32> = (0..151_936).map(|i| 4.0 * sampling::uniform(i, 0).ln().abs() as f32).collect();
    let base = Sampling { temperature: 0.8, ..Default::default() };
    let cases = [
        ("greedy", Sampling::default()),
        ("temperature", base.clone()),
        ("top_k 50", Sampling { top_k: 50, ..base.clone() }),
        ("top_p 0.95", Sampling { top_p: 0.95, ..base.clone() }),
        ("min_p 0.05", Sampling { min_p: 0.05, ..base.clone() }),
        ("20 logprobs", Sampling { logprobs: Some(20), ..base }),
    ];
    let mut scratch = Scratch::default();
    for (name, sampling) in cases {
        let plan = SamplingPlan::compile(&sampling, 1, &[]);
        let mut history = History::new(vec![1], 1, &plan);
        let mut rows = vec![row.clone(); 50];
        let start = std::time::Instant::now();
        rows.iter_mut().for_each(|row| history.push(sample(row, &plan, &history, &mut scratch).token));
        println!("{name}: {:?} a row", start.elapsed() / 50);
    }
}
