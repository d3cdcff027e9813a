//! ggml's blocks, exactly as `dequantize_row_*` of `ggml-quants.c` defines them: signed codes, and for each small block
//! a scale and an offset, so that a weight is `code * scale - offset`.
//!
//! Blocks of 32 hold a scale `d` (f16), of some an offset `m`, and the quants `q`: low halves of bytes are the first 16
//! elements, high halves the last 16. Super-blocks of 256 hold eight or sixteen small blocks, each with an integer
//! scale (and of some an integer offset) that multiply the super-block's own `d` and `dmin`.

mod grids;

use half::f16;

use super::{IntegerFormat, IntegerRow, Offsets};
use crate::ops::{CodeBits, GgmlBlocks, GgmlType, WeightFormat};

/// The levels of IQ4_NL and IQ4_XS.
const LEVELS: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// A block, unpacked.
struct Block {
    codes: [i8; 256],
    /// Of each small block.
    scales: [f32; 16],
    offsets: [f32; 16],
}

/// Weights that share a scale.
pub(super) const fn group(kind: GgmlType) -> usize {
    match kind {
        GgmlType::Q2K | GgmlType::Q3K | GgmlType::Q6K => 16,
        GgmlType::Iq1M | GgmlType::Iq2Xs | GgmlType::Iq2S => 16,
        GgmlType::Tq1_0 | GgmlType::Tq2_0 => 128,
        _ => 32,
    }
}

/// The codes that there are, where these are sixteen at most that do not follow each other.
pub(super) const fn levels(kind: GgmlType) -> Option<&'static [u8; 16]> {
    match kind {
        GgmlType::Iq4Nl | GgmlType::Iq4Xs => Some(const { &above_middle(LEVELS) }),
        GgmlType::Iq1S | GgmlType::Iq1M => Some(&grids::IQ1_CODES),
        GgmlType::Iq2Xxs | GgmlType::Iq2Xs | GgmlType::Iq2S => Some(&grids::IQ2_CODES),
        GgmlType::Iq3Xxs => Some(&grids::IQ3_XXS_CODES),
        _ => None,
    }
}

/// Signed codes as those without sign, which count from the middle.
const fn above_middle(codes: [i8; 16]) -> [u8; 16] {
    let (mut bytes, mut at) = ([0; 16], 0);
    while at < 16 {
        bytes[at] = (codes[at] as u8).wrapping_add(128);
        at += 1;
    }
    bytes
}

/// Unpacks a row.
pub(super) fn read(blocks: GgmlBlocks<'_>, row: usize, cols: usize, out: &mut IntegerRow) {
    let GgmlBlocks { kind, bytes } = blocks;
    let (shape, format) = (kind.block(), IntegerFormat::of_blocks(kind));
    let size = WeightFormat::Blocks(kind).row_bytes(cols);
    let mut block = Block { codes: [0; 256], scales: [0.0; 16], offsets: [0.0; 16] };
    // Codes of four bits count from their own base, those of eight from the middle.
    let base = if format.bits == CodeBits::Eight { 128 } else { format.base() };
    for bytes in bytes[row * size..][..size].chunks_exact(shape.bytes) {
        unpack(kind, bytes, &mut block);
        let small = shape.elements / format.group;
        out.codes.extend(block.codes[..shape.elements].iter().map(|code| (*code as u8).wrapping_add(base)));
        out.scales.extend(&block.scales[..small]);
        if format.offsets == Offsets::After {
            out.offsets.extend(&block.offsets[..small]);
        }
    }
}

