//! ggml's block formats, decoded to f32 exactly as `dequantize_row_*` of `ggml-quants.c` defines them.
//!
//! Blocks of 32 hold a scale `d` (f16), of some an offset `m`, and the quants `q`: low halves of bytes are the first 16
//! elements, high halves the last 16. Super-blocks of 256 hold eight or sixteen small blocks, each with an integer
//! scale (and of some an integer offset) that multiply the super-block's own `d` and `dmin`.

use half::f16;
use model_files::TensorType;

use crate::weights::spread;

/// The elements of whole blocks, as little-endian f32, decoded by so many threads. Empty for types that have no block.
pub(crate) fn decode(kind: TensorType, bytes: &[u8], threads: usize) -> Vec<u8> {
    let Some((elements, block_bytes)) = kind.block() else { return Vec::new() };
    let decoded = elements * size_of::<f32>();
    let mut out = vec![0; bytes.len() / block_bytes * decoded];
    let mut all = |block: fn(&[u8], &mut [f32])| {
        spread(&mut out, decoded, threads, |first, out| {
            let mut values = [0.0; 256];
            let blocks = bytes[first * block_bytes..].chunks_exact(block_bytes);
            for (bytes, out) in blocks.zip(out.chunks_exact_mut(decoded)) {
                block(bytes, &mut values[..elements]);
                let places = out.as_chunks_mut::<4>().0;
                places.iter_mut().zip(values).for_each(|(place, value)| *place = value.to_le_bytes());
            }
        });
    };
    match kind {
        TensorType::Q4_0 => all(q4_0),
        TensorType::Q4_1 => all(q4_1),
        TensorType::Q5_0 => all(q5_0),
        TensorType::Q5_1 => all(q5_1),
        TensorType::Q8_0 => all(q8_0),
        TensorType::Q2K => all(q2_k),
        TensorType::Q3K => all(q3_k),
        TensorType::Q4K => all(q4_k),
        TensorType::Q5K => all(q5_k),
        TensorType::Q6K => all(q6_k),
        TensorType::F32 | TensorType::F16 | TensorType::Bf16 | TensorType::Other(_) => {}
    }
    out
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Sets elements `j` and `j + 16` of a block of 32 from the halves of byte `j`.
fn halves(quants: &[u8], out: &mut [f32], value: impl Fn(usize, u8) -> f32) {
    for (j, byte) in quants.iter().enumerate() {
        out[j] = value(j, byte & 15);
        out[j + 16] = value(j + 16, byte >> 4);
    }
}

/// `d`, then 16 bytes: `(q - 8) * d`.
fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    halves(&block[2..], out, |_, q| (i32::from(q) - 8) as f32 * d);
}

/// `d`, `m`, then 16 bytes: `q * d + m`.
fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half(block, 0), half(block, 2));
    halves(&block[4..], out, |_, q| f32::from(q) * d + m);
}

/// The fifth bits of a block of 32: bit `j` belongs to element `j`.
fn fifth_bits(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// `d`, fifth bits, then 16 bytes: `(q - 16) * d`.
fn q5_0(block: &[u8], out: &mut [f32]) {
    let (d, high) = (half(block, 0), fifth_bits(&block[2..]));
    halves(&block[6..], out, |j, q| ((u32::from(q) | (high >> j & 1) << 4) as i32 - 16) as f32 * d);
}

/// `d`, `m`, fifth bits, then 16 bytes: `q * d + m`.
fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m, high) = (half(block, 0), half(block, 2), fifth_bits(&block[4..]));
    halves(&block[8..], out, |j, q| (u32::from(q) | (high >> j & 1) << 4) as f32 * d + m);
}

/// `d`, then 32 signed bytes: `q * d`.
fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half(block, 0);
    out.iter_mut().zip(&block[2..]).for_each(|(out, q)| *out = f32::from(*q as i8) * d);
}

/// Where element `i` of a super-block has its two bits: in each half of 128 elements, 32 bytes hold four elements each.
fn two_bits(quants: &[u8], i: usize) -> u8 {
    quants[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3
}

/// 16 scales and offsets (4 bits each), 64 bytes of quants, `d`, `dmin`: `d * scale * q - dmin * offset`.
fn q2_k(block: &[u8], out: &mut [f32]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half(block, 80), half(block, 82));
    for (i, out) in out.iter_mut().enumerate() {
        let scale = scales[i / 16];
        *out = d * f32::from(scale & 15) * f32::from(two_bits(quants, i)) - dmin * f32::from(scale >> 4);
    }
}

/// 32 bytes of third bits, 64 bytes of quants, 16 scales of 6 bits, `d`: `d * (scale - 32) * q`, where q is 4 less
/// without its third bit.
fn q3_k(block: &[u8], out: &mut [f32]) {
    let (mask, quants, packed, d) = (&block[..32], &block[32..96], &block[96..108], half(block, 108));
    // Low halves in the first eight bytes, high pairs of bits in the last four.
    let scale = |j: usize| {
        let low = packed[j % 8] >> (j / 8 * 4) & 15;
        let high = packed[8 + j % 4] >> (j / 4 * 2) & 3;
        f32::from((low | high << 4) as i8 - 32)
    };
    for (i, out) in out.iter_mut().enumerate() {
        let third = mask[i % 32] >> (i / 32) & 1;
        let q = two_bits(quants, i) as i8 - if third == 1 { 0 } else { 4 };
        *out = d * scale(i / 16) * f32::from(q);
    }
}

