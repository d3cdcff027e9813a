//! Quantising while a model loads: 16-bit checkpoints in a half or a quarter of their memory, without a tool.
//!
//! | `--quantization` | weights | scales |
//! |---|---|---|
//! | `fp8`, `fp8_per_channel` | 8-bit floats | one an output channel |
//! | `fp8_per_tensor` | 8-bit floats | one a matrix |
//! | `fp8_per_block` | 8-bit floats | one for 128 x 128 |
//! | `mxfp8` | 8-bit floats | a power of two for 32 inputs of an output channel |
//! | `int8_per_channel_weight_only` | integers of 8 bits | one an output channel |
//! | `int4` | integers of 4 bits, rounded to nearest | one for 128 inputs of an output channel |
//!
//! Projections of attention, MLPs and experts are quantised; embeddings, heads, routers and other small gates stay as
//! they are. Scales are a rank's own where it has a part of what shares one.

use std::borrow::Cow;

use kernels::decode::decode;
use kernels::e4m3;
use kernels::ops::{
    ALL_COLUMNS, CodeBits, ColumnOrder, DType, GroupedFormat, HostMatrix, InputRounding, Levels, WeightFormat, Zeros,
};

use super::float4::MX_BLOCK;
use super::stored_codes::pack;
use crate::weights::{Chunk, Fetched, GroupedPart, ScaledPart, spread_rows};

/// Inputs that share a scale of four bits, and outputs and inputs that share one of blocks of eight.
const GROUP: usize = 128;

/// What weights become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Online {
    /// With a scale for these numbers of rows and columns, or [`ALL_COLUMNS`] of either.
    Fp8([usize; 2]),
    Mxfp8,
    Int8,
    Int4,
}

impl Online {
    /// By the name of `--quantization`.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "fp8" | "fp8_per_channel" => Some(Self::Fp8([1, ALL_COLUMNS])),
            "fp8_per_tensor" => Some(Self::Fp8([ALL_COLUMNS; 2])),
            "fp8_per_block" => Some(Self::Fp8([GROUP; 2])),
            "mxfp8" => Some(Self::Mxfp8),
            "int8_per_channel_weight_only" => Some(Self::Int8),
            "int4" => Some(Self::Int4),
            _ => None,
        }
    }

    /// What a matrix of `cols` columns is stored as afterwards.
    pub(crate) fn format(self, cols: usize) -> WeightFormat {
        let integers = |bits, group, scales| GroupedFormat {
            bits,
            group,
            scales,
            levels: Levels::Integers(Zeros::Middle),
            order: ColumnOrder::InOrder,
            input: InputRounding::None,
        };
        match self {
            Self::Fp8([_, scale_cols]) => WeightFormat::ScaledE4m3 { scale_cols, input: InputRounding::None },
            Self::Mxfp8 => WeightFormat::ScaledE4m3 { scale_cols: MX_BLOCK, input: InputRounding::None },
            Self::Int8 => WeightFormat::Grouped(integers(CodeBits::Eight, ALL_COLUMNS, DType::F32)),
            Self::Int4 if cols <= GROUP => WeightFormat::Grouped(integers(CodeBits::Four, ALL_COLUMNS, DType::Bf16)),
            Self::Int4 => WeightFormat::Grouped(integers(CodeBits::Four, GROUP, DType::Bf16)),
        }
    }

    /// Quantises a matrix of numbers, `cols` in a row.
    pub(crate) fn quantize(self, chunk: &Chunk<'_>, cols: usize, threads: usize) -> Fetched<'static> {
        let rows = chunk.bytes.len() / (cols * chunk.dtype.size()).max(1);
        let source = HostMatrix::plain(chunk.dtype, rows, cols, &chunk.bytes);
        match (self, self.format(cols)) {
            (_, WeightFormat::Grouped(format)) => Fetched::Grouped(grouped(&source, format, threads)),
            (Self::Fp8(block), _) => Fetched::Scaled(floats(&source, block, scale, threads)),
            _ => Fetched::Scaled(floats(&source, [1, MX_BLOCK], power, threads)),
        }
    }
}

/// Makes `row_bytes` bytes of the numbers of each row.
fn each_row(
    source: &HostMatrix<'_>,
    row_bytes: usize,
    threads: usize,
    write: impl Fn(usize, &[f32], &mut [u8]) + Sync,
) -> Vec<u8> {
    spread_rows([source.rows, row_bytes], threads, || {
        let (write, mut values) = (&write, vec![0.0; source.cols]);
        move |row, out: &mut [u8]| {
            decode(source, row..row + 1, &mut values);
            write(row, &values, out);
        }
    })
}

