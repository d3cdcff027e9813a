//! An adapter's numbers on the host, in the type that the device keeps them in.

use kernels::ops::{DType, PlainElements};

use crate::weights::narrow;

/// Numbers of one type.
#[derive(Debug)]
pub(super) struct Numbers {
    dtype: DType,
    bytes: Vec<u8>,
}

impl Numbers {
    /// Rounds to nearest.
    pub(super) fn new(values: Vec<f32>, dtype: DType) -> Self {
        let mut bytes = Vec::with_capacity(values.len() * dtype.size());
        narrow(values.into_iter(), dtype, &mut bytes);
        Self { dtype, bytes }
    }

    pub(super) fn elements(&self) -> PlainElements<'_> {
        PlainElements { dtype: self.dtype, bytes: &self.bytes }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes.len() as u64
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
            let once = numbers.elements().widened();
            assert_eq!(once == values, dtype == DType::F32);
            assert_eq!(Numbers::new(once.clone(), dtype).elements().widened(), once);
        }
    }
}
