//! From stored weights to numbers, on the host: the one decoder for every stored format.
//!
//! It serves devices whose products do not take a format as it is, lookup tables, and the packing of integer codes for
//! the CPU's own products.

mod ggml;
mod grouped;

use std::ops::Range;

use half::{bf16, f16};

use crate::e4m3;
use crate::ops::{
    ALL_COLUMNS, CodeBits, DType, E2M1, Encoding, GgmlType, GroupedFormat, HostMatrix, Levels, PlainElements,
    ScaledCodes, WeightFormat, Zeros,
};

/// Writes rows of a matrix as f32, row-major: exactly what they stand for, each step rounded to f32 as the format's
/// definition does.
///
/// # Panics
/// When the matrix lacks such rows, or `out` has not `rows.len() * matrix.cols` elements.
pub fn decode(matrix: &HostMatrix<'_>, rows: Range<usize>, out: &mut [f32]) {
    assert!(rows.end <= matrix.rows && out.len() == rows.len() * matrix.cols, "{rows:?} of {} rows", matrix.rows);
    if matrix.cols == 0 {
        return;
    }
    let integers = IntegerFormat::of(matrix.format());
    let e4m3_numbers: [f32; 256] = std::array::from_fn(|code| e4m3::decode(code as u8));
    let mut row_of = IntegerRow::default();
    for (row, out) in rows.zip(out.chunks_exact_mut(matrix.cols)) {
        match (integers, matrix.encoding) {
            (Some(format), _) => {
                row_of.read(matrix, row);
                row_of.decode(format, out);
                restore_order(matrix.columns(), out);
            }
            (None, Encoding::Plain(elements)) => plain(elements, row, out),
            (None, Encoding::Scaled(codes)) => scaled(codes, &e4m3_numbers, row, out),
            (None, Encoding::Grouped(codes)) => {
                grouped::by_level(codes, row, out);
                restore_order(codes.columns, out);
            }
            (None, Encoding::Blocks(_)) => unreachable!("every block is of integers"),
        }
    }
}

/// Puts values that lie in stored order to the input columns that they multiply.
fn restore_order(columns: &[u32], values: &mut [f32]) {
    if columns.is_empty() {
        return;
    }
    let stored = values.to_vec();
    columns.iter().zip(stored).for_each(|(column, value)| values[*column as usize] = value);
}

fn plain(PlainElements { dtype, bytes }: PlainElements<'_>, row: usize, out: &mut [f32]) {
    let size = out.len() * dtype.size();
    numbers(dtype, &bytes[row * size..][..size]).zip(out).for_each(|(number, out)| *out = number);
}

/// Little-endian numbers as f32.
fn numbers(dtype: DType, bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.chunks_exact(dtype.size()).map(move |bytes| match (dtype, bytes) {
        (DType::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
        (DType::Bf16, &[a, b]) => bf16::from_le_bytes([a, b]).to_f32(),
        (DType::F16, &[a, b]) => f16::from_le_bytes([a, b]).to_f32(),
        _ => unreachable!("chunks of an element's size"),
    })
}

fn scaled(codes: ScaledCodes<'_>, numbers: &[f32; 256], row: usize, out: &mut [f32]) {
    let ScaledCodes { codes, scales, scale_rows, scale_cols, .. } = codes;
    let group = if scale_cols == ALL_COLUMNS { out.len() } else { scale_cols };
    let scales = &scales[scale_rows[row] as usize * out.len().div_ceil(group)..];
    let codes = &codes[row * out.len()..][..out.len()];
    for ((codes, out), scale) in codes.chunks(group).zip(out.chunks_mut(group)).zip(scales) {
        codes.iter().zip(out).for_each(|(code, out)| *out = numbers[usize::from(*code)] * scale);
    }
}

/// How integer codes become weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IntegerFormat {
    /// Of a code.
    pub bits: CodeBits,
    /// Columns that share a scale, or [`ALL_COLUMNS`].
    pub group: usize,
    /// What is taken away.
    pub offsets: Offsets,
    /// Codes of eight bits that are one of these: a device may keep four bits of each.
    pub levels: Option<&'static [u8; 16]>,
}

