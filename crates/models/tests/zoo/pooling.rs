//! Hidden states and class scores of pooling models, against recorded ones: alone, together and in chunks.

use collectives::Solo;
use kernels::ops::{Batch, DType, Sequence};
use models::{Device, LoadError, Network, Step, load_network};
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
        let step = Step { batch, received: None, output_rows: &output_rows };
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
    let refusal =
        models::load(&dir, &options(Setup::new(DType::F32)), Setup::new(DType::F32).on.backend((0, 1)), &mut |_| {});
    let Err(LoadError::NotGenerating { architecture }) = refusal.map(|_| ()) else { panic!("{folder} generates text") };
    assert!(models::supported().all(|class| class != architecture), "{architecture}");
}

#[test]
fn hidden_states_of_the_last_token() {
    check("e5-mistral-embed", "lasttoken_unnormalized", 64);
}

#[test]
fn class_scores_of_the_last_token() {
    check("qwen2-classify", "logits", 3);
}
