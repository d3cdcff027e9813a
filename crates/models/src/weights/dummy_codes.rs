//! Random codes of a quantised format, for measuring what a checkpoint of that format would take without one.

use std::borrow::Cow;
use std::ops::Range;

use kernels::ops::{ALL_COLUMNS, CodeBits, DType, GroupedFormat, Levels, WeightFormat, Zeros, mix};

use super::cast::narrow;
use super::dummy::Dummy;
use super::{Fetched, GroupedPart, Role, ScaledPart, Slice, Stored, spread};

/// What a method's weights are made up as.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct DummyFormat {
    /// Groups are as long as a row has columns, where it has fewer.
    pub format: WeightFormat,
    /// Experts alone are quantised.
    pub experts_only: bool,
}

impl DummyFormat {
    /// Every projection's.
    pub(crate) fn of(format: WeightFormat) -> Self {
        Self { format, experts_only: false }
    }

    /// That of a slice; absent where it is of numbers.
    fn of_slice(self, slice: &Slice) -> Option<WeightFormat> {
        let fits = slice.role == Role::Projection && (!self.experts_only || slice.location.stack.is_some());
        let cols = slice.cols.len();
        let whole = |group: usize| if group >= cols { ALL_COLUMNS } else { group };
        fits.then_some(match self.format {
            WeightFormat::Grouped(format) => {
                WeightFormat::Grouped(GroupedFormat { group: whole(format.group), ..format })
            }
            WeightFormat::ScaledE4m3 { scale_cols, input } => {
                WeightFormat::ScaledE4m3 { scale_cols: whole(scale_cols), input }
            }
            other @ (WeightFormat::Plain(_) | WeightFormat::Blocks(_)) => other,
        })
    }
}

impl Dummy {
    /// How a slice is made up as codes, if it is.
    pub(super) fn stored_codes(&self, slice: &Slice) -> Option<Stored> {
        let format = self.stored?.of_slice(slice)?;
        let (rows, cols) = (slice.rows.len(), slice.cols.len());
        let beside = match format {
            WeightFormat::Grouped(grouped) => {
                let zeros = usize::from(grouped.levels == Levels::Integers(Zeros::Stored));
                rows * grouped.groups(cols) * (grouped.scales.size() + zeros)
            }
            WeightFormat::ScaledE4m3 { scale_cols, .. } => cols.div_ceil(scale_cols) * 4,
            WeightFormat::Plain(_) | WeightFormat::Blocks(_) => return None,
        };
        Some(Stored { format, bytes: (rows * format.row_bytes(cols) + beside) as u64 })
    }

    /// Its codes.
    pub(super) fn codes(&self, slice: &Slice, format: WeightFormat) -> Fetched<'static> {
        match format {
            WeightFormat::Grouped(format) => Fetched::Grouped(self.grouped(slice, format)),
            WeightFormat::ScaledE4m3 { scale_cols, input } => {
                let scale = self.scale(slice, &[1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875]);
                let scales = vec![scale; slice.cols.len().div_ceil(scale_cols)];
                let scale_rows = vec![0; slice.rows.len()];
                let codes = Cow::Owned(self.drawn(slice, Draw::E4M3));
                Fetched::Scaled(ScaledPart { codes, scales, scale_rows, scale_cols, input })
            }
            WeightFormat::Plain(_) | WeightFormat::Blocks(_) => Fetched::Plain(self.chunk(slice)),
        }
    }

    fn grouped(&self, slice: &Slice, format: GroupedFormat) -> GroupedPart<'static> {
        let rows = slice.rows.len();
        let middle = format.bits.middle();
        let (draw, numbers): (Draw, Vec<f32>) = match (format.bits, format.levels) {
            (CodeBits::Four, Levels::Shared(levels)) => (Draw::NIBBLES, levels.to_vec()),
            // Without the lowest one, the mean is zero.
            (CodeBits::Four, _) => {
                let number = |code: u8| if code == 0 { 0.0 } else { f32::from(code) - f32::from(middle) };
                (Draw::CENTRED_NIBBLES, (0..16).map(number).collect())
            }
            (CodeBits::Eight, _) => {
                (Draw::BYTES, (0..=255).map(|code: u8| f32::from(code) - f32::from(middle)).collect())
            }
        };
        let scale = self.scale(slice, &numbers);
        let groups = rows * format.groups(slice.cols.len());
        let mut scales = Vec::with_capacity(groups * format.scales.size());
        narrow(std::iter::repeat_n(scale, groups), format.scales, &mut scales);
        let zeros = if format.levels == Levels::Integers(Zeros::Stored) { vec![middle; groups] } else { Vec::new() };
        let codes = Cow::Owned(self.drawn(slice, draw));
        GroupedPart { format, codes, scales, zeros, row_levels: Vec::new(), columns: Vec::new() }
    }

    /// With which the variance of such numbers is 1 / width.
    fn scale(&self, slice: &Slice, numbers: &[f32]) -> f32 {
        let squares: f32 = numbers.iter().map(|number| number * number).sum();
        (slice.width() as f32 * squares / numbers.len() as f32).sqrt().recip()
    }

    /// Codes, as their places say: each 64 bits that are drawn are the codes of columns that follow each other.
    fn drawn(&self, slice: &Slice, draw: Draw) -> Vec<u8> {
        let values = self.values(slice, DType::F32);
        let rows = values.rows(slice);
        let per_byte = 8 / draw.bits;
        let row_bytes = slice.cols.len().div_ceil(per_byte).max(1);
        // Zeros from the system: threads that fill pages also make them.
        let mut out = vec![0; slice.rows.len() * row_bytes];
        spread(&mut out, row_bytes, self.threads, |first_row, part| {
            for (row, out) in part.chunks_exact_mut(row_bytes).enumerate() {
                draw.fill(rows.row_key(first_row + row), slice.cols.clone(), out);
            }
        });
        out
    }
}