/// What is taken from a code, or from its product with the scale.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offsets {
    /// `(code - middle) * scale`.
    Middle,
    /// `(code - offset) * scale`.
    Before,
    /// `code * scale - offset` of four bits, `(code - 128) * scale - offset` of eight.
    After,
}

impl IntegerFormat {
    /// Absent where codes are no integers.
    pub fn of(format: WeightFormat) -> Option<Self> {
        match format {
            WeightFormat::Plain(_) | WeightFormat::ScaledE4m3 { .. } => None,
            WeightFormat::Blocks(kind) => Some(Self::of_blocks(kind)),
            WeightFormat::Grouped(GroupedFormat { bits, group, levels, .. }) => match levels {
                Levels::Integers(Zeros::Middle) => Some(Self { bits, group, offsets: Offsets::Middle, levels: None }),
                Levels::Integers(Zeros::Stored) => Some(Self { bits, group, offsets: Offsets::Before, levels: None }),
                // Twice each of them is an integer.
                Levels::Shared(E2M1) => Some(Self {
                    bits: CodeBits::Eight,
                    group,
                    offsets: Offsets::Middle,
                    levels: Some(&grouped::E2M1_CODES),
                }),
                Levels::Shared(_) | Levels::Rows => None,
            },
        }
    }

    fn of_blocks(kind: GgmlType) -> Self {
        let bits = match kind {
            GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q2K | GgmlType::Q3K | GgmlType::Q4K => CodeBits::Four,
            GgmlType::Iq3S | GgmlType::Tq1_0 | GgmlType::Tq2_0 => CodeBits::Four,
            _ => CodeBits::Eight,
        };
        let offsets = match kind {
            GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q2K | GgmlType::Q4K | GgmlType::Q5K => Offsets::After,
            GgmlType::Iq3S => Offsets::After,
            _ => Offsets::Middle,
        };
        Self { bits, group: ggml::group(kind), offsets, levels: ggml::levels(kind) }
    }

    /// What a code of nothing but zero would be, before an offset.
    pub const fn base(self) -> u8 {
        match (self.offsets, self.bits) {
            (Offsets::Before | Offsets::After, CodeBits::Four) => 0,
            _ => self.bits.middle(),
        }
    }
}

/// A row of integer codes, unpacked.
#[derive(Default)]
pub struct IntegerRow {
    /// One a column, in stored order.
    pub codes: Vec<u8>,
    /// One a group.
    pub scales: Vec<f32>,
    /// One a group; empty with [`Offsets::Middle`].
    pub offsets: Vec<f32>,
}

impl IntegerRow {
    /// Reads a row of a matrix whose codes are integers.
    pub fn read(&mut self, matrix: &HostMatrix<'_>, row: usize) {
        self.codes.clear();
        self.scales.clear();
        self.offsets.clear();
        match matrix.encoding {
            Encoding::Grouped(codes) => grouped::read(codes, row, matrix.cols, self),
            Encoding::Blocks(blocks) => ggml::read(blocks, row, matrix.cols, self),
            Encoding::Plain(_) | Encoding::Scaled(_) => unreachable!("no integer codes"),
        }
    }

    /// The weights, in stored order.
    pub fn decode(&self, format: IntegerFormat, out: &mut [f32]) {
        let group = if format.group == ALL_COLUMNS { out.len() } else { format.group };
        for (index, (codes, out)) in self.codes.chunks(group).zip(out.chunks_mut(group)).enumerate() {
            let scale = self.scales[index];
            let offset = self.offsets.get(index).copied().unwrap_or_default();
            let (before, after) = match format.offsets {
                Offsets::Middle => (f32::from(format.bits.middle()), 0.0),
                Offsets::Before => (offset, 0.0),
                Offsets::After => (f32::from(format.base()), offset),
            };
            codes.iter().zip(out).for_each(|(&code, out)| *out = (f32::from(code) - before) * scale - after);
        }
    }
}
