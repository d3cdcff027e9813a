//! The checks of a reference model.

use std::path::Path;
use std::thread;

use collectives::Solo;
use kernels::ops::DType;
use models::Model;
use serde_json::Value;

use crate::engine::{Outcome, PLAIN, Script, Wanted, Way, hidden, load, logprob, run};
use crate::reference::{self, Prompt, Reference};
use crate::{folders, group};

fn load_whole(dir: &Path, dtype: DType) -> Model {
    load(dir, dtype, (0, 1)).unwrap_or_else(|error| panic!("{}: {error}", dir.display()))
}

fn greedy_scripts(reference: &Reference) -> Vec<Script> {
    let script = |p: &Prompt| Script { prompt: p.ids.clone(), forced: None, steps: p.greedy_tokens.len() };
    reference.prompts.iter().map(script).collect()
}

fn forced_scripts(reference: &Reference) -> Vec<Script> {
    let script = |p: &Prompt| Script {
        prompt: p.ids.clone(),
        forced: Some(p.greedy_tokens.clone()),
        steps: p.greedy_tokens.len(),
    };
    reference.prompts.iter().map(script).collect()
}

/// Ways of running that must not change a bit.
fn other_ways() -> [Way; 5] {
    [
        Way { together: true, ..PLAIN },
        Way { chunk: 16, ..PLAIN },
        Way { scattered: true, ..PLAIN },
        Way { together: true, chunk: 16, scattered: true, wanted: Wanted::All },
        Way { together: true, chunk: 16, scattered: true, wanted: Wanted::Last },
    ]
}

/// In f32: as recorded, and the same bits whatever else is in the batch.
pub fn float32(name: &str) {
    let dir = folders::zoo(name);
    let reference = reference::read(&dir);
    let scripts = greedy_scripts(&reference);
    let outcomes = run(&mut load_whole(&dir, DType::F32), &mut Solo, &scripts, PLAIN);
    if let Err(difference) = as_recorded(&reference, &outcomes) {
        panic!("{name}: {difference}; {}", first_difference(&dir, &reference));
    }
    for way in other_ways() {
        same_bits(name, way, &outcomes, &run(&mut load_whole(&dir, DType::F32), &mut Solo, &scripts, way));
    }
}

fn same_bits(name: &str, way: Way, plain: &[Outcome], other: &[Outcome]) {
    for (index, (plain, other)) in plain.iter().zip(other).enumerate() {
        assert_eq!(plain.greedy, other.greedy, "{name}, prompt {index}, {way:?}");
        let from = plain.logits.len() - other.logits.len();
        for (row, (a, b)) in plain.logits[from..].iter().zip(&other.logits).enumerate() {
            assert!(
                a == b,
                "{name}, prompt {index}, logits {} of {way:?} differ by {}",
                from + row,
                max_difference(a, b)
            );
        }
    }
}

/// Compares with everything that was recorded; the error says what differs first.
fn as_recorded(reference: &Reference, outcomes: &[Outcome]) -> Result<(), String> {
    let close = |what: String, got: &[f32], want: &[f32]| {
        let difference = max_difference(got, want);
        if difference <= reference.float32 { Ok(()) } else { Err(format!("{what} differ by {difference}")) }
    };
    for (k, (prompt, outcome)) in reference.prompts.iter().zip(outcomes).enumerate() {
        let last = prompt.ids.len() - 1;
        if k == 1 {
            for (position, want) in reference.all_logits.iter().enumerate() {
                close(format!("logits of prompt 1 at position {position}"), &outcome.logits[position], want)?;
            }
        }
        close(format!("last logits of prompt {k}"), &outcome.logits[last], &prompt.last_logits)?;
        let logprobs: Vec<f32> = (1..=last).map(|i| logprob(&outcome.logits[i - 1], prompt.ids[i])).collect();
        close(format!("prompt log-probabilities of prompt {k}"), &logprobs, &prompt.prompt_logprobs)?;
        if outcome.greedy != prompt.greedy_tokens {
            return Err(format!(
                "greedy tokens of prompt {k} are {:?}, not {:?}",
                outcome.greedy, prompt.greedy_tokens
            ));
        }
        let greedy = outcome.greedy.iter().enumerate();
        let logprobs: Vec<f32> = greedy.map(|(i, token)| logprob(&outcome.logits[last + i], *token)).collect();
        close(format!("greedy log-probabilities of prompt {k}"), &logprobs, &prompt.greedy_logprobs)?;
    }
    Ok(())
}

/// Names the first layer whose output is not as recorded.
fn first_difference(dir: &Path, reference: &Reference) -> String {
    let layers = hidden(&mut load_whole(dir, DType::F32), &mut Solo, &reference.prompts[1].ids);
    let differences: Vec<f32> = layers.iter().zip(&reference.hidden).map(|(a, b)| max_difference(a, b)).collect();
    match differences.iter().position(|difference| *difference > reference.float32) {
        Some(0) => format!("the embedding differs by {}", differences[0]),
        Some(layer) => format!("layer {} is the first that differs, by {}", layer - 1, differences[layer]),
        None => "no layer's output differs".to_owned(),
    }
}

