//! Single layers of the reference models, their inputs rounded as the checkpoints ask: outputs as recorded.

use std::path::{Path, PathBuf};

use kernels::cpu::{CpuBackend, CpuOptions, Isa};
use kernels::ops::{Batch, DType, Epilogue, Load, MatrixUse, Ops};
use safetensors::SafeTensors;

use crate::activations::{ActivationPool, Buffers};
use crate::arch;
use crate::load::ActivationRounding;
use crate::weights::{Checkpoint, Loader, Resident, Role, Slice, Store};

/// The folder of a reference model; absent where this collection lacks it.
fn folder(name: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/zoo").join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    eprintln!("not checked, for it is not among the reference models: {name}");
    None
}

fn numbers(tensors: &SafeTensors<'_>, name: &str) -> Option<(Vec<f32>, Vec<usize>)> {
    let tensor = tensors.tensor(name).ok()?;
    let (values, _) = tensor.data().as_chunks::<4>();
    Some((values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(), tensor.shape().to_vec()))
}

/// What a layer gives for these rows.
fn run(checkpoint: &Checkpoint, slice: Slice, x: &[f32], isa: Isa) -> Vec<f32> {
    let (n, k) = (slice.shape[0], slice.shape[1]);
    let rows = x.len() / k;
    let mut backend = CpuBackend::new(CpuOptions { threads: 1, isa: Some(isa) });
    let mut loader = Loader {
        weights: checkpoint,
        backend: &mut backend,
        compute: DType::F32,
        as_stored: true,
        activations: ActivationRounding::AsConfigured,
        threads: 1,
        online: None,
        progress: &mut |_| {},
        read: 0,
        lora: None,
        resident: Resident::default(),
        buffers: Buffers { pool: &mut ActivationPool::default(), max_rows: rows, compute: DType::F32 },
    };
    let matrix = loader.matrix(&[slice], 0, MatrixUse::Linear).expect("a matrix");
    assert!(loader.resident.bytes < (n * k * 11 / 10) as u64, "{:?} of {n} x {k}", loader.resident);
    let (input, out) = (backend.new_act(rows, k), backend.new_act(rows, n));
    let zeros = vec![0; rows];
    backend.begin(Batch { tokens: &zeros, positions: &zeros, sequences: &[] });
    backend.host_mut(input).copy_from_slice(x);
    backend.matmul(input, matrix, None, Epilogue::Store, out);
    backend.read(out).to_vec()
}

/// Every recorded layer of a model.
fn check(name: &str) {
    let Some(folder) = folder(name) else { return };
    let quantized = arch::read(&folder).expect("a model").quantized;
    let checkpoint = Checkpoint::open(&folder, None, 1).expect("weights").quantized(quantized.weights);
    let bytes = std::fs::read(folder.join("reference_act.safetensors")).expect("recorded layers");
    let tensors = SafeTensors::deserialize(&bytes).expect("safetensors");
    let all = tensors.names();
    let layers = all.iter().filter_map(|name| name.strip_prefix("unit.")?.strip_suffix(".x"));
    let mut checked = 0;
    for layer in layers {
        let (x, shape) = numbers(&tensors, &format!("unit.{layer}.x")).expect("x");
        let (want, _) = numbers(&tensors, &format!("unit.{layer}.y")).expect("y");
        let (n, k) = (want.len() / shape[0], shape[1]);
        let location = format!("{layer}.weight").into();
        let slice = Slice { location, shape: vec![n, k], rows: 0..n, cols: 0..k, role: Role::Matrix };
        let largest = want.iter().fold(0.0_f32, |most, y| most.max(y.abs()));
        for isa in Isa::available() {
            let got = run(&checkpoint, slice.clone(), &x, isa);
            for (index, (got, want)) in got.iter().zip(&want).enumerate() {
                assert!((got - want).abs() <= 1e-5 * largest, "{name}, {layer}, {isa:?}, {index}: {got} is not {want}");
            }
        }
        checked += 1;
    }
    assert!(checked > 0, "{name} records no layer");
}

#[test]
fn inputs_are_rounded_as_recorded() {
    let folders = ["llama-fp8-block", "llama-fp8-dynamic", "llama-fp8-native", "llama-fp8-static"];
    folders.into_iter().for_each(check);
}
