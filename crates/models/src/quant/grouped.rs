//! What all methods share that store codes in groups of columns: which codes, scales and zero points a slice needs, and
//! in what order.
//!
//! A method finds the tensors that stand for a weight and says how to read a row of codes, a scale and a zero point of
//! the whole matrix ([`CodeMatrix`]). Slices of tensor-parallel ranks, fused rows, stacked experts, and columns whose
//! groups are not in order (GPTQ's `desc_act`) are cut out here.

use std::borrow::Cow;
use std::ops::Range;

use kernels::ops::{
    ALL_COLUMNS, CodeBits, ColumnOrder, DType, Encoding, GroupedCodes, GroupedFormat, HostMatrix, InputRounding,
    Levels, WeightFormat, Zeros,
};

use super::stored_codes::{CodeRows, Room, StoredCodes};
use super::{Quantization, decode_slice};
use crate::error::LoadError;
use crate::weights::{
    Chunk, DummyFormat, Fetched, GroupedPart, Made, RandomWeight, Slice, Stored, Tensors, narrow_into, spread_rows,
};

/// A method whose weights are codes in groups of columns.
pub(super) trait GroupedMethod: Send + Sync {
    /// The tensors that stand for a slice, checked for types and shapes; absent where it is stored as plain numbers.
    fn find<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<CodeMatrix<'a>>, LoadError>;
    /// See [`Quantization::is_decoded`].
    fn is_decoded(&self) -> bool {
        false
    }
    /// See [`Quantization::dummy`].
    fn dummy(&self) -> Option<DummyFormat> {
        None
    }
    /// See [`Quantization::made`].
    fn made(&self, weight: &RandomWeight<'_>) -> Made {
        let _ = weight;
        Made::Unknown
    }
}

/// The codes that random weights are made of, with scales that 16 bits hold.
pub(super) fn dummy_codes(bits: CodeBits, group: usize, levels: Levels) -> WeightFormat {
    let (scales, order, input) = (DType::F16, ColumnOrder::InOrder, InputRounding::None);
    WeightFormat::Grouped(GroupedFormat { bits, group, scales, levels, order, input })
}

/// The method as one of all.
pub(super) struct Grouped<M>(pub M);

/// Reads something of a group of a row.
pub(super) type OfGroup<'a, T> = Box<dyn Fn(usize, usize) -> T + Sync + 'a>;

/// A stored matrix `[output features, input features]`, whole, and how to read it.
pub(super) struct CodeMatrix<'a> {
    pub shape: [usize; 2],
    pub bits: CodeBits,
    /// Columns that share a scale, or [`ALL_COLUMNS`].
    pub group: usize,
    /// What scales are stored in, or may be without loss.
    pub scale_type: DType,
    pub codes: StoredCodes<'a>,
    pub scale: OfGroup<'a, f32>,
    pub meaning: Meaning<'a>,
    /// The group of each column, where they are not in order.
    pub groups: Option<Vec<u32>>,
    pub input: InputRounding,
    /// Rows are output features also where the plain weight would lie the other way round.
    pub upright: bool,
}

/// What codes mean before they are multiplied by their scales.
pub(super) enum Meaning<'a> {
    /// Integers with the middle as zero.
    Symmetric,
    /// Integers with a zero point for each group.
    Zeros(OfGroup<'a, u8>),
    /// One of these.
    Levels([f32; 16]),
    /// One of the row's own.
    RowLevels(Box<dyn Fn(usize) -> [f32; 16] + Sync + 'a>),
}

impl<M: GroupedMethod> Quantization for Grouped<M> {
    fn check(&self, slice: &Slice, tensors: Tensors<'_>) -> Result<Option<Stored>, LoadError> {
        Ok(self.0.find(slice, tensors)?.map(|matrix| matrix.stored(slice)))
    }

    fn fetch<'a>(&self, slice: &Slice, tensors: Tensors<'a>) -> Result<Option<Fetched<'a>>, LoadError> {
        Ok(self.0.find(slice, tensors)?.map(|matrix| matrix.fetch(slice, tensors.threads)))
    }

    fn is_decoded(&self) -> bool {
        self.0.is_decoded()
    }

    fn dummy(&self) -> Option<DummyFormat> {
        self.0.dummy()
    }

    fn made(&self, weight: &RandomWeight<'_>) -> Made {
        self.0.made(weight)
    }
}

