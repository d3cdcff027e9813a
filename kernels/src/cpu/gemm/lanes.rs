//! Products in f32 lanes, for every weight type and every instruction set: weights become f32 in registers, activations
//! stay f32.
//!
//! A tile of `R` rows times `C` vectors stays in registers over all of k. One row streams many panels at once (bound by
//! memory); many rows reuse each weight vector `R` times (bound by arithmetic). Activations are packed `[row
//! block][k][R]`, so that a tile reads them in sequence, and taken in super-blocks that stay in the second-level cache
//! while panels stream past.

#![allow(clippy::needless_range_loop, reason = "indices of register arrays are unrolled; iterators hide the shape")]

use super::integers::{Arithmetic, Integers};
use super::needs::Needs;
use super::product::{Product, Tile};
use crate::cpu::gemm::pack::PANEL;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::simd::{Element, F16, F32, Kernel, Simd, vectorize};
use crate::ops::{CodeBits, DType, WeightFormat};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Rows of a super-block, at most.
const SUPER_BLOCK_ROWS: usize = 120;
/// k after which sums rest in memory: a super-block's activations up to there, and two panels, fit the second-level
/// cache.
const DEPTH: usize = 2048;
/// Sums of a task, at most: a super-block of rows times two panels, or a few rows times eight.
const TASK_SUMS: usize = SUPER_BLOCK_ROWS * 2 * PANEL;

/// Rows of a tile, at most.
const MOST_ROWS: usize = 12;

/// How rows are cut into register tiles.
#[derive(Clone, Copy)]
struct Cut {
    /// Rows of a tile.
    rows: usize,
    /// Row blocks in all.
    blocks: usize,
    /// Row blocks of a super-block.
    super_blocks: usize,
    /// Panels of a tile.
    panels: usize,
}

impl Cut {
    fn new(isa: Isa, rows: usize) -> Self {
        let sizes: &[(usize, usize)] = match isa {
            Isa::Amx | Isa::Avx512 => &[(1, 8), (2, 8), (4, 4), (6, 4), (8, 2), (12, 2)],
            Isa::Avx2 => &[(1, 4), (2, 2), (4, 1), (6, 1)],
            Isa::Portable => &[(1, 2), (2, 1), (4, 1)],
        };
        // The least padding, and among equals the largest tile.
        let fits = |&&(tile, _): &&(usize, usize)| (rows.div_ceil(tile) * tile, usize::MAX - tile);
        let &(tile, panels) = sizes
            .iter()
            .filter(|size| size.0 >= rows.min(sizes[sizes.len() - 2].0))
            .min_by_key(fits)
            .expect("a size fits");
        let blocks = rows.div_ceil(tile);
        let most = (TASK_SUMS / (tile * panels * PANEL)).min(SUPER_BLOCK_ROWS / tile);
        // Super-blocks of equal size.
        let super_blocks = blocks.div_ceil(blocks.div_ceil(most));
        Self { rows: tile, blocks, super_blocks, panels }
    }
}

/// A product, cut.
pub(super) struct Job<'a> {
    isa: Isa,
    product: Product<'a>,
    cut: Cut,
    /// k, made even.
    k: usize,
    /// Groups of panels.
    groups: usize,
}

impl<'a> Job<'a> {
    pub(super) fn new(isa: Isa, product: Product<'a>) -> Self {
        let cut = Cut::new(isa, product.rows);
        let (k, groups) = (product.w.k.next_multiple_of(2), product.w.panels().div_ceil(cut.panels));
        Self { isa, product, cut, k, groups }
    }

    pub(super) fn needs(&self) -> Needs {
        let Self { cut, k, product: Product { rows, w, .. }, .. } = *self;
        Needs {
            packed: cut.blocks * cut.rows * k * size_of::<f32>(),
            sums: 0,
            pack_tasks: cut.blocks,
            pack_work: rows * k,
            tasks: cut.blocks.div_ceil(cut.super_blocks) * self.groups,
            work: rows * k * w.n / 8,
        }
    }

