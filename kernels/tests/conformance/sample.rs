//! Choosing tokens, against the `sampling` crate: the same tokens, counts and seeds, with the same log-probabilities.
//!
//! A backend that sums weights in another order may draw another token where a random number falls within 1e-7 of the
//! border between two; the rows here are few enough that it does not.

use std::collections::HashMap;

use kernels::ops::{Act, Backend, Batch, DType};
use kernels::sample::{Allowed, SampleParams, SampleRow, Sampled, SlotMask, last_token};
use proto::{LogitBias, Sampling, TokenIds};
use sampling::{History, Next, SamplingPlan, Scratch, sample_allowed};

use super::{Random, backends, encode, filled, host};

const END_TOKENS: [u32; 2] = [0, 7];
const SLOTS: u32 = 64;

/// A sequence as the reference has it.
struct Reference {
    plan: SamplingPlan,
    history: History,
}

impl Reference {
    fn new(sampling: &Sampling, seed: u64, tokens: Vec<u32>, num_prompt: usize) -> Self {
        let plan = SamplingPlan::compile(sampling, seed, &END_TOKENS);
        let history = History::new(tokens, num_prompt, &plan);
        Self { plan, history }
    }

    fn row(&self, row: u32, slot: u32) -> SampleRow {
        let position = self.history.output().len();
        let (uniform, hold_stops) = (self.plan.uniform_at(position), self.plan.holds_stops(position));
        SampleRow { row, slot, uniform, hold_stops }
    }

    /// Chooses from an untouched row and appends.
    fn next(&mut self, logits: &[f32]) -> Sampled {
        self.next_of(logits, Allowed::All)
    }

    /// The same among some tokens.
    fn next_of(&mut self, logits: &[f32], allowed: Allowed<'_>) -> Sampled {
        let next = Next { history: &self.history, allowed };
        let chosen = sample_allowed(&mut logits.to_vec(), &self.plan, next, &mut Scratch::default());
        self.history.push(chosen.token);
        chosen
    }
}

/// Settings of all kinds and mixtures; those that a backend cannot follow are left out of its run.
fn settings() -> Vec<Sampling> {
    let drawn = Sampling { temperature: 0.8, ..Sampling::default() };
    let nucleus = Sampling { top_p: 0.9, ..drawn.clone() };
    let penalised =
        Sampling { repetition_penalty: 1.3, frequency_penalty: 0.4, presence_penalty: 0.3, ..Sampling::default() };
    let bias = vec![(3, 4.0), (11, -2.5), (3, 1.0), (900_000, 1.0)];
    let bias: Vec<LogitBias> = bias.into_iter().map(|(token, bias)| LogitBias { token, bias }).collect();
    let bad_token_ids = vec![TokenIds { ids: vec![5] }, TokenIds { ids: vec![17] }];
    vec![
        Sampling::default(),
        drawn.clone(),
        Sampling { temperature: 2.5, ..Sampling::default() },
        Sampling { temperature: 0.01, ..Sampling::default() },
        Sampling { top_k: 1, ..drawn.clone() },
        Sampling { top_k: 20, ..drawn.clone() },
        Sampling { top_k: 1000, temperature: 3.0, ..Sampling::default() },
        Sampling { top_k: 3000, temperature: 3.0, ..Sampling::default() },
        nucleus.clone(),
        Sampling { top_p: 0.999, temperature: 2.0, ..Sampling::default() },
        Sampling { top_p: 1e-6, ..drawn.clone() },
        Sampling { min_p: 0.1, ..drawn.clone() },
        Sampling { min_p: 0.01, top_k: 50, ..nucleus.clone() },
        Sampling { min_p: 0.02, top_p: 0.8, ..drawn.clone() },
        Sampling { top_k: 20, top_p: 0.95, temperature: 0.6, ..Sampling::default() },
        penalised.clone(),
        Sampling { temperature: 1.0, top_k: 40, ..penalised.clone() },
        Sampling { logit_bias: bias.clone(), ..Sampling::default() },
        Sampling { logit_bias: bias, bad_token_ids: bad_token_ids.clone(), ..nucleus.clone() },
        Sampling { bad_token_ids, min_tokens: 3, stop_token_ids: vec![12, 40], ..drawn.clone() },
        Sampling { allowed_token_ids: vec![31, 2, 900_000, 64, 65], ..drawn.clone() },
        Sampling { allowed_token_ids: vec![7, 3], min_tokens: 2, ..Sampling::default() },
        Sampling { allowed_token_ids: vec![7], min_tokens: 2, logprobs: Some(1), ..Sampling::default() },
        Sampling { logprobs: Some(0), ..Sampling::default() },
        Sampling { logprobs: Some(20), ..nucleus },
        Sampling { logprobs: Some(5), ..penalised },
    ]
}

