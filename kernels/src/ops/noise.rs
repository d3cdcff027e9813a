//! Random matrices whose elements depend on their place alone, so that any part of one can be made anywhere.

use std::ops::Range;

use super::DType;

/// A matrix of random numbers, then rows of zeros.
///
/// Element `(r, c)` of a part is `levels[draw(row(r), c) % levels.len()]`, where `draw(row, c)` is the 16 bits from `16
/// * (c % 4)` on of `mix(mix(key ^ mix(row)) + c / 4)`, and `mix` is the finaliser of splitmix64 (Steele, Lea, Flood
/// 2014) after adding its constant.
#[derive(Clone, Copy, Debug)]
pub struct Noise<'a> {
    /// Element type of the matrix and of `levels`.
    pub dtype: DType,
    /// Columns of every part.
    pub cols: usize,
    /// Parts, one below the other.
    pub parts: &'a [NoiseRows<'a>],
    /// Rows of zeros below them.
    pub pad_rows: usize,
}

/// Rows of random numbers.
#[derive(Clone, Debug)]
pub struct NoiseRows<'a> {
    /// Tells matrices apart.
    pub key: u64,
    /// Rows of the whole matrix, before they are spread by `period`.
    pub rows: Range<usize>,
    /// `row(r) = r / size * period + offset + r % size` for `r` in `rows`.
    pub size: usize,
    /// See `size`.
    pub period: usize,
    /// See `size`.
    pub offset: usize,
    /// The first of these columns of the whole matrix; there are [`Noise::cols`].
    pub first_col: usize,
    /// The values that elements may have: a power of two of them, at most 65,536, little-endian.
    pub levels: &'a [u8],
}

/// The finaliser of splitmix64 after adding its constant.
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl NoiseRows<'_> {
    /// What the `index`th row's draws start from.
    pub fn row_key(&self, index: usize) -> u64 {
        let r = self.rows.start + index;
        mix(self.key ^ mix((r / self.size * self.period + self.offset + r % self.size) as u64))
    }
}
