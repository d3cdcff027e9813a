//! Weight matrices in panels of sixteen output columns, so that a row of a panel is one or two vectors.
//!
//! ```text
//! f32, f16     panel: [k][16]          element (n, k) at  (n / 16, k, n % 16)
//! bf16, e4m3   panel: [k / 2][16][2]   element (n, k) at  (n / 16, k / 2, n % 16, k % 2)    16 pairs: a 1 KB tile
//! ```
//! Integer codes are in `integers.rs`. Columns past the last row of the source, and k past its width, are zero.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use crate::cpu::gemm::integers::{Integers, Kept};
use crate::cpu::gemm::scales::Scales;
use crate::cpu::runtime::memory::{Region, Shared};
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::Element;
use crate::decode::IntegerFormat;
use crate::ops::{DType, HostMatrix, InputRounding, StackedShape, WeightFormat};

/// Output columns a panel.
pub(crate) const PANEL: usize = 16;
/// k of a bf16 tile; panels are padded to it.
pub(crate) const TILE_K: usize = 32;
/// k of a tile of integer codes of 8 bits; their panels are padded to it.
const CODES_K: usize = 64;
/// Source columns packed at a time: their panel part stays in the first-level cache.
const STRIP: usize = 64;

/// A packed matrix. Clones share its memory.
#[derive(Clone)]
pub(crate) struct Packed {
    pub(crate) format: WeightFormat,
    /// Output features.
    pub(crate) n: usize,
    /// Input features.
    pub(crate) k: usize,
    /// `k` with padding.
    pub(crate) k_padded: usize,
    /// Whether activations may be rounded to bf16.
    pub(crate) rounds: bool,
    /// How rows that it multiplies are rounded first.
    pub(crate) input: InputRounding,
    /// What its codes are multiplied by, where it is stored so.
    scales: Option<Arc<Scales>>,
    /// What belongs to its codes, where they are integers.
    integers: Option<Arc<Integers>>,
    /// Which column of a row each k multiplies; empty where they are in order.
    columns: Arc<[u32]>,
    region: Arc<Region>,
}

