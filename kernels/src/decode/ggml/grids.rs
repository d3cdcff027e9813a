//! Super-blocks whose codes are rows of a grid: a few bits choose a row of eight or four magnitudes, others their
//! signs. The grids are data of the format (`ggml-common.h`); `xtask/scripts/ggml_grids.py` writes them.

use super::{Block, above_middle, half};

/// 16 bits a row: the levels of its elements, the first in the lowest bits.
static ROWS: &[u8; 9216] = include_bytes!("grids.bin");

/// A grid: rows that follow each other in [`ROWS`].
struct Grid {
    first: usize,
    levels: &'static [i8],
}

const TWO: &[i8; 4] = &[8, 25, 43, 0];

const IQ1: Grid = Grid { first: 0, levels: &[-1, 0, 1, 0] };
const IQ2_XXS: Grid = Grid { first: 2048, levels: TWO };
const IQ2_XS: Grid = Grid { first: 2304, levels: TWO };
const IQ2_S: Grid = Grid { first: 2816, levels: TWO };
const IQ3_XXS: Grid = Grid { first: 3840, levels: &[4, 12, 20, 28, 36, 44, 52, 62] };
const IQ3_S: Grid = Grid { first: 4096, levels: &[1, 3, 5, 7, 9, 11, 13, 15] };

