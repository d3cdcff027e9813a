//! Encoders without a reference model: small ones, whose outputs `encoders.py` computes with numpy.

use std::path::Path;

use kernels::ops::DType;
use models::load_network;
use safetensors::tensor::TensorView;
use serde_json::Value;

use crate::engine::{MEMORY, Setup, device, options};
use crate::pooling::{Input, Of, whole};
use crate::reference;

/// The formula of `encoders.py`, as bytes.
fn values(place: usize, shape: &[usize], name: &str) -> Vec<u8> {
    let base = if shape.len() == 1 && name.ends_with("weight") { 1.0 } else { 0.0 };
    let value = |i: f64| base + 0.3 * ((i + 1.0) * (0.7 + 0.13 * place as f64) + 0.01 * i * i).sin();
    (0..shape.iter().product::<usize>()).flat_map(|i| (value(i as f64) as f32).to_le_bytes()).collect()
}

fn write(dir: &Path, case: &Value) {
    std::fs::write(dir.join("config.json"), case["config"].to_string()).expect("config.json");
    let tensors: Vec<(String, Vec<usize>)> = serde_json::from_value(case["tensors"].clone()).expect("names and shapes");
    let bytes: Vec<Vec<u8>> =
        tensors.iter().enumerate().map(|(place, (name, shape))| values(place, shape, name)).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape), bytes)| {
        (name, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).expect("a tensor"))
    });
    let file = safetensors::serialize(views.collect::<Vec<_>>(), None).expect("safetensors");
    std::fs::write(dir.join("model.safetensors"), file).expect("model.safetensors");
}

fn close(got: &[f32], want: &Value, tolerance: f32) {
    let want: Vec<f64> = serde_json::from_value(want.clone()).expect("numbers");
    assert_eq!(got.len(), want.len());
    let off = got.iter().zip(&want).map(|(a, b)| (a - *b as f32).abs()).fold(0.0, f32::max);
    assert!(off <= tolerance, "{off} off: {got:?}, not {want:?}");
}

#[test]
fn encoders_give_what_numpy_does() {
    let cases: Value = serde_json::from_str(include_str!("encoders.json")).expect("JSON");
    let input = || Input { ids: reference::ids(&cases["tokens"]), types: vec![0; 7] };
    for case in cases["cases"].as_array().expect("cases") {
        println!("{}", case["config"]["architectures"]);
        let dir = tempfile::tempdir().expect("a folder");
        write(dir.path(), case);
        for (dtype, tolerance) in [(DType::F32, 2e-5), (DType::Bf16, 0.1)] {
            let setup = Setup::new(dtype);
            let mut device = device(setup);
            let mut network = load_network(dir.path(), &options(setup), &mut device, &mut |_| {}).expect("a network");
            network.allocate(&mut device, MEMORY);
            let (one, other) = (input(), input());
            for (of, key) in [(Of::First, "first"), (Of::Mean, "mean")] {
                for rows in whole(&mut network, &mut device, &[&one, &other], of) {
                    close(&rows, &case[key], tolerance);
                }
            }
        }
    }
}
