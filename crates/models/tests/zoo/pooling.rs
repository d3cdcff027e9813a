//! Hidden states and class scores of pooling models, against recorded ones: alone, together and in chunks.

use std::ops::Range;

use collectives::Solo;
use kernels::ops::{Batch, DType, Sequence};
use models::{Device, Network, Step, load_network};
use safetensors::SafeTensors;
use serde_json::Value;

use crate::engine::{BLOCK_SIZE, MEMORY, Setup, device, options};
use crate::{folders, reference};

/// What is recorded of a folder's inputs.
struct Recorded {
    inputs: Vec<Vec<u32>>,
    /// Of each input's last token.
    last: Vec<Vec<f32>>,
    /// Largest differences in float32 and in bfloat16.
    tolerance: [f32; 2],
}

fn read(folder: &str, tensor: &str) -> Option<Recorded> {
    let dir = folders::zoo(folder)?;
    let json: Value =
        serde_json::from_slice(&std::fs::read(dir.join("reference.json")).expect("reference.json")).expect("JSON");
    let bytes = std::fs::read(dir.join("reference.safetensors")).expect("reference.safetensors");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let inputs: Vec<Vec<u32>> =
        json["inputs"].as_array().expect("inputs").iter().map(|input| reference::ids(&input["ids"])).collect();
    let last = (0..inputs.len()).map(|index| reference::floats(&tensors, &format!("input{index}.{tensor}")));
    let tolerance = ["float32_max_abs_diff", "bfloat16_max_abs_diff"];
    Some(Recorded {
        last: last.map(|values| values.expect("recorded")).collect(),
        inputs,
        tolerance: tolerance.map(|key| json["tolerance"][key].as_f64().expect("a tolerance") as f32),
    })
}

/// What a network gives for the last token of each input; with all inputs in a step, `chunk` rows of each at a time.
fn last_rows(network: &mut Network, device: &mut Device, inputs: &[&[u32]], chunk: usize) -> Vec<Vec<f32>> {
    let longest = inputs.iter().map(|input| input.len()).max().expect("an input");
    let blocks = longest.div_ceil(BLOCK_SIZE) as u32;
    let table = |first: u32| (first * blocks..(first + 1) * blocks).collect::<Vec<u32>>();
    let groups = network.cache().groups.len() as u32;
    let tables: Vec<Vec<Vec<u32>>> = (0..inputs.len() as u32)
        .map(|input| (0..groups).map(|group| table(input * groups + group)).collect())
        .collect();
    let mut last = vec![Vec::new(); inputs.len()];
    for start in (0..longest).step_by(chunk) {
        let (mut tokens, mut positions, mut sequences, mut output_rows) = (vec![], vec![], vec![], vec![]);
        let mut takers = Vec::new();
        for (index, input) in inputs.iter().enumerate().filter(|(_, input)| start < input.len()) {
            let end = input.len().min(start + chunk);
            let (first_row, num_rows) = (tokens.len(), end - start);
            tokens.extend(&input[start..end]);
            positions.extend(start as u32..end as u32);
            sequences.push(Sequence { first_row, num_rows, start, tables: &tables[index], slot: index });
            if end == input.len() {
                output_rows.push(tokens.len() as u32 - 1);
                takers.push(index);
            }
        }
        let batch = Batch { tokens: &tokens, positions: &positions, sequences: &sequences };
        let step = Step { batch, received: None, output_rows: &output_rows, means: &[], token_types: &[] };
        let outputs = network.forward(device, step, &mut Solo).expect("a step");
        takers.into_iter().enumerate().for_each(|(row, index)| last[index] = outputs.row(row).to_vec());
    }
    last
}

fn check(folder: &str, tensor: &str, width: usize) {
    let Some(recorded) = read(folder, tensor) else { return };
    let dir = folders::zoo(folder).expect("it was read");
    let inputs: Vec<&[u32]> = recorded.inputs.iter().map(Vec::as_slice).collect();
    for (dtype, tolerance) in [DType::F32, DType::Bf16].into_iter().zip(recorded.tolerance) {
        let setup = Setup::new(dtype);
        let mut device = device(setup);
        let mut network = load_network(&dir, &options(setup), &mut device, &mut |_| {}).expect("a network");
        network.allocate(&mut device, MEMORY);
        assert_eq!((network.output_width(), network.generates()), (width, false));
        let alone: Vec<Vec<f32>> =
            inputs.iter().map(|input| last_rows(&mut network, &mut device, &[input], 256).remove(0)).collect();
        for (index, (got, want)) in alone.iter().zip(&recorded.last).enumerate() {
            let difference = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(
                got.len() == want.len() && difference <= tolerance,
                "{folder}, input {index}: {difference} off in {dtype:?}"
            );
        }
        if dtype == DType::F32 {
            assert!(last_rows(&mut network, &mut device, &inputs, 256) == alone, "{folder}: together");
            assert!(last_rows(&mut network, &mut device, &inputs, 16) == alone, "{folder}: in chunks");
        }
    }
    // They are not what text is generated with.
    let setup = Setup::new(DType::F32);
    let model = models::load(&dir, &options(setup), setup.on.backend((0, 1)), &mut |_| {}).expect("a model");
    assert!(model.runner.pools(), "{folder} generates text");
    assert!(models::supported().all(|class| class != model.spec.architecture), "{}", model.spec.architecture);
}

/// What becomes of a prompt's rows.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Of {
    First,
    Mean,
    Each,
}