/// In 16 bits along the recorded tokens: close to f32, and the same bits whatever else is in the batch.
pub fn bfloat16(name: &str, dtype: DType) {
    let dir = folders::zoo(name);
    let reference = reference::read(&dir);
    let scripts = forced_scripts(&reference);
    let exact = run(&mut load_whole(&dir, DType::F32), &mut Solo, &scripts, PLAIN);
    let rough = run(&mut load_whole(&dir, dtype), &mut Solo, &scripts, PLAIN);
    let positions = exact.iter().zip(&rough).flat_map(|(a, b)| a.logits.iter().zip(&b.logits));
    let mut differences: Vec<f32> = positions.map(|(a, b)| max_difference(a, b)).collect();
    differences.sort_by(f32::total_cmp);
    let quantile = |q: f64| differences[(q * (differences.len() - 1) as f64).round() as usize];
    let (median, p90) = (quantile(0.5), quantile(0.9));
    let allowed = (reference.bfloat16_median, reference.bfloat16_p90);
    assert!(median < allowed.0 && p90 < allowed.1, "{name}: {dtype:?} differs by {median}, {p90}; allowed {allowed:?}");
    for (k, (prompt, outcome)) in reference.prompts.iter().zip(&rough).enumerate() {
        for (step, margin) in prompt.greedy_margins.iter().enumerate() {
            let same = outcome.greedy[step] == prompt.greedy_tokens[step];
            assert!(
                same || *margin <= 2.0 * allowed.1,
                "{name}: {dtype:?}, prompt {k}, step {step}: another token at margin {margin}"
            );
        }
    }
    for way in other_ways() {
        same_bits(name, way, &rough, &run(&mut load_whole(&dir, dtype), &mut Solo, &scripts, way));
    }
}

/// Split over ranks: as recorded, on every rank the same.
pub fn tensor_parallel(name: &str, size: usize) {
    let dir = folders::zoo(name);
    let reference = reference::read(&dir);
    let scripts = greedy_scripts(&reference);
    for way in [PLAIN, Way { together: true, chunk: 16, scattered: true, wanted: Wanted::All }] {
        let outcomes: Vec<Vec<Outcome>> = thread::scope(|scope| {
            let (dir, scripts) = (&dir, &scripts);
            let rank = |(rank, mut channels)| {
                scope.spawn(move || {
                    run(&mut load(dir, DType::F32, (rank, size)).expect("a rank"), &mut channels, scripts, way)
                })
            };
            let ranks: Vec<_> = group::group(size).into_iter().enumerate().map(rank).collect();
            ranks.into_iter().map(|rank| rank.join().expect("a rank")).collect()
        });
        as_recorded(&reference, &outcomes[0])
            .unwrap_or_else(|difference| panic!("{name} over {size} ranks: {difference}"));
        assert!(outcomes.iter().all(|outcome| *outcome == outcomes[0]), "{name}: ranks differ");
    }
}

/// A size that does not divide is refused by name.
pub fn tensor_parallel_refused(name: &str, size: usize, what: &str) {
    let error = load(&folders::zoo(name), DType::F32, (0, size)).err().expect("a refusal").to_string();
    assert!(error.contains(what) && error.contains(&format!("tensor-parallel size {size}")), "{error}");
}

/// A model that ships: greedy continuations as recorded.
pub fn shipped(folder: &str, key: &str) {
    let dir = folders::shipped(folder);
    let json = std::fs::read(folders::shipped("reference.json")).expect("reference.json");
    let json: Value = serde_json::from_slice(&json).expect("JSON");
    let prompts = json["prompts"].as_array().expect("prompts");
    let script = |prompt: &Value| {
        let steps = reference::ids(&prompt[key]["ids"]).len();
        Script { prompt: reference::ids(&prompt["prompt_ids"]), forced: None, steps }
    };
    let scripts: Vec<Script> = prompts.iter().map(script).collect();
    let way = Way { together: true, chunk: 16, wanted: Wanted::Last, ..PLAIN };
    let outcomes = run(&mut load_whole(&dir, DType::F32), &mut Solo, &scripts, way);
    for (outcome, prompt) in outcomes.iter().zip(prompts) {
        assert_eq!(outcome.greedy, reference::ids(&prompt[key]["ids"]), "{}", prompt["prompt"]);
        let greedy = outcome.logits.iter().zip(&outcome.greedy);
        let logprobs: Vec<f32> = greedy.map(|(logits, token)| logprob(logits, *token)).collect();
        let difference = max_difference(&logprobs, &reference::numbers(&prompt[key]["logprobs"]));
        assert!(difference < 1e-3, "{}: log-probabilities differ by {difference}", prompt["prompt"]);
    }
}

fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    // A NaN anywhere must not pass as a small difference.
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, |max, d| if d <= max || max.is_nan() { max } else { d })
}