/// The scale with which numbers of at most `largest` become `most` at most; 1 where all are zero, or not finite.
fn scale(largest: f32, most: f32) -> f32 {
    let scale = largest / most;
    if scale.is_normal() { scale } else { 1.0 }
}

/// The least power of two that is such a scale.
fn power(largest: f32, most: f32) -> f32 {
    let scale = scale(largest, most);
    let down = f32::from_bits(scale.to_bits() & 0x7f80_0000);
    if down == scale { scale } else { 2.0 * down }
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |largest, value| largest.max(value.abs()))
}

/// With a scale for these numbers of rows and columns.
fn floats(
    source: &HostMatrix<'_>,
    [high, wide]: [usize; 2],
    scale: impl Fn(f32, f32) -> f32,
    threads: usize,
) -> ScaledPart<'static> {
    let (rows, cols) = (source.rows, source.cols);
    let width = wide.min(cols).max(1);
    let groups = cols.div_ceil(width);
    // Of each row's groups, since rows are what threads share.
    let maxima = each_row(source, groups * 4, threads, |_, values, out| {
        let out = out.as_chunks_mut::<4>().0.iter_mut();
        values.chunks(width).zip(out).for_each(|(values, out)| *out = largest(values).to_le_bytes());
    });
    let maxima: Vec<f32> = maxima.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
    let high = high.min(rows).max(1);
    let block = |rows: &[f32], group: usize| {
        let largest = rows.iter().skip(group).step_by(groups).fold(0.0_f32, |largest, value| largest.max(*value));
        scale(largest, 448.0)
    };
    let of_rows = |rows: &[f32]| (0..groups).map(|group| block(rows, group)).collect::<Vec<_>>();
    let scales: Vec<f32> = maxima.chunks((high * groups).max(1)).flat_map(of_rows).collect();
    let codes = each_row(source, cols, threads, |row, values, out| {
        let scales = &scales[row / high * groups..];
        for ((out, values), scale) in out.chunks_mut(width).zip(values.chunks(width)).zip(scales) {
            let factor = 1.0 / scale;
            out.iter_mut().zip(values).for_each(|(code, value)| *code = code_of(value * factor));
        }
    });
    ScaledPart {
        codes: Cow::Owned(codes),
        scales,
        scale_rows: (0..rows).map(|row| (row / high) as u32).collect(),
        scale_cols: wide,
        input: InputRounding::Dynamic { cols: wide },
    }
}

/// The code of a number; what is none becomes zero.
fn code_of(value: f32) -> u8 {
    if value.is_nan() { 0 } else { e4m3::encode(value) }
}