/// What a network gives for inputs that are all in one step, whole.
pub(crate) fn whole(network: &mut Network, device: &mut Device, inputs: &[&Input], kind: Of) -> Vec<Vec<f32>> {
    let (mut tokens, mut positions, mut types, mut ranges) = (vec![], vec![], vec![], vec![]);
    for input in inputs {
        ranges.push(tokens.len()..tokens.len() + input.ids.len());
        tokens.extend(&input.ids);
        types.extend(&input.types);
        positions.extend(0..input.ids.len() as u32);
    }
    let blocks = ranges.iter().map(|range| range.len().div_ceil(BLOCK_SIZE)).max().expect("an input") as u32;
    let groups = network.cache().groups.len() as u32;
    let table = |number: u32| (number * blocks..(number + 1) * blocks).collect::<Vec<u32>>();
    let of = |index: u32| (0..groups).map(|group| table(index * groups + group)).collect::<Vec<_>>();
    let tables: Vec<Vec<Vec<u32>>> = (0..ranges.len() as u32).map(of).collect();
    let sequences: Vec<Sequence<'_>> = ranges
        .iter()
        .zip(&tables)
        .enumerate()
        .map(|(slot, (range, tables))| Sequence {
            first_row: range.start,
            num_rows: range.len(),
            start: 0,
            tables,
            slot,
        })
        .collect();
    let batch = Batch { tokens: &tokens, positions: &positions, sequences: &sequences };
    let firsts: Vec<u32> = ranges.iter().map(|range| range.start as u32).collect();
    let every: Vec<u32> = (0..tokens.len() as u32).collect();
    let plain = Step { batch, received: None, output_rows: &[], means: &[], token_types: &types };
    let step = match kind {
        Of::First => Step { output_rows: &firsts, ..plain },
        Of::Mean => Step { means: &ranges, ..plain },
        Of::Each => Step { output_rows: &every, ..plain },
    };
    let outputs = network.forward(device, step, &mut Solo).expect("a step");
    let rows = |range: &Range<usize>, index: usize| match kind {
        Of::First | Of::Mean => outputs.row(index).to_vec(),
        Of::Each => range.clone().flat_map(|row| outputs.row(row).to_vec()).collect(),
    };
    ranges.iter().enumerate().map(|(index, range)| rows(range, index)).collect()
}

/// A prompt, with the types of its tokens.
pub(crate) struct Input {
    pub ids: Vec<u32>,
    pub types: Vec<u32>,
}

/// Models whose prompts are computed in one step: alone, and beside each other.
fn check_whole(folder: &str, tensor: &str, of: Of) {
    let Some(recorded) = read(folder, tensor) else { return };
    let dir = folders::zoo(folder).expect("it was read");
    let text = std::fs::read(dir.join("reference.json")).expect("reference.json");
    let json: Value = serde_json::from_slice(&text).expect("JSON");
    let types = |index: usize, len: usize| match &json["inputs"][index]["token_type_ids"] {
        Value::Null => vec![0; len],
        types => reference::ids(types),
    };
    let typed = |(index, ids): (usize, &Vec<u32>)| Input { types: types(index, ids.len()), ids: ids.clone() };
    let inputs: Vec<Input> = recorded.inputs.iter().enumerate().map(typed).collect();
    for (dtype, tolerance) in [DType::F32, DType::Bf16].into_iter().zip(recorded.tolerance) {
        let setup = Setup::new(dtype);
        let mut device = device(setup);
        let mut network = load_network(&dir, &options(setup), &mut device, &mut |_| {}).expect("a network");
        network.allocate(&mut device, MEMORY);
        let alone: Vec<Vec<f32>> =
            inputs.iter().map(|input| whole(&mut network, &mut device, &[input], of).remove(0)).collect();
        for (index, (got, want)) in alone.iter().zip(&recorded.last).enumerate() {
            let difference = got.iter().zip(want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert_eq!(got.len(), want.len(), "{folder}, input {index}");
            assert!(difference <= tolerance, "{folder}, input {index}: {difference} off in {dtype:?}");
        }
        let all: Vec<&Input> = inputs.iter().rev().collect();
        let mut together = whole(&mut network, &mut device, &all, of);
        together.reverse();
        let close = |(a, b): (&Vec<f32>, &Vec<f32>)| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance);
        assert!(together.iter().zip(&alone).all(close), "{folder}: together");
        if dtype == DType::F32 {
            assert!(together == alone, "{folder}: together, to the bit");
        }
    }
}

#[test]
fn encoders_give_the_first_tokens_state() {
    check_whole("bert-embed-cls", "embedding_unnormalized", Of::First);
    check_whole("roberta-embed", "embedding_unnormalized", Of::First);
}

#[test]
fn encoders_give_the_mean_over_tokens() {
    check_whole("bert-embed", "embedding_unnormalized", Of::Mean);
    check_whole("modernbert-embed", "mean_unnormalized", Of::Mean);
}

#[test]
fn cross_encoders_score_pairs() {
    check_whole("bert-rerank", "score", Of::First);
    check_whole("xlm-roberta-rerank", "score", Of::First);
    check_whole("modernbert-rerank", "score", Of::Mean);
}

#[test]
fn reward_models_score_each_token() {
    check_whole("qwen2-reward", "token_scores", Of::Each);
    check_whole("qwen2-process-reward", "token_scores", Of::Each);
}

#[test]
fn hidden_states_of_the_last_token() {
    check("e5-mistral-embed", "lasttoken_unnormalized", 64);
}

#[test]
fn class_scores_of_the_last_token() {
    check("qwen2-classify", "logits", 3);
}