/// Rows that a model might give, and rows full of equals, infinities and no numbers.
fn logits(random: &mut Random, kind: usize, vocab: usize) -> Vec<f32> {
    let mut row: Vec<f32> = random.values(vocab).iter().map(|x| x * 3.0).collect();
    match kind % 6 {
        0 => row.iter_mut().for_each(|x| *x = (*x * 2.0).round() / 2.0),
        1 => row.fill(1.5),
        2 => {
            for _ in 0..vocab / 8 {
                row[random.below(vocab)] = [f32::NAN, f32::NEG_INFINITY, -0.0, 0.0][random.below(4)];
            }
        }
        3 => (0..3).for_each(|_| row[random.below(vocab)] = 24.0),
        4 => row.iter_mut().for_each(|x| *x *= 6.0),
        _ => {}
    }
    row
}

fn check_same(what: &str, got: &Sampled, want: &Sampled) {
    assert_eq!(got.token, want.token, "{what}");
    let (Some(got), Some(want)) = (&got.logprobs, &want.logprobs) else {
        assert_eq!(got.logprobs.is_some(), want.logprobs.is_some(), "{what}");
        return;
    };
    assert_eq!(got.rank, want.rank, "{what}: rank");
    let close = |got: f32, want: f32| assert!((got - want).abs() <= 2e-5 * (1.0 + want.abs()), "{what}: {got}, {want}");
    close(got.logprob, want.logprob);
    let ids = |top: &[(u32, f32)]| top.iter().map(|&(id, _)| id).collect::<Vec<_>>();
    assert_eq!(ids(&got.top), ids(&want.top), "{what}");
    got.top.iter().zip(&want.top).for_each(|(got, want)| close(got.1, want.1));
}

fn take(backend: &mut dyn Backend, act: Act, rows: &[SampleRow]) -> Vec<Sampled> {
    let ticket = backend.sample(act, rows);
    let mut taken = Vec::new();
    backend.take(ticket, &mut taken);
    taken
}

#[test]
fn every_setting_as_the_reference_does_it() {
    for mut backend in backends() {
        for vocab in [70, 1000, 8192, 32_003] {
            check_settings(&mut *backend, vocab);
        }
    }
}

/// Sequences of all settings share batches for some steps; each must follow its reference.
fn check_settings(backend: &mut dyn Backend, vocab: usize) {
    backend.set_slots(SLOTS as usize, vocab);
    let mut random = Random(vocab as u64);
    let mut sequences = HashMap::new();
    for (slot, sampling) in (0..).zip(settings()) {
        let tokens: Vec<u32> = (0..30).map(|_| random.below(vocab.min(90)) as u32).collect();
        let sequence = Reference::new(&sampling, 100 + u64::from(slot), tokens, 20);
        let choice = sequence.plan.device_params().expect("the host's alone");
        if backend.can_sample(&choice) {
            backend.set_slot(slot, &choice, &sequence.history.counts().collect::<Vec<_>>());
            sequences.insert(slot, sequence);
        }
    }
    assert!(!sequences.is_empty(), "no backend is that poor");
    for step in 0..12 {
        let mut order: Vec<u32> = sequences.keys().copied().collect();
        order.sort_unstable_by_key(|slot| (slot * 37 + step) % 41);
        // Some rest, so that neither the row nor the company stays the same.
        order.retain(|slot| (slot + step) % 5 != 0);
        let rows: Vec<f32> = order.iter().flat_map(|slot| logits(&mut random, (slot + step) as usize, vocab)).collect();
        let act = filled(backend, vocab, &rows);
        let asked: Vec<SampleRow> = (0..).zip(&order).map(|(row, slot)| sequences[slot].row(row, *slot)).collect();
        let taken = take(backend, act, &asked);
        for ((slot, row), got) in order.iter().zip(rows.chunks(vocab)).zip(&taken) {
            let want = sequences.get_mut(slot).unwrap().next(row);
            check_same(&format!("{} vocabulary {vocab}, setting {slot}, step {step}", backend.describe()), got, &want);
        }
    }
}