/// The columns that a slice needs, in the order in which their groups follow each other.
struct Columns {
    /// Columns of the whole matrix; absent: the slice's, in order.
    order: Option<Vec<usize>>,
    /// Of the whole matrix.
    groups: Range<usize>,
    /// Columns of the slice that share a scale, or [`ALL_COLUMNS`].
    size: usize,
}

impl<'a> CodeMatrix<'a> {
    /// How the slice is stored.
    pub(super) fn stored(&self, slice: &Slice) -> Stored {
        let slice = &self.lying(slice);
        let Some(columns) = self.columns(slice) else { return Stored::plain(DType::F32, slice.elements()) };
        let (rows, format) = (slice.rows.len(), self.format(&columns));
        let zeros = usize::from(format.levels == Levels::Integers(Zeros::Stored));
        let levels = if format.levels == Levels::Rows { rows * 16 * 4 } else { 0 };
        let scales = rows * columns.groups.len() * (format.scales.size() + zeros);
        let bytes = rows * format.bits.row_bytes(slice.cols.len()) + scales + levels;
        // Scales of the inputs are read with the slice.
        let format = GroupedFormat { input: InputRounding::None, ..format };
        Stored { format: WeightFormat::Grouped(format), bytes: bytes as u64 }
    }

    pub(super) fn fetch(&self, slice: &Slice, threads: usize) -> Fetched<'a> {
        let slice = &self.lying(slice);
        match self.columns(slice) {
            Some(columns) => Fetched::Grouped(self.part(slice, &columns, threads)),
            None => {
                let bytes = Cow::Owned(self.decode(slice, threads));
                Fetched::Plain(Chunk { dtype: DType::F32, bytes })
            }
        }
    }

    /// The slice as it lies in the matrix.
    fn lying(&self, slice: &Slice) -> Slice {
        let mut slice = slice.clone();
        slice.location.transposed &= !self.upright;
        slice
    }

    /// Absent where the slice lies the other way round, or cuts groups so that they are not alike any more; then it is
    /// decoded.
    fn columns(&self, slice: &Slice) -> Option<Columns> {
        if slice.location.transposed {
            return None;
        }
        let cols = slice.cols.clone();
        match &self.groups {
            Some(groups) => ordered(groups, cols, self.group),
            None => {
                let (groups, size) = in_order(cols, self.group)?;
                Some(Columns { order: None, groups, size })
            }
        }
    }

    fn format(&self, columns: &Columns) -> GroupedFormat {
        GroupedFormat {
            bits: self.bits,
            group: columns.size,
            scales: self.scale_type,
            levels: match &self.meaning {
                Meaning::Symmetric => Levels::Integers(Zeros::Middle),
                Meaning::Zeros(_) => Levels::Integers(Zeros::Stored),
                Meaning::Levels(levels) => Levels::Shared(*levels),
                Meaning::RowLevels(_) => Levels::Rows,
            },
            order: if columns.order.is_some() { ColumnOrder::Permuted } else { ColumnOrder::InOrder },
            input: self.input,
        }
    }

    fn code_rows(&self) -> CodeRows<'_, 'a> {
        CodeRows { codes: &self.codes, bits: self.bits, shape: self.shape }
    }

    /// The slice in its stored format.
    fn part(&self, slice: &Slice, columns: &Columns, threads: usize) -> GroupedPart<'a> {
        let location = &slice.location;
        let first_row = location.stack.map_or(0, |stack| stack.index * (self.shape[0] / stack.count));
        let row_of = |row: usize| first_row + location.rows.stored(slice.rows.start + row);
        let (rows, format, groups) = (slice.rows.len(), self.format(columns), columns.groups.clone());
        let (code_rows, order) = (self.code_rows(), columns.order.as_deref());
        let run = slice.one_run().filter(|_| order.is_none());
        let stored = run.and_then(|run| code_rows.stored(first_row + run.start..first_row + run.end));
        let codes = match stored {
            Some(bytes) => Cow::Borrowed(bytes),
            None => Cow::Owned(spread_rows([rows, format.bits.row_bytes(slice.cols.len())], threads, || {
                let mut room = Room::default();
                move |row, out: &mut [u8]| code_rows.pack(row_of(row), &slice.cols, order, &mut room, out)
            })),
        };
        let scales = spread_rows([rows, groups.len() * format.scales.size()], threads, || {
            let (groups, mut values) = (groups.clone(), Vec::new());
            move |row, out: &mut [u8]| {
                values.clear();
                values.extend(groups.clone().map(|group| (self.scale)(row_of(row), group)));
                narrow_into(&values, format.scales, out);
            }
        });
        let (mut zeros, mut row_levels) = (Vec::new(), Vec::new());
        match &self.meaning {
            Meaning::Zeros(zero) => {
                zeros = spread_rows([rows, groups.len()], threads, || {
                    |row, out: &mut [u8]| {
                        out.iter_mut().zip(groups.clone()).for_each(|(out, group)| *out = zero(row_of(row), group));
                    }
                });
            }
            Meaning::RowLevels(levels) => row_levels.extend((0..rows).flat_map(|row| levels(row_of(row)))),
            Meaning::Symmetric | Meaning::Levels(_) => {}
        }
        let start = slice.cols.start;
        let columns = order.iter().flat_map(|order| order.iter()).map(|column| (column - start) as u32).collect();
        GroupedPart { format, codes, scales, zeros, row_levels, columns }
    }

    /// The slice as f32, decoded of the whole matrix.
    pub(super) fn decode(&self, slice: &Slice, threads: usize) -> Vec<u8> {
        let [rows, cols] = self.shape;
        let all = Columns { order: None, groups: 0..self.group_count(), size: self.group };
        let whole = Slice { rows: 0..rows, cols: 0..cols, ..slice.clone() };
        let whole = Slice { shape: vec![rows, cols], location: String::new().into(), ..whole };
        match &self.groups {
            None => self.decode_part(&self.part(&whole, &all, threads), slice, threads),
            Some(groups) => {
                // In groups of one column, the scales lie where the columns do.
                let each = CodeMatrix {
                    shape: self.shape,
                    bits: self.bits,
                    group: 1,
                    scale_type: self.scale_type,
                    codes: StoredCodes::Each(Box::new(|row, cols, out| {
                        out.copy_from_slice(self.code_rows().read(row, &cols, &mut Room::default()));
                    })),
                    scale: Box::new(|row, column| (self.scale)(row, groups[column] as usize)),
                    meaning: match &self.meaning {
                        Meaning::Symmetric => Meaning::Symmetric,
                        Meaning::Zeros(zero) => {
                            Meaning::Zeros(Box::new(|row, column| zero(row, groups[column] as usize)))
                        }
                        Meaning::Levels(levels) => Meaning::Levels(*levels),
                        Meaning::RowLevels(levels) => Meaning::RowLevels(Box::new(levels)),
                    },
                    groups: None,
                    input: InputRounding::None,
                    upright: false,
                };
                each.decode(slice, threads)
            }
        }
    }

    fn decode_part(&self, part: &GroupedPart<'_>, slice: &Slice, threads: usize) -> Vec<u8> {
        let GroupedPart { format, codes, scales, zeros, row_levels, columns } = part;
        let codes = GroupedCodes { format: *format, codes, scales, zeros, row_levels, columns };
        let [rows, cols] = self.shape;
        decode_slice(&HostMatrix { rows, cols, encoding: Encoding::Grouped(codes) }, slice, threads)
    }

    fn group_count(&self) -> usize {
        if self.group == ALL_COLUMNS { 1 } else { self.shape[1].div_ceil(self.group) }
    }
}

