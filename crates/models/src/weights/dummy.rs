//! Random weights from a seed, for measuring without a download.
//!
//! An element depends on (seed, tensor, index) alone, so every rank makes just its own slices and any split gives the same model.

use std::borrow::Cow;

use kernels::ops::DType;

use super::cast::narrow;
use super::{Chunk, Role, Slice, Weights};
use crate::error::LoadError;

/// Random weights of one element type.
pub(crate) struct Dummy {
    pub seed: u64,
    pub dtype: DType,
}

impl Weights for Dummy {
    fn check(&self, _: &Slice) -> Result<DType, LoadError> {
        Ok(self.dtype)
    }

    fn fetch(&self, slice: &Slice) -> Result<Chunk<'_>, LoadError> {
        let mut bytes = Vec::with_capacity(slice.elements() * self.dtype.size());
        match slice.role {
            Role::Scale => narrow(std::iter::repeat_n(1.0, slice.elements()), self.dtype, &mut bytes),
            Role::Shift => narrow(std::iter::repeat_n(0.0, slice.elements()), self.dtype, &mut bytes),
            // Uniform with variance 1 / width: a product keeps its input's size, whatever the depth.
            Role::Matrix | Role::UnitRows => self.uniform(slice, (3.0 / slice.width() as f32).sqrt(), &mut bytes),
        }
        Ok(Chunk { dtype: self.dtype, bytes: Cow::Owned(bytes) })
    }
}

/// Distinct values of a random matrix.
const LEVELS: usize = 4096;

impl Dummy {
    fn uniform(&self, slice: &Slice, bound: f32, out: &mut Vec<u8>) {
        // Values are looked up ready-made: making billions of them should take seconds.
        let mut levels = Vec::new();
        let level = |i: usize| bound * ((2 * i + 1) as f32 / LEVELS as f32 - 1.0);
        narrow((0..LEVELS).map(level), self.dtype, &mut levels);
        let key = slice.place.tensor.bytes().fold(mix(self.seed), |key, byte| mix(key ^ u64::from(byte)));
        let key = slice.place.stack.map_or(key, |stack| mix(key ^ stack.index as u64));
        out.resize(slice.elements() * self.dtype.size(), 0);
        match self.dtype {
            DType::F32 => fill::<4>(key, slice, &levels, out),
            DType::Bf16 | DType::F16 => fill::<2>(key, slice, &levels, out),
        }
    }
}

/// Fills `out` with elements of `N` bytes picked from `levels`.
fn fill<const N: usize>(key: u64, slice: &Slice, levels: &[u8], out: &mut [u8]) {
    let (levels, out) = (levels.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
    let rows = slice.rows.clone().map(|row| slice.place.rows.stored(row));
    for (row, out) in rows.zip(out.chunks_exact_mut(slice.cols.len())) {
        let row_key = mix(key ^ mix(row as u64));
        // Four elements from each 64-bit draw.
        let draw = |col: usize| mix(row_key.wrapping_add((col / 4) as u64));
        let (mut col, mut bits) = (slice.cols.start, draw(slice.cols.start) >> (16 * (slice.cols.start % 4)));
        for element in out {
            if col.is_multiple_of(4) {
                bits = draw(col);
            }
            *element = levels[bits as usize % LEVELS];
            (col, bits) = (col + 1, bits >> 16);
        }
    }
}

/// The finaliser of splitmix64 (Steele, Lea, Flood 2014).
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use super::super::cast::widen;
    use super::*;

    fn fetch(rows: Range<usize>, cols: Range<usize>) -> Vec<f32> {
        let slice = Slice { place: "w".to_owned().into(), shape: vec![64, 48], rows, cols, role: Role::Matrix };
        let chunk = Dummy { seed: 7, dtype: DType::F32 }.fetch(&slice).unwrap();
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
    fn mean_is_zero_and_variance_one_over_width() {
        let values = fetch(0..64, 0..48);
        let n = values.len() as f32;
        let mean = values.iter().sum::<f32>() / n;
        let variance = values.iter().map(|x| x * x).sum::<f32>() / n;
        assert!(mean.abs() < 0.01 && (variance * 48.0 - 1.0).abs() < 0.1, "{mean} {variance}");
    }
}
