//! Rows turned into columns.

use crate::cpu::runtime::isa::Isa;

/// Rows at a time, at most.
pub(crate) const MOST_ROWS: usize = 16;

/// `to[column * stride + row] = x[row][column]`, for up to [`MOST_ROWS`] rows of one length; other elements stay.
///
/// # Safety
/// These elements of `to` are writable, and nobody else uses them meanwhile.
pub(crate) unsafe fn transpose(isa: Isa, x: &[&[f32]], to: *mut f32, stride: usize) {
    let columns = x.first().map_or(0, |row| row.len());
    assert!(x.len() <= MOST_ROWS.min(stride) && x.iter().all(|row| row.len() == columns), "rows to transpose");
    let done = match isa {
        // SAFETY: AVX-512 was detected; the rest was checked, or is the caller's promise.
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512 => unsafe {
            match x.len().div_ceil(4) {
                1 => x86::whole_vectors::<1>(x, to, stride),
                2 => x86::whole_vectors::<2>(x, to, stride),
                3 => x86::whole_vectors::<3>(x, to, stride),
                _ => x86::whole_vectors::<4>(x, to, stride),
            }
        },
        _ => 0,
    };
    for column in done..columns {
        for (row, x) in x.iter().enumerate() {
            // SAFETY: the caller's promise.
            unsafe { *to.add(column * stride + row) = x[column] };
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(clippy::needless_range_loop, reason = "indices of register arrays are unrolled; iterators hide the shape")]
mod x86 {
    use std::arch::x86_64::*;

    /// The columns that come in whole vectors, of up to four times `FOURS` rows; returns how many they are.
    ///
    /// # Safety
    /// AVX-512 is there, all rows are as long as the first, and `to` has room for their numbers.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn whole_vectors<const FOURS: usize>(x: &[&[f32]], to: *mut f32, stride: usize) -> usize {
        let columns = x.first().map_or(0, |row| row.len()) / 16 * 16;
        let mask = ((1_u32 << x.len()) - 1) as u16;
        for k in (0..columns).step_by(16) {
            let mut a = [_mm512_setzero_ps(); 16];
            for (a, row) in a.iter_mut().take(4 * FOURS).zip(x) {
                // SAFETY: sixteen columns are left in the row.
                *a = unsafe { _mm512_loadu_ps(row.as_ptr().add(k)) };
            }
            for (column, numbers) in columns_of::<FOURS>(a).iter().enumerate() {
                // SAFETY: the mask keeps the write inside the column's place.
                unsafe { _mm512_mask_storeu_ps(to.add((k + column) * stride), mask, *numbers) };
            }
        }
        columns
    }

    /// Columns of sixteen by sixteen numbers, of which only the first `4 * FOURS` rows are not zero.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn columns_of<const FOURS: usize>(mut a: [__m512; 16]) -> [__m512; 16] {
        // Pairs of rows, then fours, inside lanes of four columns; then lanes change places.
        let mut b = [_mm512_setzero_ps(); 16];
        for i in 0..2 * FOURS {
            b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
        }
        for i in 0..FOURS {
            for half in 0..2 {
                let (one, two) = (_mm512_castps_pd(b[4 * i + half]), _mm512_castps_pd(b[4 * i + 2 + half]));
                a[4 * i + 2 * half] = _mm512_castpd_ps(_mm512_unpacklo_pd(one, two));
                a[4 * i + 2 * half + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(one, two));
            }
        }
        // a[4 i + c] has rows 4 i .. 4 i + 4 of columns c, c + 4, c + 8 and c + 12.
        for c in 0..4 {
            let first = [
                _mm512_shuffle_f32x4::<0x44>(a[c], a[4 + c]),
                _mm512_shuffle_f32x4::<0xee>(a[c], a[4 + c]),
                _mm512_shuffle_f32x4::<0x44>(a[8 + c], a[12 + c]),
                _mm512_shuffle_f32x4::<0xee>(a[8 + c], a[12 + c]),
            ];
            b[c] = _mm512_shuffle_f32x4::<0x88>(first[0], first[2]);
            b[4 + c] = _mm512_shuffle_f32x4::<0xdd>(first[0], first[2]);
            b[8 + c] = _mm512_shuffle_f32x4::<0x88>(first[1], first[3]);
            b[12 + c] = _mm512_shuffle_f32x4::<0xdd>(first[1], first[3]);
        }
        b
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns_and_nothing_else_changes() {
        for isa in Isa::available() {
            for (rows, stride) in [(1, 1), (2, 5), (4, 4), (7, 16), (8, 8), (11, 12), (12, 16), (13, 16), (16, 16)] {
                for width in [1, 16, 33, 64] {
                    let numbers: Vec<f32> = (0..rows * width).map(|number| number as f32).collect();
                    let x: Vec<&[f32]> = numbers.chunks(width).collect();
                    let mut to = vec![-1.0; width * stride];
                    // SAFETY: there is room for `width` columns.
                    unsafe { transpose(isa, &x, to.as_mut_ptr(), stride) };
                    for (at, got) in to.iter().enumerate() {
                        let (column, row) = (at / stride, at % stride);
                        let expected = if row < rows { x[row][column] } else { -1.0 };
                        assert_eq!(*got, expected, "{isa:?}: {rows} rows of {width} at {stride}, {column}, {row}");
                    }
                }
            }
        }
    }
}