/// The groups of columns in order, and how many columns of the range share one; absent where a group would be cut at
/// its beginning.
fn in_order(cols: Range<usize>, group: usize) -> Option<(Range<usize>, usize)> {
    if group == ALL_COLUMNS || cols.is_empty() {
        return Some((0..1, ALL_COLUMNS));
    }
    let (first, last) = (cols.start / group, (cols.end - 1) / group);
    if first == last {
        return Some((first..first + 1, ALL_COLUMNS));
    }
    cols.start.is_multiple_of(group).then_some((first..last + 1, group))
}

/// The same of columns whose groups are in no order: sorted by group, where that gives groups of one size, the last
/// perhaps short.
fn ordered(groups: &[u32], cols: Range<usize>, group: usize) -> Option<Columns> {
    let mut order: Vec<usize> = cols.collect();
    order.sort_by_key(|column| groups[*column]);
    let first = order.first().map_or(0, |column| groups[*column] as usize);
    let last = order.last().map_or(0, |column| groups[*column] as usize);
    let size = if first == last { ALL_COLUMNS } else { group };
    let alike = order.iter().enumerate().all(|(at, column)| {
        let found = groups[*column] as usize;
        size == ALL_COLUMNS || found == first + at / size
    });
    alike.then_some(Columns { order: Some(order), groups: first..last + 1, size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::{Role, TensorLocation};

    /// Twelve columns: code `column`, scale of group `g` is `g + 1`, zero point of group `g` is `g`.
    fn matrix(groups: Option<Vec<u32>>) -> CodeMatrix<'static> {
        CodeMatrix {
            shape: [2, 12],
            bits: CodeBits::Four,
            group: 4,
            scale_type: DType::F32,
            codes: StoredCodes::Each(Box::new(|row, cols, out| {
                out.iter_mut().zip(cols).for_each(|(code, column)| *code = column as u8 + row as u8);
            })),
            scale: Box::new(|_, group| group as f32 + 1.0),
            meaning: Meaning::Zeros(Box::new(|_, group| group as u8)),
            groups,
            input: InputRounding::None,
            upright: false,
        }
    }

    /// Columns of the second row, and whether they stayed codes.
    fn fetched(matrix: &CodeMatrix<'_>, cols: Range<usize>) -> (Vec<f32>, bool) {
        let location = TensorLocation::from("w".to_owned());
        let slice = Slice { location, shape: vec![2, 12], rows: 1..2, cols: cols.clone(), role: Role::Matrix };
        let fetched = matrix.fetch(&slice, 1);
        let stored = matrix.stored(&slice);
        assert_eq!(
            (fetched.format(), fetched.bytes() - fetched.columns().len() as u64 * 4),
            (stored.format, stored.bytes)
        );
        let kept = matches!(fetched, Fetched::Grouped(_));
        let how = crate::weights::Decoding { cols: cols.len(), dtype: DType::F32, threads: 1 };
        let bytes = fetched.decoded(how).bytes;
        (bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(), kept)
    }

    #[test]
    fn slices_are_parts_of_the_whole() {
        let shuffled = vec![2, 0, 1, 1, 0, 2, 0, 1, 2, 2, 0, 1];
        let wanted = |groups: &dyn Fn(usize) -> f32, cols: Range<usize>| -> Vec<f32> {
            cols.map(|column| (column as f32 + 1.0 - groups(column)) * (groups(column) + 1.0)).collect()
        };
        let plain = matrix(None);
        for (cols, kept) in [(0..12, true), (4..12, true), (0..6, true), (5..7, true), (2..6, false), (3..12, false)] {
            let want = wanted(&|column| (column / 4) as f32, cols.clone());
            assert_eq!(fetched(&plain, cols.clone()), (want, kept), "{cols:?}");
        }
        let permuted = matrix(Some(shuffled.clone()));
        for (cols, kept) in [(0..12, true), (0..6, false), (2..4, true), (6..12, false)] {
            let want = wanted(&|column| shuffled[column] as f32, cols.clone());
            assert_eq!(fetched(&permuted, cols.clone()), (want, kept), "{cols:?}");
        }
    }
}
