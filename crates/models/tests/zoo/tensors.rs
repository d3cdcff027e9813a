//! Tensors of a file that a test changes and writes again.

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize};

/// A tensor in float32.
#[derive(Clone)]
pub struct Tensor {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

/// By name.
pub type Tensors = BTreeMap<String, Tensor>;

/// The tensors of a file of float32, bfloat16 and float16.
pub fn read(file: &Path) -> Tensors {
    let bytes = std::fs::read(file).expect("weights");
    let found = SafeTensors::deserialize(&bytes).expect("tensors");
    let tensor = |(name, view): (String, TensorView<'_>)| {
        let (data, shape) = (view.data(), view.shape().to_vec());
        let values = match view.dtype() {
            Dtype::F32 => data.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            Dtype::BF16 => data.as_chunks().0.iter().map(|bytes| bf16::from_le_bytes(*bytes).to_f32()).collect(),
            Dtype::F16 => data.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
            other => panic!("{name} is of {other:?}"),
        };
        (name, Tensor { shape, values })
    };
    found.tensors().into_iter().map(tensor).collect()
}

/// Writes a file of float32.
pub fn write(tensors: &Tensors, file: &Path) {
    let bytes = |tensor: &Tensor| tensor.values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let stored: Vec<_> = tensors.iter().map(|(name, tensor)| (name, &tensor.shape, bytes(tensor))).collect();
    let views = stored.iter().map(|(name, shape, bytes)| {
        (name.as_str(), TensorView::new(Dtype::F32, (*shape).clone(), bytes).expect("a tensor"))
    });
    std::fs::write(file, serialize(views, None).expect("bytes")).expect("written");
}