/// A row's mask: sparse, dense, of few words, empty, one token, or none.
fn mask(random: &mut Random, kind: usize, vocab: usize) -> Vec<u32> {
    let words = vocab.div_ceil(32);
    let word = |random: &mut Random| (random.below(1 << 16) << 16 | random.below(1 << 16)) as u32;
    match kind % 6 {
        0 => (0..words).map(|_| word(random) & word(random) & word(random)).collect(),
        1 => (0..words).map(|_| word(random) | word(random)).collect(),
        2 => vec![word(random); words / 2],
        3 => vec![0; words],
        _ => Vec::new(),
    }
}

#[test]
fn masked_rows_as_the_reference_does_them() {
    for mut backend in backends() {
        for vocab in [70, 8192, 32_003] {
            check_masked(&mut *backend, vocab);
        }
    }
}

/// Masked sequences of all settings, and some without a mask beside them.
fn check_masked(backend: &mut dyn Backend, vocab: usize) {
    backend.set_slots(SLOTS as usize, vocab);
    let mut random = Random(1 + vocab as u64);
    let mut sequences = HashMap::new();
    for (slot, sampling) in (0..).zip(settings()) {
        let tokens: Vec<u32> = (0..30).map(|_| random.below(vocab.min(90)) as u32).collect();
        let sequence = Reference::new(&sampling, 100 + u64::from(slot), tokens, 20);
        let params = sequence.plan.device_params().expect("the host's alone");
        let params = SampleParams { masked: slot % 4 != 3, ..params };
        if backend.can_sample(&params) {
            backend.set_slot(slot, &params, &sequence.history.counts().collect::<Vec<_>>());
            sequences.insert(slot, (sequence, params.masked));
        }
    }
    assert!(sequences.values().any(|(_, masked)| *masked), "every backend masks some");
    for step in 0..12 {
        let mut order: Vec<u32> = sequences.keys().copied().filter(|slot| (slot + step) % 5 != 0).collect();
        order.sort_unstable_by_key(|slot| (slot * 37 + step) % 41);
        let words: Vec<Vec<u32>> = order.iter().map(|slot| mask(&mut random, (slot + step) as usize, vocab)).collect();
        let only = random.below(vocab) as u32;
        let allowed: Vec<Allowed<'_>> = order
            .iter()
            .zip(&words)
            .map(|(slot, words)| match (slot + step) % 6 {
                _ if !sequences[slot].1 => Allowed::All,
                4 => Allowed::Only(only),
                5 => Allowed::All,
                _ => Allowed::Some(words),
            })
            .collect();
        let masks = order.iter().zip(&allowed).filter(|(slot, _)| sequences[*slot].1);
        let masks: Vec<SlotMask<'_>> =
            masks.map(|(slot, allowed)| SlotMask { slot: *slot, allowed: *allowed }).collect();
        let rows: Vec<f32> = order.iter().flat_map(|slot| logits(&mut random, (slot + step) as usize, vocab)).collect();
        let act = filled(backend, vocab, &rows);
        let asked: Vec<SampleRow> = (0..).zip(&order).map(|(row, slot)| sequences[slot].0.row(row, *slot)).collect();
        backend.set_masks(&masks);
        let taken = take(backend, act, &asked);
        for (((slot, row), got), allowed) in order.iter().zip(rows.chunks(vocab)).zip(&taken).zip(allowed) {
            let want = sequences.get_mut(slot).unwrap().0.next_of(row, allowed);
            check_same(&format!("{} vocabulary {vocab}, setting {slot}, step {step}", backend.describe()), got, &want);
        }
    }
}

