//! Where a parameter lies in its files: these fuse, interleave and transpose what a model keeps apart.

use std::borrow::Cow;
use std::ops::Range;

use super::Slice;
use super::spread::spread_rows;

/// A weight inside a stored tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorLocation {
    /// The tensor's name in the files.
    pub tensor: String,
    /// The tensor is several weights, one after the other.
    pub stack: Option<StackedExpert>,
    /// Which of its output features are the weight's.
    pub rows: FusedShard,
    /// A matrix is stored `[in, out]` (GPT-2). Vectors do not care.
    pub transposed: bool,
    /// It is so because its layer is a `Conv1D`, which tools quantise as the linear layer that it is: what they store
    /// lies `[out, in]`.
    pub conv1d: bool,
}

impl From<String> for TensorLocation {
    /// A tensor that holds the weight and nothing else.
    fn from(tensor: String) -> Self {
        Self { tensor, stack: None, rows: FusedShard::ALL, transposed: false, conv1d: false }
    }
}

/// One of several weights of equal shapes, stored `[count, …]` or with the first two dimensions folded into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StackedExpert {
    /// Which one.
    pub index: usize,
    /// Of how many.
    pub count: usize,
}

/// `size` rows of every `period`, from `offset` on.
///
/// ```text
/// q, k, v one after the other   q is one stripe of one period that spans the tensor
/// grouped by head               q is head_dim rows of every 3 * head_dim
/// gate and up row by row        gate is 1 row of every 2
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FusedShard {
    /// Rows of a period before the weight's.
    pub offset: usize,
    /// The weight's rows in a period.
    pub size: usize,
    /// Rows of a period; the next one follows at once.
    pub period: usize,
}

impl FusedShard {
    /// All rows.
    pub const ALL: Self = Self { offset: 0, size: 1, period: 1 };

    /// Each of `sizes` takes its rows of a period, in order.
    pub fn split<const N: usize>(sizes: [usize; N]) -> [Self; N] {
        let period = sizes.iter().sum();
        let mut offset = 0;
        sizes.map(|size| {
            offset += size;
            Self { offset: offset - size, size, period }
        })
    }

    /// Rows of the tensor in which a weight has `rows`.
    fn stored_len(self, rows: usize) -> usize {
        rows / self.size * self.period
    }

    /// The stored row of a weight's row.
    pub(crate) fn stored(self, row: usize) -> usize {
        row / self.size * self.period + self.offset + row % self.size
    }

    /// Ranges of stored rows that follow each other in the weight.
    fn runs(self, rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let mut next = rows.start;
        std::iter::from_fn(move || {
            let start = next;
            // Where nothing lies between stripes, they are one run.
            let end = if self.size == self.period { rows.end } else { (start / self.size + 1) * self.size };
            next = end.min(rows.end);
            (start < next).then(|| self.stored(start)..self.stored(start) + next - start)
        })
    }
}

impl Slice {
    /// Shape that the stored tensor must have.
    pub(crate) fn stored_shape(&self) -> Vec<usize> {
        let rows = self.location.rows.stored_len(self.shape[0]);
        let one = match self.shape.get(1) {
            None => vec![rows],
            Some(&cols) if self.location.transposed => vec![cols, rows],
            Some(&cols) => vec![rows, cols],
        };
        self.location.stack.iter().map(|stack| stack.count).chain(one).collect()
    }

    /// Whether a tensor of this shape can be the stored one. A vector may be folded: `[heads, head_dim]` for all heads'
    /// norms, or a matrix of one row written as one.
    pub(crate) fn fits(&self, shape: &[usize]) -> bool {
        let stored = self.stored_shape();
        let folded = || {
            let (first, rest) = (stored[0] * stored.get(1)?, stored.get(2..)?);
            Some(shape.first() == Some(&first) && shape.get(1..) == Some(rest))
        };
        let is_folded = self.location.stack.is_some() && folded() == Some(true);
        let is_vector = matches!(stored[..], [_] | [1, _]);
        shape == stored
            || is_folded
            || (is_vector && shape.iter().product::<usize>() == stored.iter().product::<usize>())
    }

    /// Whether the slice is the stored tensor as it lies.
    pub(crate) fn is_whole(&self) -> bool {
        let len = self.shape.iter().product::<usize>();
        self.elements() == len
            && self.location.stack.is_none()
            && self.location.rows == FusedShard::ALL
            && !(self.location.transposed && self.shape.len() == 2)
    }

    /// The same slice of a tensor whose rows consist of blocks of `size` elements, with blocks for elements; none
    /// where it cuts through one.
    pub(crate) fn in_blocks(&self, size: usize) -> Option<Self> {
        let [rows, cols] = self.shape[..] else { return None };
        let whole = [cols, self.cols.start, self.cols.end].iter().all(|column| column.is_multiple_of(size));
        (whole && !self.location.transposed).then(|| Self {
            shape: vec![rows, cols / size],
            cols: self.cols.start / size..self.cols.end / size,
            ..self.clone()
        })
    }

