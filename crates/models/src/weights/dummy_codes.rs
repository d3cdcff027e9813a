//! Random codes of a quantised format, for measuring what a checkpoint of that format would take without one.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::OnceLock;

use kernels::ops::{ALL_COLUMNS, CodeBits, GroupedFormat, Levels, WeightFormat, Zeros, mix};

use super::cast::narrow;
use super::dummy::Dummy;
use super::{Fetched, GroupedPart, Role, ScaledPart, Slice, Stored, spread, spread_rows};

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
    pub(super) fn codes(&self, slice: &Slice, format: WeightFormat) -> Fetched<'_> {
        match format {
            WeightFormat::Grouped(format) => Fetched::Grouped(self.grouped(slice, format)),
            WeightFormat::ScaledE4m3 { scale_cols, input } => {
                let scale = self.scale(slice, &[1.0, 1.125, 1.25, 1.375, 1.5, 1.625, 1.75, 1.875]);
                let scales = vec![scale; slice.cols.len().div_ceil(scale_cols)];
                let scale_rows = vec![0; slice.rows.len()];
                let codes = self.drawn(slice, Draw::E4M3);
                Fetched::Scaled(ScaledPart { codes, scales, scale_rows, scale_cols, input })
            }
            WeightFormat::Plain(_) | WeightFormat::Blocks(_) => Fetched::Plain(self.chunk(slice)),
        }
    }

    fn grouped(&self, slice: &Slice, format: GroupedFormat) -> GroupedPart<'_> {
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
        let mut one = Vec::new();
        narrow(std::iter::once(scale), format.scales, &mut one);
        let zeros = if format.levels == Levels::Integers(Zeros::Stored) { vec![middle; groups] } else { Vec::new() };
        let (codes, scales) = (self.drawn(slice, draw), one.repeat(groups));
        GroupedPart { format, codes, scales, zeros, row_levels: Vec::new(), columns: Vec::new() }
    }

    /// With which the variance of such numbers is 1 / width.
    fn scale(&self, slice: &Slice, numbers: &[f32]) -> f32 {
        let squares: f32 = numbers.iter().map(|number| number * number).sum();
        (slice.width() as f32 * squares / numbers.len() as f32).sqrt().recip()
    }

    /// Codes, as their places say: byte `i` of a matrix is the byte `i` after the one where its stretch begins.
    fn drawn(&self, slice: &Slice, draw: Draw) -> Cow<'_, [u8]> {
        let all = self.codes.of(mix(self.seed), draw, self.threads);
        let per_byte = 8 / draw.bits;
        let (width, cols) = (slice.width(), slice.cols.clone());
        let (line, line_bytes) = (width.div_ceil(per_byte), cols.len().div_ceil(per_byte).max(1));
        // Parts of a fused tensor differ in where they begin.
        let key = mix(self.matrix_key(&slice.location) ^ slice.location.rows.offset as u64);
        let begin = (key % PERIOD as u64) as usize;
        let place = |row: usize| (begin + row * line + cols.start / per_byte) % PERIOD;
        let first = place(slice.rows.start);
        let is_whole = cols.len() == width && width.is_multiple_of(per_byte);
        if let Some(stretch) = all.get(first..first + slice.rows.len() * line).filter(|_| is_whole) {
            return Cow::Borrowed(stretch);
        }
        Cow::Owned(spread_rows([slice.rows.len(), line_bytes], self.threads, || {
            |row, out: &mut [u8]| draw.copy(&all[place(slice.rows.start + row)..], cols.clone(), out)
        }))
    }
}

/// Bytes that are drawn. A prime number of them, so that no two rows of a matrix begin at the same one.
const PERIOD: usize = (1 << 24) - 3;
/// How often they lie one after the other: a matrix of most shapes is in one piece then.
const TIMES: usize = 4;

/// Random codes, of which every matrix is a stretch: to draw each of billions would take longer than all the rest of a
/// start.
#[derive(Default)]
pub(crate) struct DrawnCodes(OnceLock<Vec<u8>>);

impl DrawnCodes {
    fn of(&self, key: u64, draw: Draw, threads: usize) -> &[u8] {
        self.0.get_or_init(|| {
            let mut bytes = vec![0; TIMES * PERIOD];
            spread(&mut bytes[..PERIOD], 8, threads, |first, part| {
                for (number, out) in part.chunks_mut(8).enumerate() {
                    let codes = draw.codes(key.wrapping_add((first + number) as u64)).to_le_bytes();
                    out.copy_from_slice(&codes[..out.len()]);
                }
            });
            (1..TIMES).for_each(|time| bytes.copy_within(..PERIOD, time * PERIOD));
            bytes
        })
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

    /// As many as 64 bits hold.
    fn codes(self, key: u64) -> u64 {
        let bits = mix(key) & self.keep | self.set;
        if !self.centred {
            return bits;
        }
        let any = bits | bits >> 1 | bits >> 2 | bits >> 3;
        bits | (!any & 0x1111_1111_1111_1111) << 3
    }

    /// Packs the codes of some columns of a row; `from` begins with the byte of the first one.
    fn copy(self, from: &[u8], cols: Range<usize>, out: &mut [u8]) {
        if self.bits == 8 || cols.start.is_multiple_of(2) {
            out.copy_from_slice(&from[..out.len()]);
        } else {
            out.iter_mut().zip(from.windows(2)).for_each(|(out, pair)| *out = pair[0] >> 4 | pair[1] << 4);
        }
        // Bits beyond the last column are zero.
        if let Some(last) = out.last_mut().filter(|_| self.bits == 4 && !cols.len().is_multiple_of(2)) {
            *last &= 15;
        }
    }
}

#[cfg(test)]
mod tests {
    use kernels::ops::{ColumnOrder, DType, InputRounding};