/// How codes are made of 64 bits, all of them at once.
#[derive(Clone, Copy)]
struct Draw {
    /// Of a code.
    bits: usize,
    /// Bits that stay.
    keep: u64,
    /// Bits that are set.
    set: u64,
    /// Codes of four bits that are zero become eight.
    centred: bool,
}

impl Draw {
    const NIBBLES: Self = Self { bits: 4, keep: u64::MAX, set: 0, centred: false };
    const CENTRED_NIBBLES: Self = Self { centred: true, ..Self::NIBBLES };
    const BYTES: Self = Self { bits: 8, ..Self::NIBBLES };
    /// 8-bit floats from 1 to 2, of either sign.
    const E4M3: Self = Self { keep: 0x8787_8787_8787_8787, set: 0x3838_3838_3838_3838, ..Self::BYTES };

    /// The codes of the `number`th draw of a row, the first one in the lowest bits.
    fn codes(self, row_key: u64, number: usize) -> u64 {
        let bits = mix(row_key.wrapping_add(number as u64)) & self.keep | self.set;
        if !self.centred {
            return bits;
        }
        let any = bits | bits >> 1 | bits >> 2 | bits >> 3;
        bits | (!any & 0x1111_1111_1111_1111) << 3
    }

    /// Packs the codes of some columns of a row.
    fn fill(self, row_key: u64, cols: Range<usize>, out: &mut [u8]) {
        let per_draw = 64 / self.bits;
        if cols.start.is_multiple_of(per_draw) {
            for (number, out) in out.chunks_mut(8).enumerate() {
                let codes = self.codes(row_key, cols.start / per_draw + number).to_le_bytes();
                out.copy_from_slice(&codes[..out.len()]);
            }
            // Bits beyond the last column are zero.
            if let Some(last) = out.last_mut().filter(|_| self.bits == 4 && !cols.len().is_multiple_of(2)) {
                *last &= 15;
            }
            return;
        }
        for (at, col) in cols.enumerate() {
            let code = self.codes(row_key, col / per_draw) >> (col % per_draw * self.bits) & ((1 << self.bits) - 1);
            out[at * self.bits / 8] |= (code << (at * self.bits % 8)) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use kernels::ops::{ColumnOrder, InputRounding};

    use super::*;
    use crate::weights::{Decoding, Weights};

    fn numbers(format: WeightFormat, cols: std::ops::Range<usize>) -> Vec<f32> {
        let dummy = Dummy { seed: 3, dtype: DType::F32, stored: Some(DummyFormat::of(format)), threads: 2 };
        let location = "w".to_owned().into();
        let slice = Slice { location, shape: vec![64, 256], rows: 8..64, cols, role: Role::Projection };
        let (stored, fetched) = (dummy.check(&slice).expect("a format"), dummy.fetch(&slice).expect("codes"));
        assert_eq!(fetched.format(), stored.format);
        let how = Decoding { cols: slice.cols.len(), dtype: DType::F32, threads: 1 };
        let bytes = fetched.decoded(how).bytes;
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn variance_is_one_over_width_and_slices_are_parts_of_the_whole() {
        let grouped = |bits, group, levels| {
            let (scales, order, input) = (DType::F32, ColumnOrder::InOrder, InputRounding::None);
            WeightFormat::Grouped(GroupedFormat { bits, group, scales, levels, order, input })
        };
        for format in [
            grouped(CodeBits::Four, 32, Levels::Integers(Zeros::Middle)),
            grouped(CodeBits::Four, 128, Levels::Integers(Zeros::Stored)),
            grouped(CodeBits::Eight, ALL_COLUMNS, Levels::Integers(Zeros::Middle)),
            grouped(CodeBits::Four, 32, Levels::Shared(std::array::from_fn(|level| level as f32 - 7.5))),
            WeightFormat::ScaledE4m3 { scale_cols: 128, input: InputRounding::None },
        ] {
            let whole = numbers(format, 0..256);
            let variance = whole.iter().map(|x| x * x).sum::<f32>() / whole.len() as f32;
            assert!((variance * 256.0 - 1.0).abs() < 0.1, "{format:?}: {variance}");
            for cols in [64..192, 37..64, 37..100] {
                let (part, width) = (numbers(format, cols.clone()), cols.len());
                let same =
                    part.iter().enumerate().all(|(i, value)| *value == whole[i / width * 256 + cols.start + i % width]);
                assert!(same, "{format:?} {cols:?}");
            }
        }
    }
}