#[test]
fn tokens_that_nobody_read_are_the_next_input() {
    for mut backend in backends() {
        let (vocab, width) = (50, 16);
        let (bytes, values) = encode(&Random(3).values(vocab * width), DType::F32);
        let table = backend.load_table(host(DType::F32, vocab, width, &bytes));
        backend.set_slots(4, vocab);
        (0..4).for_each(|slot| backend.set_slot(slot, &SampleParams::default(), &[]));
        let row = |row, slot| SampleRow { row, slot, uniform: 0.0, hold_stops: false };
        let mut logits = vec![0.0; 3 * vocab];
        (logits[9], logits[vocab + 20], logits[2 * vocab + 49]) = (1.0, 2.0, 3.0);
        let act = filled(&mut *backend, vocab, &logits);
        let first = backend.sample(act, &[row(0, 2), row(2, 0)]);
        // A second step begins before the first is read, and chooses again for one of the slots.
        let out = backend.new_act(4, width);
        let tokens = [last_token(0), 5, last_token(2), last_token(2)];
        backend.begin(Batch { tokens: &tokens, positions: &[0; 4], sequences: &[] });
        backend.embed(table, 0, 1.0, out);
        let embedded = backend.read(out).to_vec();
        let act = filled(&mut *backend, vocab, &logits);
        let second = backend.sample(act, &[row(1, 2)]);
        backend.begin(Batch { tokens: &tokens, positions: &[0; 4], sequences: &[] });
        backend.embed(table, 0, 1.0, out);
        let again = backend.read(out).to_vec();
        for (got, want) in [(embedded, [49, 5, 9, 9]), (again, [49, 5, 20, 20])] {
            let want: Vec<f32> = want.iter().flat_map(|token| values[token * width..][..width].to_vec()).collect();
            super::check_same("embedded", &got, &want);
        }
        let mut taken = Vec::new();
        backend.take(first, &mut taken);
        backend.take(second, &mut taken);
        assert!(backend.is_done(second));
        assert_eq!(taken.iter().map(|chosen| chosen.token).collect::<Vec<_>>(), [9, 49, 20]);
    }
}

#[test]
fn a_step_without_choices_gives_none() {
    for mut backend in backends() {
        backend.set_slots(1, 8);
        let act = filled(&mut *backend, 8, &[0.0; 8]);
        assert_eq!(take(&mut *backend, act, &[]), []);
    }
}

/// `cargo test --release -p kernels --test conformance sample::time -- --ignored --nocapture`
#[test]
#[ignore = "prints times, asserts nothing"]
fn time_of_a_step() {
    const VOCAB: usize = 151_936;
    const STEPS: u32 = 50;
    let drawn = Sampling { temperature: 0.8, ..Sampling::default() };
    let cases = [
        ("greedy", Sampling::default()),
        ("temperature", drawn.clone()),
        ("top_k 20, top_p 0.95", Sampling { top_k: 20, top_p: 0.95, ..drawn.clone() }),
        ("top_p 0.95", Sampling { top_p: 0.95, ..drawn.clone() }),
        ("flat, top_p 0.95", Sampling { temperature: 50.0, top_p: 0.95, ..Sampling::default() }),
        ("penalties", Sampling { repetition_penalty: 1.1, frequency_penalty: 0.1, ..drawn }),
        ("20 logprobs", Sampling { logprobs: Some(20), ..Sampling::default() }),
    ];
    for mut backend in backends() {
        for rows in [1, 64, 256] {
            let logits: Vec<f32> = Random(5).values(rows * VOCAB).iter().map(|x| x * 6.0).collect();
            let act = filled(&mut *backend, VOCAB, &logits);
            backend.set_slots(rows, VOCAB);
            for (name, sampling) in &cases {
                let sequence = Reference::new(sampling, 1, (0..100).collect(), 50);
                let choice = sequence.plan.device_params().expect("the host's alone");
                if !backend.can_sample(&choice) {
                    continue;
                }
                let counts: Vec<(u32, u32)> = sequence.history.counts().collect();
                (0..rows as u32).for_each(|slot| backend.set_slot(slot, &choice, &counts));
                let asked: Vec<SampleRow> = (0..rows as u32).map(|row| sequence.row(row, row)).collect();
                let mut taken = take(&mut *backend, act, &asked);
                // Two steps under way, as a worker has them.
                let start = std::time::Instant::now();
                let mut ahead = backend.sample(act, &asked);
                for _ in 1..STEPS {
                    let next = backend.sample(act, &asked);
                    backend.take(ahead, &mut taken);
                    ahead = next;
                }
                backend.take(ahead, &mut taken);
                println!("{}: {rows} rows, {name}: {:?}", backend.describe(), start.elapsed() / STEPS);
            }
        }
    }
}
