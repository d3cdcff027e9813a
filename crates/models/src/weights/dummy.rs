//! Random weights from a seed, for measuring without a download.
//!
//! An element depends on (seed, tensor, index) alone, so every rank makes just its own slices and any split gives the
//! same model.

use std::borrow::Cow;

use kernels::ops::{DType, NoiseRows, mix};

use super::cast::{cast, narrow};
use super::dummy_codes::DrawnCodes;
use super::spread::spread;
use super::{Chunk, DummyFormat, Fetched, Random, Role, Slice, Stored, TensorLocation, Weights};
use crate::error::LoadError;

/// Random weights of one element type.
pub(crate) struct Dummy {
    pub seed: u64,
    pub dtype: DType,
    /// What projections are in place of numbers.
    pub stored: Option<DummyFormat>,
    /// How many make numbers and codes.
    pub threads: usize,
    /// What codes are taken from.
    pub codes: DrawnCodes,
}

impl Weights for Dummy {
    fn check(&self, slice: &Slice) -> Result<Stored, LoadError> {
        Ok(self.stored_codes(slice).unwrap_or_else(|| Stored::plain(self.dtype, slice.elements())))
    }

    fn fetch(&self, slice: &Slice) -> Result<Fetched<'_>, LoadError> {
        Ok(match self.stored_codes(slice) {
            Some(Stored { format, .. }) => self.codes(slice, format),
            None => Fetched::Plain(self.chunk(slice)),
        })
    }

    fn random(&self, slice: &Slice, dtype: DType) -> Option<Random> {
        let is_plain = matches!(slice.role, Role::Matrix | Role::Projection) && self.stored_codes(slice).is_none();
        is_plain.then(|| self.values(slice, dtype))
    }
}

/// Distinct values of a random matrix.
const LEVELS: usize = 4096;

impl Dummy {
    /// Numbers, no codes.
    pub(crate) fn new(seed: u64, dtype: DType, threads: usize) -> Self {
        Self { seed, dtype, stored: None, threads, codes: DrawnCodes::default() }
    }

    /// A slice's elements as numbers, for weights of `f32`.
    pub(crate) fn numbers(&self, slice: &Slice) -> Vec<f32> {
        debug_assert_eq!(self.dtype, DType::F32);
        let bytes = self.chunk(slice).bytes;
        bytes.as_chunks().0.iter().map(|bytes| f32::from_ne_bytes(*bytes)).collect()
    }

    /// A slice's elements.
    pub(super) fn chunk(&self, slice: &Slice) -> Chunk<'static> {
        let bytes = match slice.role {
            Role::Scale => self.equal(1.0, slice),
            Role::Shift => self.equal(0.0, slice),
            Role::Matrix | Role::Projection | Role::UnitRows => self.uniform(slice),
        };
        Chunk { dtype: self.dtype, bytes: Cow::Owned(bytes) }
    }

    /// The elements' values, rounded to the weights' type and then to `dtype`, and what they are drawn from. Looked up
    /// ready-made: making billions of elements should take seconds.
    pub(super) fn values(&self, slice: &Slice, dtype: DType) -> Random {
        // Uniform with variance 1 / width: a product keeps its input's size, whatever the depth.
        let bound = (3.0 / slice.width() as f32).sqrt();
        let level = |i: usize| bound * ((2 * i + 1) as f32 / LEVELS as f32 - 1.0);
        let mut stored = Vec::new();
        narrow((0..LEVELS).map(level), self.dtype, &mut stored);
        let levels = cast(self.dtype, Cow::Owned(stored), dtype).into_owned();
        Random { key: self.matrix_key(&slice.location), levels }
    }

    /// What a matrix's draws start from.
    pub(super) fn matrix_key(&self, location: &TensorLocation) -> u64 {
        let key = self.key(&location.tensor);
        location.stack.map_or(key, |stack| mix(key ^ stack.index as u64))
    }

    /// What a tensor's draws start from.
    pub(super) fn key(&self, tensor: &str) -> u64 {
        tensor.bytes().fold(mix(self.seed), |key, byte| mix(key ^ u64::from(byte)))
    }

    fn equal(&self, value: f32, slice: &Slice) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(slice.elements() * self.dtype.size());
        narrow(std::iter::repeat_n(value, slice.elements()), self.dtype, &mut bytes);
        bytes
    }

    fn uniform(&self, slice: &Slice) -> Vec<u8> {
        let values = self.values(slice, self.dtype);
        let (rows, cols, size) = (values.rows(slice), slice.cols.len().max(1), self.dtype.size());
        // Zeros from the system: threads that fill pages also make them.
        let mut bytes = vec![0; slice.elements() * size];
        spread(&mut bytes, cols * size, self.threads, |first_row, part| match self.dtype {
            DType::F32 => fill::<4>(&rows, first_row, cols, part),
            DType::Bf16 | DType::F16 => fill::<2>(&rows, first_row, cols, part),
        });
        bytes
    }
}

/// Fills `out` with rows of `cols` elements of `N` bytes, from the slice's row `first_row` on.
fn fill<const N: usize>(rows: &NoiseRows<'_>, first_row: usize, cols: usize, out: &mut [u8]) {
    let (levels, out) = (rows.levels.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
    let first = rows.first_col;
    for (row, out) in out.chunks_exact_mut(cols).enumerate() {
        let row_key = rows.row_key(first_row + row);
        // Four elements from each 64-bit draw.
        let draw = |col: usize| mix(row_key.wrapping_add((col / 4) as u64));
        let (mut col, mut bits) = (first, draw(first) >> (16 * (first % 4)));
        for element in out {
            if col.is_multiple_of(4) {
                bits = draw(col);
            }
            *element = levels[bits as usize % LEVELS];
            (col, bits) = (col + 1, bits >> 16);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::super::cast::widen;
    use super::*;

    fn fetch(rows: Range<usize>, cols: Range<usize>) -> Vec<f32> {
        let slice = Slice { location: "w".to_owned().into(), shape: vec![64, 48], rows, cols, role: Role::Matrix };
        let chunk = Dummy::new(7, DType::F32, 1).chunk(&slice);
        widen(chunk.dtype, &chunk.bytes)
    }

    #[test]
    fn slices_are_parts_of_the_whole() {
        let whole = fetch(0..64, 0..48);
        let part = fetch(10..20, 5..31);
        for (i, value) in part.iter().enumerate() {
            assert_eq!(*value, whole[(10 + i / 26) * 48 + 5 + i % 26]);
        }
    }

    #[test]
    fn threads_make_the_same_numbers() {
        let slice = Slice {
            location: "w".to_owned().into(),
            shape: vec![999, 1001],
            rows: 3..999,
            cols: 2..1001,
            role: Role::Matrix,
        };
        let bytes = |threads| Dummy::new(7, DType::Bf16, threads).chunk(&slice).bytes;
        assert_eq!(bytes(1), bytes(5));
    }

    #[test]
    fn mean_is_zero_and_variance_one_over_width() {
        let values = fetch(0..64, 0..48);
        let n = values.len() as f32;
        let mean = values.iter().sum::<f32>() / n;
        let variance = values.iter().map(|x| x * x).sum::<f32>() / n;
        assert!(mean.abs() < 0.01 && (variance * 48.0 - 1.0).abs() < 0.1, "{mean} {variance}");
    }
}