fn unpack(kind: GgmlType, bytes: &[u8], block: &mut Block) {
    match kind {
        GgmlType::Q4_0 => q4_0(bytes, block),
        GgmlType::Q4_1 => q4_1(bytes, block),
        GgmlType::Q5_0 => q5_0(bytes, block),
        GgmlType::Q5_1 => q5_1(bytes, block),
        GgmlType::Q8_0 => q8_0(bytes, block),
        GgmlType::Q2K => q2_k(bytes, block),
        GgmlType::Q3K => q3_k(bytes, block),
        GgmlType::Q4K => q4_k(bytes, block),
        GgmlType::Q5K => q5_k(bytes, block),
        GgmlType::Q6K => q6_k(bytes, block),
        GgmlType::Iq4Nl => iq4_nl(bytes, block),
        GgmlType::Iq4Xs => iq4_xs(bytes, block),
        GgmlType::Iq1S => grids::iq1_s(bytes, block),
        GgmlType::Iq1M => grids::iq1_m(bytes, block),
        GgmlType::Iq2Xxs => grids::iq2_xxs(bytes, block),
        GgmlType::Iq2Xs => grids::iq2_xs(bytes, block),
        GgmlType::Iq2S => grids::iq2_s(bytes, block),
        GgmlType::Iq3Xxs => grids::iq3_xxs(bytes, block),
        GgmlType::Iq3S => grids::iq3_s(bytes, block),
        GgmlType::Tq1_0 => tq1_0(bytes, block),
        GgmlType::Tq2_0 => tq2_0(bytes, block),
    }
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Sets codes `j` and `j + 16` of a small block from the halves of byte `j`.
fn halves(quants: &[u8], codes: &mut [i8], code: impl Fn(usize, u8) -> i8) {
    for (j, byte) in quants.iter().take(16).enumerate() {
        codes[j] = code(j, byte & 15);
        codes[j + 16] = code(j + 16, byte >> 4);
    }
}

/// `d`, then 16 bytes: `(q - 8) * d`.
fn q4_0(bytes: &[u8], block: &mut Block) {
    block.scales[0] = half(bytes, 0);
    halves(&bytes[2..], &mut block.codes, |_, q| q as i8 - 8);
}

/// `d`, `m`, then 16 bytes: `q * d + m`.
fn q4_1(bytes: &[u8], block: &mut Block) {
    (block.scales[0], block.offsets[0]) = (half(bytes, 0), -half(bytes, 2));
    halves(&bytes[4..], &mut block.codes, |_, q| q as i8);
}

/// The fifth bits of a block of 32: bit `j` belongs to element `j`.
fn fifth_bits(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// `d`, fifth bits, then 16 bytes: `(q - 16) * d`.
fn q5_0(bytes: &[u8], block: &mut Block) {
    block.scales[0] = half(bytes, 0);
    let high = fifth_bits(&bytes[2..]);
    halves(&bytes[6..], &mut block.codes, |j, q| (q | ((high >> j & 1) << 4) as u8) as i8 - 16);
}

/// `d`, `m`, fifth bits, then 16 bytes: `q * d + m`.
fn q5_1(bytes: &[u8], block: &mut Block) {
    (block.scales[0], block.offsets[0]) = (half(bytes, 0), -half(bytes, 2));
    let high = fifth_bits(&bytes[4..]);
    halves(&bytes[8..], &mut block.codes, |j, q| (q | ((high >> j & 1) << 4) as u8) as i8);
}

/// `d`, then 32 signed bytes: `q * d`.
fn q8_0(bytes: &[u8], block: &mut Block) {
    block.scales[0] = half(bytes, 0);
    block.codes.iter_mut().zip(&bytes[2..34]).for_each(|(code, q)| *code = *q as i8);
}

/// Where element `i` of a super-block has its two bits: in each half of 128 elements, 32 bytes hold four elements each.
fn two_bits(quants: &[u8], i: usize) -> u8 {
    quants[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// 16 scales and offsets (4 bits each), 64 bytes of quants, `d`, `dmin`: `d * scale * q - dmin * offset`.
fn q2_k(bytes: &[u8], block: &mut Block) {
    let (scales, quants) = (&bytes[..16], &bytes[16..80]);
    let (d, dmin) = (half(bytes, 80), half(bytes, 82));
    for (j, scale) in scales.iter().enumerate() {
        block.scales[j] = d * f32::from(scale & 15);
        block.offsets[j] = dmin * f32::from(scale >> 4);
    }
    block.codes.iter_mut().enumerate().for_each(|(i, code)| *code = two_bits(quants, i) as i8);
}

/// 32 bytes of third bits, 64 bytes of quants, 16 scales of 6 bits, `d`: `d * (scale - 32) * q`, where q is 4 less
/// without its third bit.
fn q3_k(bytes: &[u8], block: &mut Block) {
    let (mask, quants, packed, d) = (&bytes[..32], &bytes[32..96], &bytes[96..108], half(bytes, 108));
    // Low halves in the first eight bytes, high pairs of bits in the last four.
    for (j, scale) in block.scales.iter_mut().enumerate() {
        let low = packed[j % 8] >> (j / 8 * 4) & 15;
        let high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        *scale = d * f32::from((low | high << 4) as i8 - 32);
    }
    for (i, code) in block.codes.iter_mut().enumerate() {
        let third = mask[i % 32] >> (i / 32) & 1;
        *code = two_bits(quants, i) as i8 - if third == 1 { 0 } else { 4 };
    }
}

/// Scales and offsets of the eight small blocks, 6 bits each, of the 12 bytes in which Q4_K and Q5_K pack them.
fn scales_and_offsets(bytes: &[u8], block: &mut Block) {
    let (d, dmin, packed) = (half(bytes, 0), half(bytes, 2), &bytes[4..16]);
    for j in 0..8 {
        let (scale, offset) = if j < 4 {
            (packed[j] & 63, packed[j + 4] & 63)
        } else {
            (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
        };
        (block.scales[j], block.offsets[j]) = (d * f32::from(scale), dmin * f32::from(offset));
    }
}

/// Four bits of element `i` of a super-block: 32 bytes hold 32 elements in their low halves and the next 32 in their
/// high ones.
fn four_bits(quants: &[u8], i: usize) -> u8 {
    quants[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15
}

/// `d`, `dmin`, packed scales and offsets, 128 bytes of quants: `d * scale * q - dmin * offset`.
fn q4_k(bytes: &[u8], block: &mut Block) {
    scales_and_offsets(bytes, block);
    block.codes.iter_mut().enumerate().for_each(|(i, code)| *code = four_bits(&bytes[16..], i) as i8);
}

/// As Q4_K with 32 bytes of fifth bits before the quants: bit `j` of byte `i` belongs to element `i` of small block
/// `j`.
fn q5_k(bytes: &[u8], block: &mut Block) {
    scales_and_offsets(bytes, block);
    let (high, quants) = (&bytes[16..48], &bytes[48..]);
    for (i, code) in block.codes.iter_mut().enumerate() {
        *code = (four_bits(quants, i) | (high[i % 32] >> (i / 32) & 1) << 4) as i8;
    }
}

/// 128 bytes of low halves, 64 bytes of high pairs of bits, 16 signed scales, `d`: `d * scale * (q - 32)`.
fn q6_k(bytes: &[u8], block: &mut Block) {
    let (low, high, scales, d) = (&bytes[..128], &bytes[128..192], &bytes[192..208], half(bytes, 208));
    block.scales.iter_mut().zip(scales).for_each(|(to, scale)| *to = d * f32::from(*scale as i8));
    for (i, code) in block.codes.iter_mut().enumerate() {
        // In each half of 128 elements, 64 bytes hold 64 elements in their low halves and the next 64 in their high
        // ones.
        let four = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        *code = (four | two_bits(high, i) << 4) as i8 - 32;
    }
}

/// `d`, then 16 bytes: `level(q) * d`.
fn iq4_nl(bytes: &[u8], block: &mut Block) {
    block.scales[0] = half(bytes, 0);
    halves(&bytes[2..], &mut block.codes, |_, q| LEVELS[usize::from(q)]);
}

/// `d`, high pairs of bits of eight scales, their low halves, then 16 bytes a small block: `d * (scale - 32) *
/// level(q)`.
fn iq4_xs(bytes: &[u8], block: &mut Block) {
    let (d, high) = (half(bytes, 0), u16::from_le_bytes([bytes[2], bytes[3]]));
    for (j, codes) in block.codes.chunks_exact_mut(32).enumerate() {
        let low = bytes[4 + j / 2] >> (j % 2 * 4) & 15;
        let scale = low | ((high >> (2 * j) & 3) << 4) as u8;
        block.scales[j] = d * f32::from(scale as i8 - 32);
        halves(&bytes[8 + j * 16..], codes, |_, q| LEVELS[usize::from(q)]);
    }
}

/// 32 and 16 bytes that hold five elements each, 4 bytes that hold four, `d`: `d * q`. A byte is a fraction of 256
/// whose digits of base 3, one after the other, are the elements plus one.
fn tq1_0(bytes: &[u8], block: &mut Block) {
    block.scales = [half(bytes, 52); 16];
    let (first, rest) = bytes[..52].split_at(32);
    let (second, third) = rest.split_at(16);
    let digits = |quants: &[u8], count, codes: &mut [i8]| {
        for (digit, codes) in (0..count).zip(codes.chunks_exact_mut(quants.len())) {
            for (q, code) in quants.iter().zip(codes) {
                *code = (u16::from(q.wrapping_mul(3_u8.pow(digit))) * 3 / 256) as i8 - 1;
            }
        }
    };
    digits(first, 5, &mut block.codes[..160]);
    digits(second, 5, &mut block.codes[160..240]);
    digits(third, 4, &mut block.codes[240..]);
}

/// 64 bytes of quants, `d`: `d * (q - 1)`.
fn tq2_0(bytes: &[u8], block: &mut Block) {
    block.scales = [half(bytes, 64); 16];
    block.codes.iter_mut().enumerate().for_each(|(i, code)| *code = two_bits(bytes, i) as i8 - 1);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::decode;
    use crate::ops::{Encoding, HostMatrix};

    /// Two blocks of made-up bytes, in which scales and offsets (at these places of a block) lie between 1/16 and 5/64.
    fn made_up(kind: GgmlType, scales: &[usize]) -> Vec<u8> {
        let block_bytes = kind.block().bytes;
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let mut bytes: Vec<u8> = (0..2 * block_bytes).map(|_| next()).collect();
        for block in [0, block_bytes] {
            scales.iter().for_each(|at| bytes[block + at + 1] = 0x2c);
            if kind == GgmlType::Iq1M {
                // Its number is 0x2c.. in the high halves of these.
                bytes[block + 53] = bytes[block + 53] & 15 | 0xc0;
                bytes[block + 55] = bytes[block + 55] & 15 | 0x20;
            }
        }
        bytes
    }

    /// The first element, the last one, and the sum of all multiplied by their places, as ggml's own Python package
    /// decodes them.
    #[test]
    fn blocks_are_decoded_as_ggml_does() {
        let check = |kind: GgmlType, scales: &[usize], first: f32, last: f32, sum: f64| {
            let shape = kind.block();
            let (elements, bytes) = (shape.elements, made_up(kind, scales));
            let blocks = GgmlBlocks { kind, bytes: &bytes };
            let matrix = HostMatrix { rows: 1, cols: 2 * elements, encoding: Encoding::Blocks(blocks) };
            let mut values = vec![f32::NAN; 2 * elements];
            decode(&matrix, 0..1, &mut values);
            let found: f64 = values.iter().zip(1..).map(|(value, place)| f64::from(*value) * f64::from(place)).sum();
            assert_eq!((values[0], values[2 * elements - 1]), (first, last), "{kind:?}");
            assert!((found - sum).abs() < 1e-9 * sum.abs(), "{kind:?}: {found} is not {sum}");
        };
        check(GgmlType::Q4_0, &[0], 0.0, -0.127_441_4, -111.214_477_539_062_5);
        check(GgmlType::Q4_1, &[0, 2], 0.357_421_88, 0.536_987_3, 1_134.442_871_093_75);
        check(GgmlType::Q5_0, &[0], -0.631_713_87, 0.867_187_5, -476.197_998_046_875);
        check(GgmlType::Q5_1, &[0, 2], 0.848_754_9, 1.113_708_5, 2_342.952_514_648_437_5);
        check(GgmlType::Q8_0, &[0], -1.684_570_3, 0.147_827_15, 262.070_495_605_468_75);
        check(GgmlType::Q2K, &[80, 82], -0.501_159_67, -0.503_295_9, 17_726.344_970_703_125);
        check(GgmlType::Q3K, &[108], -4.859_985_4, -1.881_958, -10_337.600_463_867_188);
        check(GgmlType::Q4K, &[0, 2], -3.399_902_3, 3.695_068_4, 1_824_729.733_032_226_6);
        check(GgmlType::Q5K, &[0, 2], -4.522_949, 15.944_092, 3_915_574.409_301_758);
        check(GgmlType::Q6K, &[208], 88.942_02, 28.382_813, 879_257.144_897_460_9);
        check(GgmlType::Iq4Nl, &[0], 0.070_190_43, -1.401_855_5, -1_506.127_197_265_625);
        check(GgmlType::Iq4Xs, &[0], -74.682_62, -51.823_242, 471_021.209_350_585_94);
        check(GgmlType::Iq1S, &[0], -0.798_416_14, 1.163_864_1, 4_934.843_139_648_437_5);
        check(GgmlType::Iq1M, &[], -0.071_548_46, -0.656_196_6, 901.252_380_371_093_8);
        check(GgmlType::Iq2Xxs, &[0], -1.614_379_9, 1.031_799_3, -23_998.877_548_217_773);
        check(GgmlType::Iq2Xs, &[0], 5.659_103_4, 9.557_487_5, -38_836.459_053_039_55);
        check(GgmlType::Iq2S, &[0], -1.052_856_4, -0.671_196, -21_089.005_538_940_43);
        check(GgmlType::Iq3Xxs, &[0], -8.352_661, 0.325_622_56, 10_012.413_085_937_5);
        check(GgmlType::Iq3S, &[0], -4.421_997, 1.620_117_2, -26_366.178_222_656_25);
        check(GgmlType::Tq1_0, &[52], 0.0, 0.063_659_67, 205.462_036_132_812_5);
        check(GgmlType::Tq2_0, &[64], 0.069_152_83, -0.071_655_27, 3_934.560_363_769_531);
    }
}