    /// The slice's bytes of the whole stored tensor, of elements of `element` bytes: borrowed where they lie in one
    /// piece, else put together by `threads` threads.
    pub(crate) fn cut<'a>(&self, tensor: &'a [u8], element: usize, threads: usize) -> Cow<'a, [u8]> {
        let tensor = self.location.stack.map_or(tensor, |stack| {
            let each = tensor.len() / stack.count;
            &tensor[stack.index * each..][..each]
        });
        let transposed = self.location.transposed && self.shape.len() == 2;
        if let Some(rows) = self.one_run().filter(|_| !transposed) {
            let width = self.width() * element;
            return Cow::Borrowed(&tensor[rows.start * width..rows.end * width]);
        }
        let row_bytes = self.cols.len() * element;
        Cow::Owned(spread_rows([self.rows.len(), row_bytes], threads, || {
            |row, out: &mut [u8]| {
                let row = self.location.rows.stored(self.rows.start + row);
                if transposed {
                    self.copy_column(tensor, row, element, out);
                } else {
                    let start = (row * self.width() + self.cols.start) * element;
                    out.copy_from_slice(&tensor[start..start + row_bytes]);
                }
            }
        }))
    }

    /// The slice as quantised tensors have it.
    pub(crate) fn as_linear(&self) -> Cow<'_, Self> {
        if !(self.location.conv1d && self.location.transposed) {
            return Cow::Borrowed(self);
        }
        let location = TensorLocation { transposed: false, ..self.location.clone() };
        Cow::Owned(Self { location, ..self.clone() })
    }

    /// The slice as its tensor lies: of one that is stored `[in, out]`, its transpose.
    pub(crate) fn upright(&self) -> Self {
        if !self.location.transposed {
            return self.clone();
        }
        let mut upright = Self { rows: self.cols.clone(), cols: self.rows.clone(), ..self.clone() };
        upright.shape.reverse();
        upright.location.transposed = false;
        upright
    }

    /// The transpose of the slice's elements of four bytes.
    pub(crate) fn turned(&self, bytes: &[u8]) -> Vec<u8> {
        let (rows, cols) = (self.rows.len(), self.cols.len());
        let (from, mut turned) = (bytes.as_chunks::<4>().0, vec![0; bytes.len()]);
        for (at, to) in turned.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            *to = from[at % rows * cols + at / rows];
        }
        turned
    }

    /// The stored rows that the slice consists of, where it is whole rows in one run.
    pub(crate) fn one_run(&self) -> Option<Range<usize>> {
        let mut runs = self.location.rows.runs(self.rows.clone());
        let first = runs.next().unwrap_or(0..0);
        (self.cols.len() == self.width() && runs.next().is_none()).then_some(first)
    }

    /// A row of a weight that is stored `[in, out]`.
    fn copy_column(&self, tensor: &[u8], row: usize, element: usize, out: &mut [u8]) {
        let stride = self.location.rows.stored_len(self.shape[0]);
        for (col, out) in self.cols.clone().zip(out.chunks_exact_mut(element)) {
            let start = (col * stride + row) * element;
            out.copy_from_slice(&tensor[start..start + element]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Role;
    use super::*;

    /// Cuts a tensor of bytes `0, 1, 2, …`.
    fn check(rows: FusedShard, transposed: bool, shape: &[usize], part: [Range<usize>; 2], expected: &[u8]) {
        let location = TensorLocation { rows, transposed, ..TensorLocation::from("t".to_owned()) };
        let [rows, cols] = part;
        let slice = Slice { location, shape: shape.to_vec(), rows, cols, role: Role::Matrix };
        let tensor: Vec<u8> = (0..slice.stored_shape().iter().product::<usize>() as u8).collect();
        assert_eq!(&*slice.cut(&tensor, 1, 2), expected, "{slice:?}");
    }

    #[test]
    fn threads_cut_alike() {
        // Long enough to be divided.
        let (location, shape) = (TensorLocation::from("t".to_owned()), vec![1500, 600]);
        let tensor: Vec<u8> = (0..2 * 1500 * 600_usize).map(|i| (i * 31 + i / 251) as u8).collect();
        for transposed in [false, true] {
            let location = TensorLocation { transposed, ..location.clone() };
            let slice = Slice { location, shape: shape.clone(), rows: 3..1490, cols: 100..500, role: Role::Matrix };
            assert!(slice.cut(&tensor, 2, 1) == slice.cut(&tensor, 2, 4));
        }
    }

    #[test]
    fn cuts_out_of_fused_tensors() {
        check(FusedShard::ALL, false, &[3, 2], [1..3, 0..2], &[2, 3, 4, 5]);
        check(FusedShard::ALL, false, &[3, 2], [0..3, 1..2], &[1, 3, 5]);
        check(FusedShard::ALL, true, &[2, 3], [0..2, 1..3], &[2, 4, 3, 5]);
        // Two groups of [q q k]: q is rows 0, 1, 3, 4 and k rows 2, 5.
        let [q, k] = FusedShard::split([2, 1]);
        check(q, false, &[4, 2], [0..4, 0..2], &[0, 1, 2, 3, 6, 7, 8, 9]);
        check(q, false, &[4, 2], [1..3, 0..1], &[2, 6]);
        check(k, false, &[2, 2], [1..2, 0..2], &[10, 11]);
        check(k, false, &[2], [0..2, 0..1], &[2, 5]);
        check(k, true, &[2, 2], [0..2, 0..2], &[2, 8, 5, 11]);
    }

    #[test]
    fn cuts_out_of_stacked_tensors() {
        let [gate, up] = FusedShard::split([1, 1]);
        let tensor: Vec<u8> = (0..24).collect();
        let cut = |index, rows, transposed, shape: &[usize]| {
            let location = TensorLocation {
                stack: Some(StackedExpert { index, count: 2 }),
                rows,
                transposed,
                ..TensorLocation::from("t".to_owned())
            };
            let cols = shape.get(1).copied().unwrap_or(1);
            let slice = Slice { location, shape: shape.to_vec(), rows: 0..shape[0], cols: 0..cols, role: Role::Matrix };
            let all: usize = slice.stored_shape().iter().product();
            (slice.cut(&tensor[..all], 1, 1).into_owned(), slice)
        };
        let (bytes, slice) = cut(1, FusedShard::ALL, false, &[2, 3]);
        assert_eq!(bytes, [6, 7, 8, 9, 10, 11]);
        assert!(slice.fits(&[2, 2, 3]) && slice.fits(&[4, 3]) && !slice.fits(&[2, 3]) && !slice.fits(&[2, 3, 2]));
        // [2][in = 3][out = 4], gate and up column by column.
        assert_eq!(cut(0, gate, true, &[2, 3]).0, [0, 4, 8, 2, 6, 10]);
        assert_eq!(cut(1, up, true, &[2, 3]).0, [13, 17, 21, 15, 19, 23]);
        let (bytes, slice) = cut(1, up, false, &[3]);
        assert_eq!(bytes, [7, 9, 11]);
        assert!(slice.fits(&[2, 6]) && slice.fits(&[12]) && !slice.fits(&[6]));
    }

    #[test]
    fn blocks_are_cut_out_whole() {
        let slice = |transposed, cols| {
            let location = TensorLocation { transposed, ..TensorLocation::from("t".to_owned()) };
            Slice { location, shape: vec![2, 8], rows: 1..2, cols, role: Role::Matrix }
        };
        let blocks = slice(false, 4..8).in_blocks(4).unwrap();
        assert_eq!(blocks.cut(&[0, 1, 2, 3], 1, 1), [3].as_slice());
        assert_eq!(slice(false, 2..6).in_blocks(4), None);
        assert_eq!(slice(true, 4..8).in_blocks(4), None);
    }

    #[test]
    fn what_lies_the_other_way_round_is_turned() {
        let location = TensorLocation { transposed: true, ..TensorLocation::from("t".to_owned()) };
        let slice = Slice { location, shape: vec![2, 3], rows: 0..2, cols: 1..3, role: Role::Matrix };
        let upright = slice.upright();
        assert_eq!((upright.stored_shape(), &upright.rows, &upright.cols), (vec![3, 2], &(1..3), &(0..2)));
        assert_eq!(slice.stored_shape(), upright.stored_shape());
        let bytes: Vec<u8> = (1..=4_u32).flat_map(u32::to_le_bytes).collect();
        let turned: Vec<u8> = [1, 3, 2, 4_u32].into_iter().flat_map(u32::to_le_bytes).collect();
        assert_eq!(upright.turned(&bytes), turned);
    }

    #[test]
    fn vectors_may_be_folded() {
        let location = TensorLocation::from("t".to_owned());
        let slice = Slice { location, shape: vec![6], rows: 0..6, cols: 0..1, role: Role::Scale };
        assert!(slice.fits(&[6]) && slice.fits(&[2, 3]) && !slice.fits(&[2, 2]));
    }

    #[test]
    fn pieces_in_one_place_are_borrowed() {
        let [q, k, v] = FusedShard::split([4, 2, 2]);
        for (rows, len) in [(q, 4), (k, 2), (v, 2), (FusedShard::ALL, 8)] {
            let location = TensorLocation { rows, ..TensorLocation::from("t".to_owned()) };
            let slice = Slice { location, shape: vec![len, 1], rows: 0..len, cols: 0..1, role: Role::Matrix };
            assert!(matches!(slice.cut(&[0; 8], 1, 1), Cow::Borrowed(_)), "{slice:?}");
        }
    }
}