impl Packed {
    /// Packs a matrix, given in pieces that lie below each other, with all threads.
    pub(crate) fn new(pieces: &[HostMatrix<'_>], compute: DType, pool: &mut Pool) -> Self {
        let StackedShape { format, rows: n, cols: k } = HostMatrix::stacked(pieces);
        if let Some(integers) = IntegerFormat::of(format) {
            return Self::of_integers(pieces, integers, compute, pool);
        }
        let input = format.input();
        let k_padded = k.next_multiple_of(if format == WeightFormat::Plain(DType::Bf16) { TILE_K } else { 2 });
        let (panels, element) = (n.div_ceil(PANEL), format.row_bytes(1));
        let region = Region::new(panels * PANEL * k_padded * element);
        let target = Shared::new(region.ptr());
        pool.run(panels, &|panel, _| {
            let part = &*rows(pieces, panel * PANEL..n.min((panel + 1) * PANEL));
            let size = PANEL * k_padded * element;
            // SAFETY: each task writes its own panel, which lies inside the region; the region is zeroed and
            // page-aligned.
            let panel = unsafe { std::slice::from_raw_parts_mut(target.at(panel * size), size) };
            match format {
                WeightFormat::Plain(DType::F32) => transpose::<4>(part, k * 4, panel),
                WeightFormat::Plain(DType::F16) => transpose::<2>(part, k * 2, panel),
                WeightFormat::Plain(DType::Bf16) => transpose_pairs::<2, 4>(part, k, panel),
                WeightFormat::ScaledE4m3 { .. } => transpose_pairs::<1, 2>(part, k, panel),
                WeightFormat::Grouped(_) | WeightFormat::Blocks(_) => {
                    unreachable!("packed as integers, or decoded before")
                }
            }
        });
        let scales = Scales::of(pieces).map(Arc::new);
        let (rounds, columns) = (compute == DType::Bf16, Arc::from([]));
        Self { format, n, k, k_padded, rounds, input, scales, integers: None, columns, region: Arc::new(region) }
    }

    /// The same of integer codes.
    fn of_integers(pieces: &[HostMatrix<'_>], codes: IntegerFormat, compute: DType, pool: &mut Pool) -> Self {
        let StackedShape { format, rows: n, cols: k } = HostMatrix::stacked(pieces);
        let (k_padded, input, rounds) = (k.next_multiple_of(CODES_K), format.input(), compute == DType::Bf16);
        // Inputs that are rounded as the checkpoint says are not rounded again.
        let rounds_again = rounds && input == InputRounding::None;
        let bytes = n.div_ceil(PANEL) * PANEL * Kept::of(codes, rounds_again).stored().row_bytes(k_padded);
        let region = Region::new(bytes);
        // SAFETY: the region is zeroed and this long at least; no other thread has it yet.
        let panels = unsafe { std::slice::from_raw_parts_mut(region.ptr(), bytes) };
        let integers = Integers::pack(pieces, codes, rounds_again, panels, pool);
        let (integers, columns) = (Some(Arc::new(integers)), Arc::from(pieces[0].columns()));
        Self { format, n, k, k_padded, rounds, input, scales: None, integers, columns, region: Arc::new(region) }
    }

    /// Bytes that it takes.
    pub(crate) fn bytes(&self) -> usize {
        let scales = self.scales.as_ref().map_or(0, |scales| scales.bytes());
        let integers = self.integers.as_ref().map_or(0, |integers| integers.bytes());
        self.region.len() + scales + integers + size_of_val(&*self.columns)
    }

    /// What belongs to its codes, where they are integers.
    pub(crate) fn integers(&self) -> Option<&Integers> {
        self.integers.as_deref()
    }

    /// Which column of a row each k multiplies; empty where they are in order.
    pub(crate) fn columns(&self) -> &[u32] {
        &self.columns
    }

    /// The weights of an output column of integer codes.
    pub(crate) fn integer_row(&self, row: usize) -> impl Iterator<Item = f32> {
        // SAFETY: a panel lies inside the region, which was filled.
        let panel = unsafe { std::slice::from_raw_parts(self.panel(row / PANEL), self.panel_bytes()) };
        self.integers.iter().flat_map(move |integers| integers.row(panel, row, self.k))
    }

    /// The elements of an output column, which is a row of the source; their type is the matrix's.
    pub(crate) fn row<E: Element>(&self, row: usize) -> impl Iterator<Item = E::Bits> {
        assert!(row < self.n && size_of::<E::Bits>() == self.element_bytes() && self.scales.is_none());
        let pair = if self.format == WeightFormat::Plain(DType::Bf16) { 2 } else { 1 };
        // SAFETY: a panel lies inside the region, which is page-aligned and was filled with elements of this size.
        let panel: &[E::Bits] =
            unsafe { std::slice::from_raw_parts(self.panel(row / PANEL).cast(), PANEL * self.k_padded) };
        (0..self.k).map(move |col| panel[(col / pair * PANEL + row % PANEL) * pair + col % pair])
    }

    /// What its codes are multiplied by.
    pub(crate) fn scales(&self) -> Option<&Scales> {
        self.scales.as_deref()
    }

    /// Panels, the last one perhaps padded.
    pub(crate) fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// First byte of a panel.
    pub(crate) fn panel(&self, panel: usize) -> *const u8 {
        assert!(panel < self.panels());
        // SAFETY: the panel was checked to be inside the region.
        unsafe { self.region.ptr().add(panel * self.panel_bytes()) }
    }

    /// Bytes from one panel to the next.
    pub(crate) fn panel_bytes(&self) -> usize {
        match &self.integers {
            Some(integers) => PANEL * integers.kept.stored().row_bytes(self.k_padded),
            None => PANEL * self.k_padded * self.element_bytes(),
        }
    }

    fn element_bytes(&self) -> usize {
        self.format.row_bytes(1)
    }
}

/// Rows of a matrix in pieces: as they lie, where they lie in one.
fn rows<'a>(pieces: &[HostMatrix<'a>], rows: Range<usize>) -> Cow<'a, [u8]> {
    let (mut first, mut bytes) = (0, Cow::Borrowed(&[][..]));
    for piece in pieces {
        let row_bytes = piece.format().row_bytes(piece.cols);
        let [start, end] = [rows.start, rows.end].map(|row| row.saturating_sub(first).min(piece.rows) * row_bytes);
        match &piece.bytes()[start..end] {
            [] => {}
            part if bytes.is_empty() => bytes = Cow::Borrowed(part),
            part => bytes.to_mut().extend_from_slice(part),
        }
        first += piece.rows;
    }
    bytes
}

