//! Lookup of tokens and of learned positions: rows of a table, made f32.

use super::acts::View;
use super::memory::Region;
use super::pool::Pool;
use super::simd::{Bf16, Element, F16, F32};
use crate::ops::{DType, HostMatrix};

/// A lookup table, stored as it came.
pub(crate) struct Lookup {
    dtype: DType,
    entries: usize,
    pub(crate) width: usize,
    region: Region,
}

impl Lookup {
    pub(crate) fn new(source: HostMatrix<'_>) -> Self {
        let HostMatrix { dtype, rows: entries, cols: width, bytes } = source;
        let wanted = entries.checked_mul(width).and_then(|count| count.checked_mul(dtype.size()));
        assert_eq!(Some(bytes.len()), wanted, "bytes of a table of {entries} x {width} {dtype:?}");
        let region = Region::new(bytes.len());
        // SAFETY: the region was made this long, and is not the source.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), region.ptr(), bytes.len()) };
        Self { dtype, entries, width, region }
    }

    fn row<E: Element>(&self, entry: usize) -> &[E::Bits] {
        assert!(entry < self.entries);
        // SAFETY: the row is inside the region, which is page-aligned and was filled with elements of this type.
        unsafe { std::slice::from_raw_parts(self.region.ptr().cast::<E::Bits>().add(entry * self.width), self.width) }
    }

    fn write<E: Element>(&self, entry: usize, scale: f32, out: &mut [f32]) {
        out.iter_mut().zip(self.row::<E>(entry)).for_each(|(out, &bits)| *out = E::decode(bits) * scale);
    }

    fn add<E: Element>(&self, entry: usize, x: &mut [f32]) {
        x.iter_mut().zip(self.row::<E>(entry)).for_each(|(x, &bits)| *x += E::decode(bits));
    }
}

/// `out[row] = table[tokens[row] - first_entry] * scale`, zero outside the table.
pub(crate) fn embed(pool: &mut Pool, table: &Lookup, tokens: &[u32], first_entry: u32, scale: f32, out: View) {
    out.for_each_row(pool, 1, &|row| {
        // SAFETY: each row is one task's.
        let out = unsafe { out.row_mut(row) };
        match tokens[row].checked_sub(first_entry).map(|entry| entry as usize).filter(|&entry| entry < table.entries) {
            None => out.fill(0.0),
            Some(entry) => match table.dtype {
                DType::F32 => table.write::<F32>(entry, scale, out),
                DType::Bf16 => table.write::<Bf16>(entry, scale, out),
                DType::F16 => table.write::<F16>(entry, scale, out),
                DType::E4m3 => unreachable!("only caches have 8-bit floats"),
            },
        }
    });
}

/// `x[row] += table[positions[row] + offset]`.
pub(crate) fn add_positions(pool: &mut Pool, table: &Lookup, positions: &[u32], offset: usize, x: View) {
    assert_eq!((x.rows, x.width), (positions.len(), table.width), "rows that learned positions are added to");
    x.for_each_row(pool, 1, &|row| {
        let entry = positions[row] as usize + offset;
        // SAFETY: each row is one task's.
        let x = unsafe { x.row_mut(row) };
        match table.dtype {
            DType::F32 => table.add::<F32>(entry, x),
            DType::Bf16 => table.add::<Bf16>(entry, x),
            DType::F16 => table.add::<F16>(entry, x),
            DType::E4m3 => unreachable!("only caches have 8-bit floats"),
        }
    });
}
