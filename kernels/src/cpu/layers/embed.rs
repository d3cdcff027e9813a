//! Lookup of tokens and of learned positions: rows of a table, made f32.

use crate::cpu::gemm::pack::Packed;
use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::memory::Region;
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::{Bf16, Element, F16, F32};
use crate::ops::{DType, HostMatrix, StackedShape, WeightFormat};

/// A lookup table.
pub(crate) struct Lookup {
    dtype: DType,
    entries: usize,
    pub(crate) width: usize,
    rows: Rows,
}

/// Where a table's rows are.
enum Rows {
    /// One after the other, as they came.
    Own(Region),
    /// In a matrix that is multiplied with too.
    Packed(Packed),
}

impl Lookup {
    pub(crate) fn new(source: HostMatrix<'_>) -> Self {
        let StackedShape { format, rows: entries, cols: width } = HostMatrix::stacked(&[source]);
        let WeightFormat::Plain(dtype) = format else { panic!("a lookup table of {format:?}") };
        let (bytes, region) = (source.bytes(), Region::new(source.bytes().len()));
        // SAFETY: the region was made this long, and is not the source.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.ptr(), bytes.len()) };
        Self { dtype, entries, width, rows: Rows::Own(region) }
    }

    /// The rows of a matrix.
    pub(crate) fn of(matrix: &Packed) -> Self {
        let dtype = match matrix.format {
            WeightFormat::Plain(dtype) => dtype,
            _ if matrix.integers().is_some() => DType::F32,
            format => panic!("a lookup table of {format:?}"),
        };
        Self { dtype, entries: matrix.n, width: matrix.k, rows: Rows::Packed(matrix.clone()) }
    }

    /// `out` = an entry's row times `scale`; zeros where there is no entry.
    pub(crate) fn look_up(&self, entry: Option<usize>, scale: f32, out: &mut [f32]) {
        match entry {
            None => out.fill(0.0),
            Some(entry) => self.visit(entry, out, |out, x| *out = x * scale),
        }
    }

    /// Tells `take` each element of `out` and what the table has in its place.
    fn each<E: Element>(&self, entry: usize, out: &mut [f32], take: impl Fn(&mut f32, f32)) {
        assert!(entry < self.entries);
        match &self.rows {
            Rows::Own(region) => {
                let first = entry * self.width;
                // SAFETY: the row is inside the region, which is page-aligned and was filled with elements of this
                // type.
                let row = unsafe { std::slice::from_raw_parts(region.ptr().cast::<E::Bits>().add(first), self.width) };
                out.iter_mut().zip(row).for_each(|(out, &bits)| take(out, E::decode(bits)));
            }
            Rows::Packed(matrix) if matrix.integers().is_some() => {
                out.iter_mut().zip(matrix.integer_row(entry)).for_each(|(out, x)| take(out, x));
            }
            Rows::Packed(matrix) => {
                out.iter_mut().zip(matrix.row::<E>(entry)).for_each(|(out, bits)| take(out, E::decode(bits)));
            }
        }
    }

    /// The same, whatever the elements' type.
    fn visit(&self, entry: usize, out: &mut [f32], take: impl Fn(&mut f32, f32)) {
        match self.dtype {
            DType::F32 => self.each::<F32>(entry, out, take),
            DType::Bf16 => self.each::<Bf16>(entry, out, take),
            DType::F16 => self.each::<F16>(entry, out, take),
        }
    }
}

/// `out[row] = table[tokens[row] - first_entry] * scale`, zero outside the table.
pub(crate) fn embed(pool: &mut Pool, table: &Lookup, tokens: &[u32], first_entry: u32, scale: f32, out: View) {
    out.for_each_row(pool, 1, &|row| {
        // SAFETY: each row is one task's.
        let out = unsafe { out.row_mut(row) };
        let entry = tokens[row].checked_sub(first_entry).map(|entry| entry as usize);
        table.look_up(entry.filter(|&entry| entry < table.entries), scale, out);
    });
}

/// `x[row] += table[positions[row] + offset]`.
pub(crate) fn add_positions(pool: &mut Pool, table: &Lookup, positions: &[u32], offset: usize, x: View) {
    assert_eq!((x.rows, x.width), (positions.len(), table.width), "rows that learned positions are added to");
    x.for_each_row(pool, 1, &|row| {
        let entry = positions[row] as usize + offset;
        // SAFETY: each row is one task's.
        let x = unsafe { x.row_mut(row) };
        table.visit(entry, x, |x, y| *x += y);
    });
}