/// The codes that become of them: with eighths, and of either sign.
pub(super) const IQ1_CODES: [u8; 16] = above_middle([-9, -7, -1, 1, 7, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
pub(super) const IQ2_CODES: [u8; 16] = above_middle([-43, -25, -8, 8, 25, 43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
pub(super) const IQ3_XXS_CODES: [u8; 16] =
    above_middle([-62, -52, -44, -36, -28, -20, -12, -4, 4, 12, 20, 28, 36, 44, 52, 62]);

impl Grid {
    /// Writes the elements of a row.
    fn write(&self, row: usize, codes: &mut [i8]) {
        let at = 2 * (self.first + row);
        let (row, width) = (u16::from_le_bytes([ROWS[at], ROWS[at + 1]]), self.levels.len().trailing_zeros());
        for (j, code) in codes.iter_mut().enumerate() {
            *code = self.levels[usize::from(row >> (width * j as u32)) % self.levels.len()];
        }
    }
}

/// Negates those of eight codes whose bit is set.
fn sign(signs: u8, codes: &mut [i8]) {
    codes.iter_mut().enumerate().filter(|(j, _)| signs >> j & 1 == 1).for_each(|(_, code)| *code = -*code);
}

/// Eight signs of seven bits: an even number of elements is negative.
fn even(bits: u32) -> u8 {
    let seven = (bits & 127) as u8;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// A number of four bits of several, the lower half of a byte first.
fn nibble(bytes: &[u8], j: usize) -> u8 {
    bytes[j / 2] >> (j % 2 * 4) & 15
}

fn word(bytes: &[u8], j: usize) -> u32 {
    u32::from_le_bytes([bytes[4 * j], bytes[4 * j + 1], bytes[4 * j + 2], bytes[4 * j + 3]])
}

fn short(bytes: &[u8], j: usize) -> u16 {
    u16::from_le_bytes([bytes[2 * j], bytes[2 * j + 1]])
}

/// `d`; for each 32 elements four rows (8 bits each), four times 7 signs and a scale of 4 bits:
/// `d * (scale + 1/2) / 4`.
pub(super) fn iq2_xxs(bytes: &[u8], block: &mut Block) {
    let d = half(bytes, 0);
    for (j, bytes) in bytes[2..].chunks_exact(8).enumerate() {
        let last = word(bytes, 1);
        block.scales[j] = d * (0.5 + (last >> 28) as f32) * 0.25;
        for (l, codes) in block.codes[32 * j..][..32].chunks_exact_mut(8).enumerate() {
            IQ2_XXS.write(usize::from(bytes[l]), codes);
            sign(even(last >> (7 * l)), codes);
        }
    }
}

/// `d`; for each 8 elements a row (9 bits) and 7 signs; 16 scales of 4 bits: `d * (scale + 1/2) / 4`.
pub(super) fn iq2_xs(bytes: &[u8], block: &mut Block) {
    quarters(half(bytes, 0), &bytes[66..], block);
    for (i, codes) in block.codes.chunks_exact_mut(8).enumerate() {
        let bits = short(&bytes[2..], i);
        IQ2_XS.write(usize::from(bits & 511), codes);
        sign(even(u32::from(bits >> 9)), codes);
    }
}

/// `d`; for each 8 elements a row (8 bits), then their signs, then two more bits of each row; 16 scales of 4 bits:
/// `d * (scale + 1/2) / 4`.
pub(super) fn iq2_s(bytes: &[u8], block: &mut Block) {
    let (rows, signs, high) = (&bytes[2..34], &bytes[34..66], &bytes[66..74]);
    quarters(half(bytes, 0), &bytes[74..], block);
    for (i, codes) in block.codes.chunks_exact_mut(8).enumerate() {
        let high = usize::from(high[i / 4] >> (i % 4 * 2) & 3);
        IQ2_S.write(usize::from(rows[i]) | high << 8, codes);
        sign(signs[i], codes);
    }
}

/// The scales of IQ2_XS and IQ2_S.
fn quarters(d: f32, scales: &[u8], block: &mut Block) {
    let scale = |(j, scale): (usize, &mut f32)| *scale = d * (0.5 + f32::from(nibble(scales, j))) * 0.25;
    block.scales.iter_mut().enumerate().for_each(scale);
}

/// `d`; for each 4 elements a row (8 bits); for each 32 elements four times 7 signs and a scale of 4 bits:
/// `d * (scale + 1/2) / 2`.
pub(super) fn iq3_xxs(bytes: &[u8], block: &mut Block) {
    let (d, rows) = (half(bytes, 0), &bytes[2..66]);
    for (i, codes) in block.codes.chunks_exact_mut(8).enumerate() {
        let last = word(&bytes[66..], i / 4);
        block.scales[i / 4] = d * (0.5 + (last >> 28) as f32) * 0.5;
        codes.chunks_exact_mut(4).zip(&rows[2 * i..]).for_each(|(codes, row)| IQ3_XXS.write(usize::from(*row), codes));
        sign(even(last >> (i % 4 * 7)), codes);
    }
}

/// `d`; for each 4 elements a row (8 bits), then a ninth bit of each, then signs; 8 scales of 4 bits:
/// `d * (2 * scale + 1)`. Magnitudes are odd and at most 15, so that a code of four bits is `2 * code - 15` of them.
pub(super) fn iq3_s(bytes: &[u8], block: &mut Block) {
    let (rows, ninth, signs, scales) = (&bytes[2..66], &bytes[66..74], &bytes[74..106], &bytes[106..]);
    let d = half(bytes, 0);
    for j in 0..8 {
        let scale = d * f32::from(2 * nibble(scales, j) + 1);
        (block.scales[j], block.offsets[j]) = (2.0 * scale, 15.0 * scale);
    }
    for (i, codes) in block.codes.chunks_exact_mut(8).enumerate() {
        for (g, codes) in (2 * i..).zip(codes.chunks_exact_mut(4)) {
            IQ3_S.write(usize::from(rows[g]) | usize::from(ninth[g / 8] >> (g % 8) & 1) << 8, codes);
        }
        sign(signs[i], codes);
        codes.iter_mut().for_each(|code| *code = (*code + 15) / 2);
    }
}

/// Eight elements: a row of -1, 0 and 1, and an eighth that is added or taken away. As integers eight times that.
fn eighths(row: usize, is_less: bool, codes: &mut [i8]) {
    IQ1.write(row, codes);
    codes.iter_mut().for_each(|code| *code = 8 * *code + if is_less { -1 } else { 1 });
}

/// `d`; for each 8 elements a row (8 bits); for each 32 elements four times three more bits of rows, a scale of 3 bits
/// and whether an eighth is taken away: `d * (2 * scale + 1)`.
pub(super) fn iq1_s(bytes: &[u8], block: &mut Block) {
    let (d, rows) = (half(bytes, 0), &bytes[2..34]);
    for (i, codes) in block.codes.chunks_exact_mut(8).enumerate() {
        let last = short(&bytes[34..], i / 4);
        block.scales[i / 4] = d * f32::from(2 * (last >> 12 & 7) + 1) / 8.0;
        let high = usize::from(last >> (i % 4 * 3) & 7);
        eighths(usize::from(rows[i]) | high << 8, last >> 15 == 1, codes);
    }
}

/// For each 8 elements a row (8 bits), then three more bits of it and whether an eighth is taken away; 16 scales of 3
/// bits, four in 16 bits whose last four are a part of `d`: `d * (2 * scale + 1)`.
pub(super) fn iq1_m(bytes: &[u8], block: &mut Block) {
    let (rows, high, scales) = (&bytes[..32], &bytes[32..48], &bytes[48..]);
    let bits = (0..4).fold(0, |bits, j| bits | short(scales, j) >> 12 << (4 * j));
    let d = half(&bits.to_le_bytes(), 0);
    for (j, scale) in block.scales.iter_mut().enumerate() {
        *scale = d * f32::from(2 * (short(scales, j / 4) >> (j % 4 * 3) & 7) + 1) / 8.0;
    }
    for (i, codes) in block.codes.chunks_exact_mut(8).enumerate() {
        let high = nibble(high, i);
        eighths(usize::from(rows[i]) | usize::from(high & 7) << 8, high & 8 != 0, codes);
    }
}