/// Scale and offset of small block `j` of eight, 6 bits each, of the 12 bytes in which Q4_K and Q5_K pack them.
fn scale_and_offset(packed: &[u8], j: usize) -> (f32, f32) {
    let (scale, offset) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        (packed[j + 4] & 15 | packed[j - 4] >> 6 << 4, packed[j + 4] >> 4 | packed[j] >> 6 << 4)
    };
    (f32::from(scale), f32::from(offset))
}

/// Four bits of element `i` of a super-block: 32 bytes hold 32 elements in their low halves and the next 32 in their
/// high ones.
fn four_bits(quants: &[u8], i: usize) -> u8 {
    quants[i / 64 * 32 + i % 32] >> (i % 64 / 32 * 4) & 15
}

/// `d`, `dmin`, packed scales and offsets, 128 bytes of quants: `d * scale * q - dmin * offset`.
fn q4_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin, packed, quants) = (half(block, 0), half(block, 2), &block[4..16], &block[16..]);
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, offset) = scale_and_offset(packed, j);
        let (scale, offset) = (d * scale, dmin * offset);
        let values = (j * 32..).map(|i| scale * f32::from(four_bits(quants, i)) - offset);
        out.iter_mut().zip(values).for_each(|(out, value)| *out = value);
    }
}

/// As Q4_K with 32 bytes of fifth bits before the quants: bit `j` of byte `i` belongs to element `i` of small block
/// `j`.
fn q5_k(block: &[u8], out: &mut [f32]) {
    let (d, dmin, packed) = (half(block, 0), half(block, 2), &block[4..16]);
    let (high, quants) = (&block[16..48], &block[48..]);
    for (j, out) in out.chunks_exact_mut(32).enumerate() {
        let (scale, offset) = scale_and_offset(packed, j);
        let (scale, offset) = (d * scale, dmin * offset);
        for (i, out) in out.iter_mut().enumerate() {
            let q = four_bits(quants, j * 32 + i) | (high[i] >> j & 1) << 4;
            *out = scale * f32::from(q) - offset;
        }
    }
}

/// 128 bytes of low halves, 64 bytes of high pairs of bits, 16 signed scales, `d`: `d * scale * (q - 32)`.
fn q6_k(block: &[u8], out: &mut [f32]) {
    let (low, high, scales, d) = (&block[..128], &block[128..192], &block[192..208], half(block, 208));
    for (i, out) in out.iter_mut().enumerate() {
        // In each half of 128 elements, 64 bytes hold 64 elements in their low halves and the next 64 in their high
        // ones.
        let four = low[i / 128 * 64 + i % 64] >> (i % 128 / 64 * 4) & 15;
        let q = (four | two_bits(high, i) << 4) as i8 - 32;
        *out = d * f32::from(scales[i / 16] as i8) * f32::from(q);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two blocks of made-up bytes, in which scales and offsets (at these places of a block) lie between 1/16 and 5/64.
    fn made_up(block_bytes: usize, scales: &[usize]) -> Vec<u8> {
        let mut state = 7u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        let mut bytes: Vec<u8> = (0..2 * block_bytes).map(|_| next()).collect();
        for block in [0, block_bytes] {
            scales.iter().for_each(|at| bytes[block + at + 1] = 0x2c);
        }
        bytes
    }

    /// The first element, the last one, and the sum of all multiplied by their places, as ggml's own Python package
    /// decodes them.
    #[test]
    fn blocks_are_decoded_as_ggml_does() {
        let check = |kind: TensorType, scales: &[usize], first: f32, last: f32, sum: f64| {
            let (elements, block_bytes) = kind.block().unwrap();
            let bytes = decode(kind, &made_up(block_bytes, scales), 1);
            let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            assert_eq!(values.len(), 2 * elements);
            let found: f64 = values.iter().zip(1..).map(|(value, place)| f64::from(*value) * f64::from(place)).sum();
            assert_eq!((values[0], values[2 * elements - 1]), (first, last), "{kind:?}");
            assert!((found - sum).abs() < 1e-9 * sum.abs(), "{kind:?}: {found} is not {sum}");
        };
        check(TensorType::Q4_0, &[0], 0.0, -0.127_441_4, -111.214_477_539_062_5);
        check(TensorType::Q4_1, &[0, 2], 0.357_421_88, 0.536_987_3, 1_134.442_871_093_75);
        check(TensorType::Q5_0, &[0], -0.631_713_87, 0.867_187_5, -476.197_998_046_875);
        check(TensorType::Q5_1, &[0, 2], 0.848_754_9, 1.113_708_5, 2_342.952_514_648_437_5);
        check(TensorType::Q8_0, &[0], -1.684_570_3, 0.147_827_15, 262.070_495_605_468_75);
        check(TensorType::Q2K, &[80, 82], -0.501_159_67, -0.503_295_9, 17_726.344_970_703_125);
        check(TensorType::Q3K, &[108], -4.859_985_4, -1.881_958, -10_337.600_463_867_188);
        check(TensorType::Q4K, &[0, 2], -3.399_902_3, 3.695_068_4, 1_824_729.733_032_226_6);
        check(TensorType::Q5K, &[0, 2], -4.522_949, 15.944_092, 3_915_574.409_301_758);
        check(TensorType::Q6K, &[208], 88.942_02, 28.382_813, 879_257.144_897_460_9);
    }
}