/// `panel[unit][row] = rows[row][unit]` for units of `U` bytes; `source` holds at most sixteen rows of `row_bytes`.
fn transpose<const U: usize>(source: &[u8], row_bytes: usize, panel: &mut [u8]) {
    let (target, _) = panel.as_chunks_mut::<U>();
    for start in (0..row_bytes / U).step_by(STRIP) {
        for (row, bytes) in source.chunks_exact(row_bytes).enumerate() {
            let (units, _) = bytes.as_chunks::<U>();
            let strip = &units[start..units.len().min(start + STRIP)];
            let column = target[start * PANEL..].iter_mut().skip(row).step_by(PANEL);
            column.zip(strip).for_each(|(to, from)| *to = *from);
        }
    }
}

/// The same with two elements of `E` bytes as a unit of `U`; an odd last element is paired with zero.
fn transpose_pairs<const E: usize, const U: usize>(source: &[u8], k: usize, panel: &mut [u8]) {
    transpose::<U>(source, k * E, panel);
    if !k.is_multiple_of(2) {
        for (row, bytes) in source.chunks_exact(k * E).enumerate() {
            let at = (k / 2 * PANEL + row) * U;
            panel[at..at + E].copy_from_slice(&bytes[(k - 1) * E..]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::{Encoding, ScaledCodes};

    /// Absent: codes.
    fn check(dtype: Option<DType>, n: usize, k: usize) {
        let size = dtype.map_or(1, DType::size);
        let bytes: Vec<u8> = (0..n * k * size).map(|i| (i * 37 + i / 251) as u8).collect();
        // The second piece begins and ends inside a panel.
        let (third, second) = (n - n / 3, n / 5);
        let unscaled = vec![0; n];
        let piece = |rows: Range<usize>| {
            let bytes = &bytes[rows.start * k * size..rows.end * k * size];
            match dtype {
                None => {
                    let (scale_rows, input) = (&unscaled[rows.clone()], InputRounding::None);
                    let codes = ScaledCodes { codes: bytes, scales: &[1.0], scale_rows, scale_cols: k, input };
                    HostMatrix { rows: rows.len(), cols: k, encoding: Encoding::Scaled(codes) }
                }
                Some(dtype) => HostMatrix::plain(dtype, rows.len(), k, bytes),
            }
        };
        let pieces = [piece(0..second), piece(second..third), piece(third..n)];
        let packed = Packed::new(&pieces, DType::F32, &mut Pool::new(2));
        let pair = if matches!(dtype, Some(DType::Bf16) | None) { 2 } else { 1 };
        for row in 0..packed.panels() * PANEL {
            for col in 0..packed.k_padded {
                let at = ((col / pair * PANEL + row % PANEL) * pair + col % pair) * size;
                // SAFETY: `at` is an element of the panel.
                let got = unsafe { std::slice::from_raw_parts(packed.panel(row / PANEL).add(at), size) };
                let zero = [0; 4];
                let inside = row < n && col < k;
                let want = if inside { &bytes[(row * k + col) * size..][..size] } else { &zero[..size] };
                assert_eq!(got, want, "{dtype:?} {n} x {k} at ({row}, {col})");
            }
        }
    }

    #[test]
    fn every_element_has_its_place() {
        for dtype in [Some(DType::F32), Some(DType::Bf16), Some(DType::F16), None] {
            for (n, k) in [(1, 1), (16, 32), (17, 31), (33, 200), (96, 48)] {
                check(dtype, n, k);
            }
        }
    }
}