    /// Packs a row block.
    ///
    /// # Safety
    /// As [`super::job::Job::pack`].
    pub(super) unsafe fn pack(&self, block: usize, packed: Shared<u8>) {
        let first = block * self.cut.rows;
        let count = self.cut.rows.min(self.product.rows - first);
        // SAFETY: rows `first .. first + count` of x exist; each task writes its own block of the packed memory.
        unsafe {
            let at = packed.at(first * self.k * size_of::<f32>()).cast::<f32>();
            let block = std::slice::from_raw_parts_mut(at, self.cut.rows * self.k);
            let mut rows = [&[][..]; MOST_ROWS];
            (rows.iter_mut().enumerate().take(count)).for_each(|(row, x)| *x = self.product.row(first + row));
            pack_block(self.isa, &rows[..count], self.cut.rows, block);
        }
    }

    /// Computes a strip.
    ///
    /// # Safety
    /// As [`super::job::Job::run`].
    pub(super) unsafe fn run(&self, task: usize, packed: Shared<u8>) {
        let Self { isa, cut, k, groups, ref product } = *self;
        let first_block = task / groups * cut.super_blocks;
        let first_panel = task % groups * cut.panels;
        // SAFETY: the packed memory begins here.
        let x = Shared::new(unsafe { packed.at(0) }.cast::<f32>());
        let strip = Strip {
            blocks: first_block..cut.blocks.min(first_block + cut.super_blocks),
            panels: first_panel..product.w.panels().min(first_panel + cut.panels),
            cut,
            k,
            x,
            weights: product.w.panel(first_panel),
            panel_bytes: product.w.panel_bytes(),
            product,
        };
        match product.w.format {
            WeightFormat::Plain(DType::F32) => vectorize(isa, Typed::<Plain<F32>>(strip, Plain(F32))),
            WeightFormat::Plain(DType::F16) => vectorize(isa, Typed::<Plain<F16>>(strip, Plain(F16))),
            WeightFormat::Plain(DType::Bf16) => vectorize(isa, Typed::<Pairs>(strip, Pairs)),
            WeightFormat::ScaledE4m3 { .. } => vectorize(isa, Typed::<Codes>(strip, Codes)),
            WeightFormat::Grouped(_) | WeightFormat::Blocks(_) => {
                match product.w.integers().map_or(CodeBits::Eight, |integers| integers.bits) {
                    CodeBits::Four => vectorize(isa, Typed::<Halves>(strip, Halves)),
                    CodeBits::Eight => vectorize(isa, Typed::<Bytes>(strip, Bytes)),
                }
            }
        }
    }
}

/// `[k][rows]` from rows of x, zero where there is no row or column.
fn pack_block(isa: Isa, x: &[&[f32]], rows: usize, block: &mut [f32]) {
    let width = x.first().map_or(0, |row| row.len());
    if rows == 1 {
        block[..width].copy_from_slice(x[0]);
        block[width..].fill(0.0);
        return;
    }
    if x.len() < rows || block.len() > width * rows {
        block.fill(0.0);
    }
    let transposed = match isa {
        // SAFETY: AVX-512 was detected, the rows have `width` columns, and the block has as many of `rows` numbers.
        #[cfg(target_arch = "x86_64")]
        Isa::Amx | Isa::Avx512 => unsafe { transpose(x, rows, block) },
        _ => 0,
    };
    for (k, column) in block.chunks_exact_mut(rows).enumerate().take(width).skip(transposed) {
        for (to, row) in column.iter_mut().zip(x) {
            *to = row[k];
        }
    }
}

