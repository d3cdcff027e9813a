//! One suite over every backend: each operation against a plain float64 reference, and results that do not depend on
//! company.

mod attention;
mod between;
mod gpu;
mod integers;
mod invariance;
mod latent;
mod lora;
mod many;
mod matmul;
mod moe;
mod noise;
mod packed;
mod random;
mod ranks;
mod recurrent;
mod rounded;
mod routing;
mod rowwise;
mod sample;
mod scaled;

use kernels::cpu::{CpuBackend, CpuOptions, Isa};
use kernels::e4m3;
use kernels::ops::{Act, Backend, Batch, DType, HostMatrix, KvDType};
use random::Random;

/// Every backend of this machine: each instruction set with two threads, the best also with one; and the GPU where
/// there is one. `QUIRE_TEST_DEVICE` says `cpu` or `cuda` for one of the two.
fn backends() -> Vec<Box<dyn Backend>> {
    let only = std::env::var("QUIRE_TEST_DEVICE").ok();
    let mut all: Vec<Box<dyn Backend>> = Vec::new();
    if only.as_deref() != Some("cuda") {
        all.extend(Isa::available().into_iter().map(|isa| cpu(isa, 2)));
        all.push(cpu(Isa::detect(), 1));
    }
    if only.as_deref() != Some("cpu") {
        all.extend(gpu::backend(only.is_some()));
    }
    all
}

fn cpu(isa: Isa, threads: usize) -> Box<dyn Backend> {
    Box::new(CpuBackend::new(CpuOptions { threads, isa: Some(isa) }))
}

/// Starts a step of `rows` rows that belong to no sequence.
fn begin_rows(backend: &mut dyn Backend, rows: usize) {
    let tokens = vec![0; rows];
    backend.begin(Batch { tokens: &tokens, positions: &tokens, sequences: &[] });
}

/// A new buffer with these rows, in a step that has begun.
fn filled(backend: &mut dyn Backend, width: usize, values: &[f32]) -> Act {
    filled_in(backend, width, values, DType::F32)
}

/// The same in a buffer that may round them.
fn filled_in(backend: &mut dyn Backend, width: usize, values: &[f32], precision: DType) -> Act {
    let rows = values.len() / width;
    let act = backend.new_rounded_act(rows, width, precision);
    begin_rows(backend, rows);
    backend.host_mut(act).copy_from_slice(values);
    act
}

/// A new buffer full of NaN.
fn poisoned(backend: &mut dyn Backend, rows: usize, width: usize) -> Act {
    filled(backend, width, &vec![f32::NAN; rows * width])
}

/// A value as `dtype` keeps it.
fn round(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::F32 => value,
        DType::Bf16 => half::bf16::from_f32(value).to_f32(),
        DType::F16 => half::f16::from_f32(value).to_f32(),
    }
}

/// A value as a cache keeps it.
fn round_cached(value: f32, dtype: KvDType) -> f32 {
    match dtype {
        KvDType::Float(dtype) => round(value, dtype),
        KvDType::E4m3 => e4m3::decode(e4m3::encode(value)),
    }
}

/// A matrix rounded to `dtype`: its bytes, and its values.
fn encode(values: &[f32], dtype: DType) -> (Vec<u8>, Vec<f32>) {
    let rounded: Vec<f32> = values.iter().map(|&value| round(value, dtype)).collect();
    let bytes = match dtype {
        DType::F32 => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|&value| half::bf16::from_f32(value).to_le_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|&value| half::f16::from_f32(value).to_le_bytes()).collect(),
    };
    (bytes, rounded)
}

fn host(dtype: DType, rows: usize, cols: usize, bytes: &[u8]) -> HostMatrix<'_> {
    HostMatrix::plain(dtype, rows, cols, bytes)
}

/// Every element within `tolerance(index)` of the reference, and none NaN.
fn check(what: &str, got: &[f32], want: &[f64], tolerance: impl Fn(usize) -> f64) {
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    for (index, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= tolerance(index), "{what}: element {index} is {got}, want {want} (off by {error:e})");
    }
}

/// The same to a relative error, and an absolute one near zero.
fn check_relative(what: &str, got: &[f32], want: &[f64], relative: f64) {
    check(what, got, want, |index| relative * (want[index].abs() + 0.1));
}

/// Bit for bit the same.
fn check_same(what: &str, got: &[f32], want: &[f32]) {
    assert_eq!(got.len(), want.len(), "{what}: number of elements");
    let differs = got.iter().zip(want).position(|(got, want)| got.to_bits() != want.to_bits());
    if let Some(index) = differs {
        panic!("{what}: element {index} is {} here and {} there", got[index], want[index]);
    }
}