    use super::*;
    use crate::weights::{Decoding, FusedShard, StackedExpert, TensorLocation, Weights};

    fn dummy(format: WeightFormat) -> Dummy {
        Dummy { stored: Some(DummyFormat::of(format)), ..Dummy::new(3, DType::F32, 2) }
    }

    fn slice(cols: Range<usize>) -> Slice {
        let location = "w".to_owned().into();
        Slice { location, shape: vec![64, 256], rows: 8..64, cols, role: Role::Projection }
    }

    fn numbers(dummy: &Dummy, slice: &Slice) -> Vec<f32> {
        let (stored, fetched) = (dummy.check(slice).expect("a format"), dummy.fetch(slice).expect("codes"));
        assert_eq!(fetched.format(), stored.format);
        let how = Decoding { cols: slice.cols.len(), dtype: DType::F32, threads: 1 };
        let bytes = fetched.decoded(how).bytes;
        bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn grouped(bits: CodeBits, group: usize, levels: Levels) -> WeightFormat {
        let (scales, order, input) = (DType::F32, ColumnOrder::InOrder, InputRounding::None);
        WeightFormat::Grouped(GroupedFormat { bits, group, scales, levels, order, input })
    }

    #[test]
    fn variance_is_one_over_width_and_slices_are_parts_of_the_whole() {
        for format in [
            grouped(CodeBits::Four, 32, Levels::Integers(Zeros::Middle)),
            grouped(CodeBits::Four, 128, Levels::Integers(Zeros::Stored)),
            grouped(CodeBits::Eight, ALL_COLUMNS, Levels::Integers(Zeros::Middle)),
            grouped(CodeBits::Four, 32, Levels::Shared(std::array::from_fn(|level| level as f32 - 7.5))),
            WeightFormat::ScaledE4m3 { scale_cols: 128, input: InputRounding::None },
        ] {
            let dummy = dummy(format);
            let whole = numbers(&dummy, &slice(0..256));
            let variance = whole.iter().map(|x| x * x).sum::<f32>() / whole.len() as f32;
            assert!((variance * 256.0 - 1.0).abs() < 0.1, "{format:?}: {variance}");
            for cols in [64..192, 37..64, 37..100] {
                let (part, width) = (numbers(&dummy, &slice(cols.clone())), cols.len());
                let same =
                    part.iter().enumerate().all(|(i, value)| *value == whole[i / width * 256 + cols.start + i % width]);
                assert!(same, "{format:?} {cols:?}");
            }
        }
    }

    #[test]
    fn experts_rows_and_parts_of_fused_tensors_differ() {
        let dummy = dummy(grouped(CodeBits::Four, 32, Levels::Integers(Zeros::Middle)));
        let mut rows = std::collections::HashSet::new();
        let shards = FusedShard::split([1, 1]);
        for (index, shard) in (0..4).flat_map(|expert| shards.map(|shard| (expert, shard))) {
            let stack = Some(StackedExpert { index, count: 4 });
            let location = TensorLocation { stack, rows: shard, ..slice(0..256).location };
            let Fetched::Grouped(part) = dummy.fetch(&Slice { location, ..slice(0..256) }).expect("codes") else {
                panic!("no codes")
            };
            rows.extend(part.codes.chunks(128).map(<[u8]>::to_vec));
        }
        assert_eq!(rows.len(), 4 * 2 * 56);
    }

    /// Larger than what is drawn: rows go on where those end.
    #[test]
    fn large_matrices_are_copied() {
        let dummy = dummy(grouped(CodeBits::Eight, ALL_COLUMNS, Levels::Integers(Zeros::Middle)));
        let codes = |rows: Range<usize>| {
            let slice = Slice { shape: vec![1 << 15, 1 << 11], rows, ..slice(0..1 << 11) };
            let Fetched::Grouped(part) = dummy.fetch(&slice).expect("codes") else { panic!("no codes") };
            part.codes.into_owned()
        };
        let (whole, part) = (codes(0..1 << 15), codes(30_000..30_002));
        assert_eq!(whole[30_000 << 11..30_002 << 11], part);
        assert_ne!(whole[..1 << 11], whole[8192 << 11..8193 << 11]);
    }
}