/// Transposes blocks of sixteen columns by up to sixteen rows; returns how many columns it has done.
///
/// # Safety
/// AVX-512 is there, all rows of x are as long as the first, and the block has room for `rows` numbers of each column.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
unsafe fn transpose(x: &[&[f32]], rows: usize, block: &mut [f32]) -> usize {
    use std::arch::x86_64::*;
    let columns = x[0].len() / 16 * 16;
    let mask = ((1_u32 << rows) - 1) as u16;
    for k in (0..columns).step_by(16) {
        let mut a = [_mm512_setzero_ps(); 16];
        for (a, row) in a.iter_mut().zip(x) {
            // SAFETY: sixteen columns are left in the row.
            *a = unsafe { _mm512_loadu_ps(row.as_ptr().add(k)) };
        }
        // Pairs of rows, then fours, inside lanes of four columns; then lanes change places.
        let mut b = [_mm512_setzero_ps(); 16];
        for i in 0..8 {
            b[2 * i] = _mm512_unpacklo_ps(a[2 * i], a[2 * i + 1]);
            b[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i], a[2 * i + 1]);
        }
        for i in 0..4 {
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
        for (column, numbers) in b.iter().enumerate() {
            // SAFETY: the mask keeps the write inside the column's place.
            unsafe { _mm512_mask_storeu_ps(block.as_mut_ptr().add((k + column) * rows), mask, *numbers) };
        }
    }
    columns
}

/// A task: a super-block of rows times a group of panels.
struct Strip<'a> {
    blocks: Range<usize>,
    panels: Range<usize>,
    cut: Cut,
    k: usize,
    x: Shared<f32>,
    weights: *const u8,
    panel_bytes: usize,
    product: &'a Product<'a>,
}

/// How a weight panel is read, two k at a time.
trait Weights: Copy {
    /// Whether sums are multiplied by the scales of their weights.
    const SCALED: bool = false;
    /// Whether weights are made of integer codes and their group.
    const GROUPED: bool = false;
    /// Vectors `vector` of k pair `pair`.
    ///
    /// # Safety
    /// The pair is inside the panel, and `S::N * (vector + 1) <= 16`.
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize, vector: usize, group: Group<S>) -> (S, S);
}

/// How integer codes of a group become weights: `(code - before) * scale - after`.
#[derive(Clone, Copy)]
struct Group<S> {
    before: S,
    scale: S,
    after: S,
}

impl<S: Simd> Group<S> {
    /// Of codes that are not integers.
    #[inline(always)]
    fn none() -> Self {
        Self { before: S::splat(0.0), scale: S::splat(1.0), after: S::splat(0.0) }
    }

    #[inline(always)]
    fn weight(self, code: S) -> S {
        code.sub(self.before).mul(self.scale).sub(self.after)
    }
}

/// Integer codes of four bits.
#[derive(Clone, Copy)]
struct Halves;
/// Integer codes of eight bits.
#[derive(Clone, Copy)]
struct Bytes;

impl Weights for Halves {
    const GROUPED: bool = true;

    #[inline(always)]
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize, vector: usize, group: Group<S>) -> (S, S) {
        let (k, bits) = (pair * 2 % 8, |k: usize| (k % 4 * 8 + k / 4 * 4) as u32);
        // SAFETY: the caller's promise; panels are aligned.
        unsafe {
            let at = panel.cast::<u32>().add(pair / 4 * PANEL + vector * S::N);
            (group.weight(S::load_bits(at, bits(k), 15)), group.weight(S::load_bits(at, bits(k + 1), 15)))
        }
    }
}

impl Weights for Bytes {
    const GROUPED: bool = true;

    #[inline(always)]
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize, vector: usize, group: Group<S>) -> (S, S) {
        let shift = (pair % 2 * 16) as u32;
        // SAFETY: the caller's promise; panels are aligned.
        unsafe {
            let at = panel.cast::<u32>().add(pair / 2 * PANEL + vector * S::N);
            (group.weight(S::load_bits(at, shift, 255)), group.weight(S::load_bits(at, shift + 8, 255)))
        }
    }
}

