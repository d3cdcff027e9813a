//! Random codes of a quantised format, for measuring what a checkpoint of that format would take without one.

use std::borrow::Cow;

use kernels::e4m3;
use kernels::ops::{ALL_COLUMNS, CodeBits, DType, GroupedFormat, Levels, WeightFormat, Zeros, mix};

use super::cast::narrow;
use super::dummy::{Dummy, LEVELS};
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
                // From 1 to 2, of either sign.
                let codes = std::array::from_fn(|i| i as u8 & 0x87 | 0x38);
                let scale = self.scale(slice, &codes.map(e4m3::decode));
                let scales = vec![scale; slice.cols.len().div_ceil(scale_cols)];
                let scale_rows = vec![0; slice.rows.len()];
                let codes = Cow::Owned(self.drawn(slice, &codes));
                Fetched::Scaled(ScaledPart { codes, scales, scale_rows, scale_cols, input })
            }
            WeightFormat::Plain(_) | WeightFormat::Blocks(_) => Fetched::Plain(self.chunk(slice)),
        }
    }

    fn grouped(&self, slice: &Slice, format: GroupedFormat) -> GroupedPart<'static> {
        let (rows, cols) = (slice.rows.len(), slice.cols.len());
        let (mask, middle) = (format.bits.middle() | (format.bits.middle() - 1), format.bits.middle());
        let codes: [u8; 256] = std::array::from_fn(|i| i as u8 & mask);
        let scale = match format.levels {
            Levels::Shared(levels) => self.scale(slice, &levels),
            _ => self.scale(slice, &codes.map(|code| f32::from(code) - f32::from(middle))),
        };
        let groups = rows * format.groups(cols);
        let mut scales = Vec::with_capacity(groups * format.scales.size());
        narrow(std::iter::repeat_n(scale, groups), format.scales, &mut scales);
        let zeros = if format.levels == Levels::Integers(Zeros::Stored) { vec![middle; groups] } else { Vec::new() };
        let mut codes = self.drawn(slice, &codes);
        if format.bits == CodeBits::Four {
            let pairs = codes.chunks(cols.max(1)).flat_map(|row| row.chunks(2));
            codes = pairs.map(|pair| pair[0] | pair.get(1).copied().unwrap_or(0) << 4).collect();
        }
        GroupedPart { format, codes: Cow::Owned(codes), scales, zeros, row_levels: Vec::new(), columns: Vec::new() }
    }

    /// With which the variance of such numbers is 1 / width.
    fn scale(&self, slice: &Slice, numbers: &[f32]) -> f32 {
        let squares: f32 = numbers.iter().map(|number| number * number).sum();
        (slice.width() as f32 * squares / numbers.len() as f32).sqrt().recip()
    }

    /// One of these for each element, as the element's place says.
    fn drawn(&self, slice: &Slice, codes: &[u8; 256]) -> Vec<u8> {
        let values = self.values(slice, DType::F32);
        let rows = values.rows(slice);
        let (cols, first) = (slice.cols.len(), rows.first_col);
        let mut out = vec![0; slice.elements()];
        spread(&mut out, cols.max(1), self.threads, |first_row, part| {
            for (row, out) in part.chunks_exact_mut(cols.max(1)).enumerate() {
                let key = rows.row_key(first_row + row);
                for (index, out) in out.iter_mut().enumerate() {
                    let (col, draw) = (first + index, (first + index) / 4);
                    let bits = mix(key.wrapping_add(draw as u64)) >> (16 * (col % 4));
                    *out = codes[bits as usize % LEVELS % codes.len()];
                }
            }
        });
        out
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
            let part = numbers(format, 64..192);
            let same = part.iter().enumerate().all(|(i, value)| *value == whole[i / 128 * 256 + 64 + i % 128]);
            assert!(same, "{format:?}");
        }
    }
}