fn grouped(source: &HostMatrix<'_>, format: GroupedFormat, threads: usize) -> GroupedPart<'static> {
    let (rows, cols) = (source.rows, source.cols);
    let group = if format.group == ALL_COLUMNS { cols.max(1) } else { format.group };
    // Half a step beyond the largest code is rounded to it.
    let (most, least) = match format.bits {
        CodeBits::Four => (7.5, -8.0),
        CodeBits::Eight => (127.0, -127.0),
    };
    let (size, groups) = (format.scales.size(), format.groups(cols));
    let scales = each_row(source, groups * size, threads, |_, values, out| {
        for (values, out) in values.chunks(group).zip(out.chunks_exact_mut(size)) {
            store(scale(largest(values), most), out);
        }
    });
    let codes = spread_rows([rows, format.bits.row_bytes(cols)], threads, || {
        let (scales, mut values, mut row_codes) = (&scales, vec![0.0; cols], vec![0_u8; cols]);
        move |row, out: &mut [u8]| {
            decode(source, row..row + 1, &mut values);
            let scales = scales[row * groups * size..][..groups * size].chunks_exact(size);
            for ((codes, values), scale) in row_codes.chunks_mut(group).zip(values.chunks(group)).zip(scales) {
                let factor = 1.0 / load(scale);
                for (code, value) in codes.iter_mut().zip(values) {
                    let level = nearest((value * factor).clamp(least, most.floor()));
                    *code = (level + i32::from(format.bits.middle())) as u8;
                }
            }
            pack(format.bits, &row_codes, out);
        }
    });
    let codes = Cow::Owned(codes);
    GroupedPart { format, codes, scales, zeros: Vec::new(), row_levels: Vec::new(), columns: Vec::new() }
}

/// The whole number nearest to one of less than 2^22, ties to even; 0 for what is none. Without a call, so that loops
/// of it become vector code: what is added leaves no bits for fractions.
fn nearest(value: f32) -> i32 {
    const NO_FRACTIONS: f32 = 12_582_912.0;
    if value.is_nan() { 0 } else { (value + NO_FRACTIONS).to_bits() as i32 - NO_FRACTIONS.to_bits() as i32 }
}

/// A scale as f32 or bf16.
fn store(scale: f32, out: &mut [u8]) {
    match out.len() {
        2 => out.copy_from_slice(&half::bf16::from_f32(scale).to_le_bytes()),
        _ => out.copy_from_slice(&scale.to_le_bytes()),
    }
}

fn load(bytes: &[u8]) -> f32 {
    match *bytes {
        [a, b] => half::bf16::from_le_bytes([a, b]).to_f32(),
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        _ => unreachable!("a scale is f32 or bf16"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::Decoding;

    #[test]
    fn the_nearest_whole_number_is_even_between_two() {
        let quarters = (-1200..1200).map(|quarters| quarters as f32 / 4.0);
        for value in quarters.flat_map(|value| [value.next_down(), value, value.next_up()]).chain([f32::NAN]) {
            assert_eq!(nearest(value), value.round_ties_even() as i32, "{value}");
        }
    }

    /// What numbers become, over the largest of their group: the largest error.
    fn error(online: Online, values: &[f32], cols: usize) -> f32 {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let chunk = Chunk { dtype: DType::F32, bytes: Cow::Borrowed(&bytes) };
        let fetched = online.quantize(&chunk, cols, 2);
        assert_eq!(fetched.format().row_bytes(cols), online.format(cols).row_bytes(cols));
        let how = Decoding { cols, dtype: DType::F32, threads: 1 };
        let decoded = fetched.decoded(how).bytes;
        let decoded = decoded.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        let group = match online {
            Online::Int4 | Online::Fp8([GROUP, _]) => GROUP,
            Online::Mxfp8 => MX_BLOCK,
            _ => cols,
        };
        let largest: Vec<f32> = (values.chunks(cols))
            .flat_map(|row| row.chunks(group))
            .flat_map(|group| vec![super::largest(group); group.len()])
            .collect();
        decoded
            .zip(values)
            .zip(largest)
            .map(|((got, want), most)| (got - want).abs() / most.max(1e-30))
            .fold(0.0, f32::max)
    }

    #[test]
    fn weights_are_rounded_to_the_nearest() {
        let values: Vec<f32> =
            (0..3 * 300).map(|i| ((i * 7919 % 1009) as f32 - 504.0) / 1e4 * (1 + i / 300) as f32).collect();
        assert!(error(Online::Int8, &values, 300) <= 0.501 / 127.0);
        assert!(error(Online::Int4, &values, 300) <= 0.54 / 7.5);
        // A number loses a sixteenth of itself at most, and half of that where its scale is its row's own.
        let (own, shared) = (0.501 / 14.0, 1.001 / 16.0);
        for (name, most) in [
            ("fp8", own),
            ("fp8_per_channel", own),
            ("fp8_per_tensor", shared),
            ("fp8_per_block", shared),
            ("mxfp8", shared),
        ] {
            let error = error(Online::named(name).expect(name), &values, 300);
            assert!(error > 0.03 && error <= most, "{name}: {error}");
        }
        assert!(error(Online::Int4, &values, 100) <= 0.54 / 7.5);
        assert_eq!(error(Online::Int4, &[0.0; 256], 256), 0.0);
    }

    #[test]
    fn what_shares_a_scale() {
        let bytes: Vec<u8> = (0..130 * 200).flat_map(|i| (1.0 + (i % 200 + i / 200) as f32).to_le_bytes()).collect();
        let chunk = Chunk { dtype: DType::F32, bytes: Cow::Borrowed(&bytes) };
        let scales = |name: &str| match Online::named(name).expect(name).quantize(&chunk, 200, 3) {
            Fetched::Scaled(part) => (part.scales, part.scale_rows[129]),
            _ => panic!("{name}: no floats"),
        };
        assert_eq!(scales("fp8_per_tensor"), (vec![329.0 / 448.0], 0));
        let corners = [255.0, 327.0, 257.0, 329.0].map(|largest: f32| largest / 448.0);
        assert_eq!(scales("fp8_per_block"), (corners.to_vec(), 1));
        let (of_rows, last) = scales("fp8_per_channel");
        assert!(of_rows.len() == 130 && last == 129 && of_rows[129] == 329.0 / 448.0);
        let (powers, last) = scales("mxfp8");
        assert!(powers.len() == 130 * 7 && last == 129);
        // 32 is 448 / 14: the power of two above a fourteenth, and one that fits.
        assert_eq!((powers[0], powers[129 * 7 + 6]), (0.125, 1.0));
    }
}