/// `[k][16]`.
#[derive(Clone, Copy)]
struct Plain<E: Element>(#[allow(dead_code, reason = "names the element")] E);
/// `[k / 2][16][2]` of bf16.
#[derive(Clone, Copy)]
struct Pairs;

impl<E: Element> Weights for Plain<E> {
    #[inline(always)]
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize, vector: usize, _: Group<S>) -> (S, S) {
        // SAFETY: the caller's promise; panels are aligned.
        unsafe {
            let at = panel.cast::<E::Bits>().add(pair * 2 * PANEL + vector * S::N);
            (E::load(at), E::load(at.add(PANEL)))
        }
    }
}

impl Weights for Pairs {
    #[inline(always)]
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize, vector: usize, _: Group<S>) -> (S, S) {
        // SAFETY: the caller's promise.
        unsafe { S::load_bf16_pairs(panel.cast::<u16>().add((pair * PANEL + vector * S::N) * 2)) }
    }
}

/// `[k / 2][16][2]` of [`e4m3`](crate::e4m3) codes.
#[derive(Clone, Copy)]
struct Codes;

impl Weights for Codes {
    const SCALED: bool = true;

    #[inline(always)]
    unsafe fn pair<S: Simd>(panel: *const u8, pair: usize, vector: usize, _: Group<S>) -> (S, S) {
        // SAFETY: the caller's promise.
        unsafe { S::load_e4m3_pairs(panel.add((pair * PANEL + vector * S::N) * 2)) }
    }
}

/// A strip with its weight type.
struct Typed<'a, W: Weights>(Strip<'a>, #[allow(dead_code, reason = "names the type")] W);

impl<W: Weights> Kernel for Typed<'_, W> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let strip = self.0;
        let whole = strip.panels.len() == strip.cut.panels;
        let mut sums = Sums([MaybeUninit::uninit(); TASK_SUMS]);
        let mut start = 0;
        while start < strip.k {
            let depth = start..strip.depth_end::<W>(start);
            start = depth.end;
            for block in strip.blocks.clone() {
                if whole {
                    strip.block::<S, W>(block, 0, strip.cut.panels, depth.clone(), &mut sums);
                } else {
                    for panel in 0..strip.panels.len() {
                        strip.block::<S, W>(block, panel, 1, depth.clone(), &mut sums);
                    }
                }
            }
        }
        strip.write::<S>(&sums);
    }
}

/// How codes become weights at `k` of a panel's vector.
///
/// # Safety
/// The panel is the matrix's, and `S::N * (vector + 1) <= 16`.
#[inline(always)]
unsafe fn group<S: Simd>(integers: &Integers, panel: usize, k: usize, vector: usize) -> Group<S> {
    let Arithmetic::Exact { scales, before, after } = &integers.arithmetic else { return Group::none() };
    let at = integers.place(panel, k) + vector * S::N;
    // SAFETY: each of the three has sixteen numbers for every group of a panel.
    unsafe {
        let load = |values: &[f32]| S::load(values.as_ptr().add(at));
        Group { before: load(before), scale: load(scales), after: load(after) }
    }
}

/// `[row][panel][16]` of a task.
#[repr(align(64))]
struct Sums([MaybeUninit<f32>; TASK_SUMS]);

