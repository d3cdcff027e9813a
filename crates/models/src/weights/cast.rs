//! Conversions between element types of raw little-endian bytes.

use std::borrow::Cow;

use half::{bf16, f16};
use kernels::ops::DType;

/// All elements as f32, which holds each of the types exactly.
pub(crate) fn widen(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    match dtype {
        DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        DType::Bf16 => bytes.chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        DType::F16 => bytes.chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
    }
}

/// Rounds each value (to nearest, ties to even) and appends its bytes.
pub(crate) fn narrow(values: impl Iterator<Item = f32>, dtype: DType, out: &mut Vec<u8>) {
    match dtype {
        DType::F32 => values.for_each(|x| out.extend_from_slice(&x.to_le_bytes())),
        DType::Bf16 => values.for_each(|x| out.extend_from_slice(&bf16::from_f32(x).to_le_bytes())),
        DType::F16 => values.for_each(|x| out.extend_from_slice(&f16::from_f32(x).to_le_bytes())),
    }
}

/// Rounds each value into its place.
pub(crate) fn narrow_into(values: &[f32], dtype: DType, out: &mut [u8]) {
    match dtype {
        DType::F32 => each(values, out, f32::to_le_bytes),
        DType::Bf16 => each(values, out, |x| bf16::from_f32(x).to_le_bytes()),
        DType::F16 => each(values, out, |x| f16::from_f32(x).to_le_bytes()),
    }
}

/// Without growth between elements, so that it becomes vector code.
fn each<const N: usize>(values: &[f32], out: &mut [u8], round: impl Fn(f32) -> [u8; N]) {
    values.iter().zip(out.as_chunks_mut::<N>().0).for_each(|(value, out)| *out = round(*value));
}

/// The same elements in another type.
pub(crate) fn cast(from: DType, bytes: Cow<'_, [u8]>, to: DType) -> Cow<'_, [u8]> {
    if from == to {
        return bytes;
    }
    let mut out = Vec::with_capacity(bytes.len() / from.size() * to.size());
    narrow(widen(from, &bytes).into_iter(), to, &mut out);
    Cow::Owned(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_then_widen() {
        let values = [0.0f32, 1.0, -2.5, 1.0 / 3.0];
        for (dtype, error) in [(DType::F32, 0.0), (DType::Bf16, 2e-3), (DType::F16, 2e-4)] {
            let mut bytes = Vec::new();
            narrow(values.into_iter(), dtype, &mut bytes);
            assert_eq!(bytes.len(), values.len() * dtype.size());
            let mut placed = vec![0; bytes.len()];
            narrow_into(&values, dtype, &mut placed);
            assert_eq!(placed, bytes);
            for (got, want) in widen(dtype, &bytes).iter().zip(values) {
                assert!((got - want).abs() <= error, "{dtype:?}: {got} is not {want}");
            }
        }
    }
}
