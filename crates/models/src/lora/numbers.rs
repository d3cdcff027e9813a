//! An adapter's numbers on the host, in the type that the device keeps them in.

use std::borrow::Cow;

use half::{bf16, f16};
use kernels::ops::DType;

/// Numbers of one type.
#[derive(Debug)]
pub(super) enum Numbers {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    F16(Vec<f16>),
}

impl Numbers {
    /// Rounds to nearest, as the device would: rounding what is rounded changes nothing.
    pub(super) fn new(values: Vec<f32>, dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::F32(values),
            DType::Bf16 => Self::Bf16(values.into_iter().map(bf16::from_f32).collect()),
            DType::F16 => Self::F16(values.into_iter().map(f16::from_f32).collect()),
        }
    }

    pub(super) fn widened(&self) -> Cow<'_, [f32]> {
        match self {
            Self::F32(values) => Cow::Borrowed(values),
            Self::Bf16(values) => values.iter().map(|value| value.to_f32()).collect(),
            Self::F16(values) => values.iter().map(|value| value.to_f32()).collect(),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        (match self {
            Self::F32(values) => size_of_val(values.as_slice()),
            Self::Bf16(values) => size_of_val(values.as_slice()),
            Self::F16(values) => size_of_val(values.as_slice()),
        }) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_once() {
        let values = vec![1.0, -0.1, 1.0 / 3.0, 65504.0];
        for (dtype, bytes) in [(DType::F32, 16), (DType::Bf16, 8), (DType::F16, 8)] {
            let numbers = Numbers::new(values.clone(), dtype);
            assert_eq!(numbers.bytes(), bytes);
            let once = numbers.widened().into_owned();
            assert_eq!(once == values, dtype == DType::F32);
            assert_eq!(Numbers::new(once.clone(), dtype).widened(), once);
        }
    }
}