impl Strip<'_> {
    /// Where a part of k that begins at `start` ends: all of its weights share their columns' scales.
    #[inline(always)]
    fn depth_end<W: Weights>(&self, start: usize) -> usize {
        let scales = self.product.w.scales().filter(|_| W::SCALED);
        let groups = self.product.w.integers().filter(|_| W::GROUPED);
        let end = scales.map(|scales| scales.end(start)).or(groups.map(|groups| groups.end(start)));
        let end = end.unwrap_or(usize::MAX);
        end.min(start + DEPTH).min(self.k)
    }

    /// One row block times `panels` panels from `first` on.
    #[inline(always)]
    fn block<S: Simd, W: Weights>(
        &self,
        block: usize,
        first: usize,
        panels: usize,
        depth: Range<usize>,
        sums: &mut Sums,
    ) {
        if S::N == 16 {
            match (self.cut.rows, panels) {
                (1, 8) => self.tile::<S, W, 1, 8>(block, first, depth, sums),
                (1, _) => self.tile::<S, W, 1, 1>(block, first, depth, sums),
                (2, 8) => self.tile::<S, W, 2, 8>(block, first, depth, sums),
                (2, _) => self.tile::<S, W, 2, 1>(block, first, depth, sums),
                (4, 4) => self.tile::<S, W, 4, 4>(block, first, depth, sums),
                (4, _) => self.tile::<S, W, 4, 1>(block, first, depth, sums),
                (6, 4) => self.tile::<S, W, 6, 4>(block, first, depth, sums),
                (6, _) => self.tile::<S, W, 6, 1>(block, first, depth, sums),
                (8, 2) => self.tile::<S, W, 8, 2>(block, first, depth, sums),
                (8, _) => self.tile::<S, W, 8, 1>(block, first, depth, sums),
                (12, 2) => self.tile::<S, W, 12, 2>(block, first, depth, sums),
                (12, _) => self.tile::<S, W, 12, 1>(block, first, depth, sums),
                (rows, _) => unreachable!("no tile of {rows} rows"),
            }
        } else {
            match (self.cut.rows, panels) {
                (1, 4) => self.tile::<S, W, 1, 8>(block, first, depth, sums),
                (1, 2) => self.tile::<S, W, 1, 4>(block, first, depth, sums),
                (1, _) => self.tile::<S, W, 1, 2>(block, first, depth, sums),
                (2, 2) => self.tile::<S, W, 2, 4>(block, first, depth, sums),
                (2, _) => self.tile::<S, W, 2, 2>(block, first, depth, sums),
                (4, _) => self.tile::<S, W, 4, 2>(block, first, depth, sums),
                (6, _) => self.tile::<S, W, 6, 2>(block, first, depth, sums),
                (rows, _) => unreachable!("no tile of {rows} rows"),
            }
        }
    }

    /// `R` rows times `C` vectors, over some of k.
    #[inline(always)]
    fn tile<S: Simd, W: Weights, const R: usize, const C: usize>(
        &self,
        block: usize,
        first: usize,
        depth: Range<usize>,
        kept: &mut Sums,
    ) {
        let per_panel = PANEL / S::N;
        let width = self.cut.panels * PANEL;
        let mut sums = [[S::splat(0.0); C]; R];
        let index = block - self.blocks.start;
        let kept = kept.0[index * R * width + first * PANEL..][..(R - 1) * width + C * S::N].as_mut_ptr().cast::<f32>();
        // SAFETY: the block is one of the packed activations' and the panels are the matrix's; both have `k` (even)
        // entries. Kept sums were checked, and written before they are read; prefetches may point anywhere.
        unsafe {
            if depth.start > 0 && !W::SCALED {
                for r in 0..R {
                    for c in 0..C {
                        sums[r][c] = S::load(kept.add(r * width + c * S::N));
                    }
                }
            }
            let mut groups = [Group::none(); C];
            if let Some(integers) = self.product.w.integers().filter(|_| W::GROUPED) {
                for c in 0..C {
                    groups[c] = group(integers, self.panels.start + first + c / per_panel, depth.start, c % per_panel);
                }
            }
            let x = self.x.at(block * R * self.k).cast_const();
            let weights = self.weights.add(first * self.panel_bytes);
            // The next task's panels, a line a step: with many rows, their arrival hides behind arithmetic.
            let next = self
                .weights
                .wrapping_add(self.cut.panels * self.panel_bytes + (depth.start + index * depth.len()) / 2 * 64);
            for pair in depth.start / 2..depth.end / 2 {
                if R >= 8 {
                    S::prefetch(next.wrapping_add((pair - depth.start / 2) * 64));
                }
                let x = x.add(pair * 2 * R);
                let mut second = [S::splat(0.0); C];
                let mut w = [S::splat(0.0); C];
                for c in 0..C {
                    (w[c], second[c]) =
                        W::pair(weights.add(c / per_panel * self.panel_bytes), pair, c % per_panel, groups[c]);
                }
                for r in 0..R {
                    let x = S::splat(*x.add(r));
                    for c in 0..C {
                        sums[r][c] = x.fma(w[c], sums[r][c]);
                    }
                }
                for r in 0..R {
                    let x = S::splat(*x.add(R + r));
                    for c in 0..C {
                        sums[r][c] = x.fma(second[c], sums[r][c]);
                    }
                }
            }
            if let Some(scales) = self.product.w.scales().filter(|_| W::SCALED) {
                for c in 0..C {
                    let of_panel = scales.panel(self.panels.start + first + c / per_panel, depth.start);
                    let scale = S::load(of_panel.as_ptr().add(c % per_panel * S::N));
                    for r in 0..R {
                        let kept = kept.add(r * width + c * S::N);
                        let before = if depth.start > 0 { S::load(kept) } else { S::splat(0.0) };
                        sums[r][c] = sums[r][c].fma(scale, before);
                    }
                }
            }
            for r in 0..R {
                for c in 0..C {
                    sums[r][c].store(kept.add(r * width + c * S::N));
                }
            }
        }
    }

    /// Hands the finished sums over.
    #[inline(always)]
    fn write<S: Simd>(&self, sums: &Sums) {
        let width = self.cut.panels * PANEL;
        let row = self.blocks.start * self.cut.rows;
        let rows = self.blocks.len() * self.cut.rows;
        // SAFETY: every tile wrote its sums; the last columns of a row may be missing, and only they.
        let sums = unsafe {
            std::slice::from_raw_parts(sums.0.as_ptr().cast::<f32>(), (rows - 1) * width + self.panels.len() * PANEL)
        };
        let tile = Tile {
            sums,
            stride: width,
            row,
            col: self.panels.start * PANEL,
            rows: rows.min(self.product.rows - row),
            cols: self.panels.len() * PANEL,
        };
        // SAFETY: each strip writes its own rows and columns.
        unsafe { self.product.write::<S>(&tile) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_rows_transposed() {
        let isa = Isa::detect();
        for rows in [2, 4, 6, 8, 12] {
            for (count, width) in [(rows, 16), (rows, 50), (rows - 1, 33), (1, 48)] {
                let numbers: Vec<f32> = (0..count * width).map(|number| number as f32).collect();
                let x: Vec<&[f32]> = numbers.chunks(width).collect();
                let k = width.next_multiple_of(2);
                let mut block = vec![f32::NAN; k * rows];
                pack_block(isa, &x, rows, &mut block);
                for (at, got) in block.iter().enumerate() {
                    let (column, row) = (at / rows, at % rows);
                    let expected = if row < count && column < width { x[row][column] } else { 0.0 };
                    assert_eq!(*got, expected, "{rows} rows, {count} of {width} columns, {column}, {row}");
                }
            }
        }
    }

    #[test]
    fn cuts_cover_all_rows_with_little_padding() {
        for isa in [Isa::Portable, Isa::Avx2, Isa::Avx512] {
            for rows in 1..600 {
                let cut = Cut::new(isa, rows);
                assert!(cut.rows * cut.blocks >= rows && cut.rows * (cut.blocks - 1) < rows, "{isa:?} {rows}");
                assert!(
                    rows < 24 || cut.rows * cut.blocks <= rows + 8,
                    "{isa:?} {rows}: {} x {}",
                    cut.rows,
                    cut.blocks
                );
            }
        }
    }
}
