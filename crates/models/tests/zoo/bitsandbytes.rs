//! Weights as bitsandbytes stores those of a model whose plain files have inputs first: there, outputs come first.

use std::path::Path;

use collectives::Solo;
use kernels::ops::DType;
use safetensors::serialize;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use crate::engine::{self, Outcome, PLAIN, Script, Setup};
use crate::merged_adapters::distance;
use crate::tensors::{Tensor, read, write};
use crate::{folders, reference};

const BLOCK: usize = 64;

/// A tensor of a file.
type Stored = (String, Dtype, Vec<usize>, Vec<u8>);

fn floats(name: String, shape: &[usize], values: &[f32]) -> Stored {
    (name, Dtype::F32, shape.to_vec(), values.iter().flat_map(|value| value.to_le_bytes()).collect())
}

/// Sixteen levels from -1 to 1.
fn levels() -> [f32; 16] {
    std::array::from_fn(|code| code as f32 / 7.5 - 1.0)
}

/// Stores `[in, out]` as four bits of `[out, in]`, and leaves what these mean.
fn quantize(name: &str, plain: &mut Tensor) -> Vec<Stored> {
    let [inputs, outputs] = plain.shape[..] else { panic!("{name} is no matrix") };
    let at = |index: usize| index % inputs * outputs + index / inputs;
    let largest = |first: usize| (first..first + BLOCK).map(|i| plain.values[at(i)].abs()).fold(0.0, f32::max);
    let absmax: Vec<f32> = (0..inputs * outputs).step_by(BLOCK).map(largest).collect();
    let code = |index: usize| ((plain.values[at(index)] / absmax[index / BLOCK] + 1.0) * 7.5).round() as u8;
    let codes: Vec<u8> = (0..inputs * outputs).map(code).collect();
    for (index, code) in codes.iter().enumerate() {
        plain.values[at(index)] = levels()[usize::from(*code)] * absmax[index / BLOCK];
    }
    let packed: Vec<u8> = codes.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
    let state = json!({"quant_type": "nf4", "blocksize": BLOCK, "shape": [outputs, inputs]}).to_string();
    vec![
        (name.to_owned(), Dtype::U8, vec![packed.len(), 1], packed),
        floats(format!("{name}.absmax"), &[absmax.len()], &absmax),
        floats(format!("{name}.quant_map"), &[16], &levels()),
        (format!("{name}.quant_state.bitsandbytes__nf4"), Dtype::U8, vec![state.len()], state.into_bytes()),
    ]
}

/// Writes GPT-2 with packed matrices, and with plain ones of the same values.
fn write_both(from: &Path, packed: &Path, plain: &Path) {
    let mut tensors = read(&from.join("model.safetensors"));
    let mut stored: Vec<Stored> = Vec::new();
    for (name, tensor) in &mut tensors {
        match ["c_attn.weight", "c_proj.weight", "c_fc.weight"].iter().any(|end| name.ends_with(end)) {
            true => stored.extend(quantize(name, tensor)),
            false => stored.push(floats(name.clone(), &tensor.shape, &tensor.values)),
        }
    }
    let views = stored.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("a tensor"))
    });
    std::fs::write(packed.join("model.safetensors"), serialize(views, None).expect("bytes")).expect("written");
    write(&tensors, &plain.join("model.safetensors"));
    let text = std::fs::read(from.join("config.json")).expect("config.json");
    let mut config: Value = serde_json::from_slice(&text).expect("JSON");
    std::fs::write(plain.join("config.json"), config.to_string()).expect("written");
    config["quantization_config"] = json!({"quant_method": "bitsandbytes", "load_in_4bit": true});
    std::fs::write(packed.join("config.json"), config.to_string()).expect("written");
}

#[test]
fn outputs_come_first_also_in_gpt_2() {
    let Some(from) = folders::zoo("gpt2") else { return };
    let [packed, plain] = [(); 2].map(|()| tempfile::tempdir().expect("a folder"));
    write_both(&from, packed.path(), plain.path());
    let prompt = reference::read(&from).prompts.remove(1).ids;
    let scripts = [Script { prompt, forced: None, steps: 1 }];
    let outcome = |dir: &Path| -> Outcome {
        let mut model = engine::load(dir, Setup::new(DType::F32)).expect("a model");
        engine::run(&mut *model, &mut Solo, &scripts, PLAIN).remove(0)
    };
    let near = distance(&outcome(packed.path()), &outcome(plain.path()));
    assert!(near < 1e-4, "{near}");
}
