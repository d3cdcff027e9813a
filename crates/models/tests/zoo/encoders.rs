//! Encoders without a reference model: small ones, whose outputs `encoders.py` computes with numpy.

use std::path::Path;

use kernels::ops::DType;
use models::{LoadOptions, NetworkHead, load_network};
use safetensors::tensor::TensorView;
use serde_json::Value;

use crate::engine::{MEMORY, Setup, device, options};
use crate::pickle::{Form, pickled};
use crate::pooling::{Input, Of, whole};
use crate::reference;

/// The formula of `encoders.py`, as bytes.
fn values(place: usize, shape: &[usize], name: &str) -> Vec<u8> {
    let base = if shape.len() == 1 && name.ends_with("weight") { 1.0 } else { 0.0 };
    let value = |i: f64| base + 0.3 * ((i + 1.0) * (0.7 + 0.13 * place as f64) + 0.01 * i * i).sin();
    (0..shape.iter().product::<usize>()).flat_map(|i| (value(i as f64) as f32).to_le_bytes()).collect()
}

/// A tensor's name, shape and bytes.
type Tensor = (String, Vec<usize>, Vec<u8>);
type Tensors = Vec<Tensor>;

fn tensors(case: &Value) -> Tensors {
    let tensors: Vec<(String, Vec<usize>)> = serde_json::from_value(case["tensors"].clone()).expect("names and shapes");
    let make = |(place, (name, shape)): (usize, (String, Vec<usize>))| {
        let bytes = values(place, &shape, &name);
        (name, shape, bytes)
    };
    tensors.into_iter().enumerate().map(make).collect()
}

fn save(file: &Path, tensors: &Tensors) {
    let bytes = safetensors::serialize(views(tensors), None).expect("safetensors");
    std::fs::write(file, bytes).expect("a file of tensors");
}

fn write(dir: &Path, case: &Value) {
    std::fs::write(dir.join("config.json"), case["config"].to_string()).expect("config.json");
    let (beside, model): (Tensors, Tensors) = tensors(case).into_iter().partition(|(name, ..)| name.contains('/'));
    save(&dir.join("model.safetensors"), &model);
    for file in beside.chunk_by(|one, other| file_of(one) == file_of(other)) {
        let bytes = pickled(Form::Archive, &views(file));
        std::fs::write(dir.join(file_of(&file[0])), bytes).expect("a file of tensors");
    }
}

/// The file beside the model's own that a tensor is in.
fn file_of((name, ..): &Tensor) -> &str {
    name.split('/').next().unwrap_or_default()
}

fn views(tensors: &[Tensor]) -> Vec<(&str, TensorView<'_>)> {
    let view =
        |shape: &[usize], bytes| TensorView::new(safetensors::Dtype::F32, shape.to_vec(), bytes).expect("a tensor");
    let named =
        tensors.iter().map(|(name, shape, bytes)| (name.rsplit('/').next().unwrap_or_default(), view(shape, bytes)));
    named.collect()
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
            // Class scores are of the first token alone.
            for (of, key) in [(Of::First, "first"), (Of::Mean, "mean")].into_iter().filter(|of| !case[of.1].is_null()) {
                for rows in whole(&mut network, &mut device, &[&one, &other], of) {
                    close(&rows, &case[key], tolerance);
                }
            }
        }
    }
}

/// A file of bge-m3's that was not downloaded is named.
#[test]
fn a_missing_layer_is_named() {
    let cases: Value = serde_json::from_str(include_str!("encoders.json")).expect("JSON");
    let bge_m3 = |case: &&Value| case["config"]["architectures"][0] == "BgeM3EmbeddingModel";
    let dir = tempfile::tempdir().expect("a folder");
    write(dir.path(), cases["cases"].as_array().expect("cases").iter().find(bge_m3).expect("bge-m3"));
    std::fs::remove_file(dir.path().join("sparse_linear.pt")).expect("it was there");
    let setup = Setup::new(DType::F32);
    let refusal = load_network(dir.path(), &options(setup), &mut device(setup), &mut |_| {}).map(drop).unwrap_err();
    assert!(refusal.to_string().contains("sparse_linear.pt does not exist"), "{refusal}");
}

/// ColBERT's linear layer in a file of its own, as sentence-transformers keeps it, gives what ColBERT gives.
#[test]
fn a_dense_module_is_read_from_its_folder() {
    let cases: Value = serde_json::from_str(include_str!("encoders.json")).expect("JSON");
    let colbert = |case: &&Value| case["config"]["architectures"][0] == "HF_ColBERT";
    let mut case = cases["cases"].as_array().expect("cases").iter().find(colbert).expect("ColBERT").clone();
    let dir = tempfile::tempdir().expect("a folder");
    let (linear, model): (Tensors, Tensors) =
        tensors(&case).into_iter().partition(|tensor| tensor.0 == "linear.weight");
    case["config"]["architectures"][0] = "BertModel".into();
    std::fs::write(dir.path().join("config.json"), case["config"].to_string()).expect("config.json");
    save(&dir.path().join("model.safetensors"), &model);
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    write(
        "modules.json",
        r#"[{"type": "t.Transformer"}, {"type": "t.Pooling", "path": "1_Pooling"},
            {"type": "t.Dense", "path": "2_Dense"}]"#,
    );
    write("1_Pooling/config.json", r#"{"pooling_mode_mean_tokens": true}"#);
    write(
        "2_Dense/config.json",
        r#"{"in_features": 16, "out_features": 6, "bias": false,
            "activation_function": "torch.nn.modules.linear.Identity"}"#,
    );
    save(&dir.path().join("2_Dense/model.safetensors"), &linear);
    let setup = Setup::new(DType::F32);
    let mut device = device(setup);
    let options = LoadOptions { head: NetworkHead::Projected, ..options(setup) };
    let mut network = load_network(dir.path(), &options, &mut device, &mut |_| {}).expect("a network");
    network.allocate(&mut device, MEMORY);
    let input = Input { ids: reference::ids(&cases["tokens"]), types: vec![0; 7] };
    for (of, key) in [(Of::First, "first"), (Of::Mean, "mean")] {
        for rows in whole(&mut network, &mut device, &[&input], of) {
            close(&rows, &case[key], 2e-5);
        }
    }
}
