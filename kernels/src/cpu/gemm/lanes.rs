//! Products in f32 lanes, for every weight type and every instruction set: weights become f32 in registers, activations
//! stay f32.
//!
//! A tile of `R` rows times `C` vectors stays in registers over all of k. One row streams many panels at once (bound by
//! memory); many rows reuse each weight vector `R` times (bound by arithmetic). Activations are packed `[row
//! block][k][R]`, so that a tile reads them in sequence, and taken in super-blocks that stay in the second-level cache
//! while panels stream past.

#![allow(clippy::needless_range_loop, reason = "indices of register arrays are unrolled; iterators hide the shape")]

use super::integers::{Arithmetic, Integers, Kept};
use super::needs::Needs;
use super::product::{Product, Tile};
use crate::cpu::gemm::pack::PANEL;
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::simd::transpose::transpose;
use crate::cpu::simd::{Element, F16, F32, Kernel, Simd, vectorize};
use crate::ops::{DType, WeightFormat};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Rows of a super-block, at most.
const SUPER_BLOCK_ROWS: usize = 120;
/// k after which sums rest in memory: a super-block's activations up to there, and two panels, fit the second-level
/// cache.
const DEPTH: usize = 2048;
/// The same of many rows: two panels of weights stay in the first-level cache while a super-block's rows pass.
const SHORT_DEPTH: usize = 256;
/// Sums of a task, at most: a super-block of rows times two panels, or a few rows times eight.
const TASK_SUMS: usize = SUPER_BLOCK_ROWS * 2 * PANEL;

/// Rows of a tile, at most.
const MOST_ROWS: usize = 12;

/// How rows are cut into register tiles: as many of `rows` rows as pays, then smaller ones.
#[derive(Clone, Copy)]
struct Cut {
    /// Rows of a tile.
    rows: usize,
    /// Tiles that have as many; and the rows of those after them.
    large: usize,
    rest: usize,
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
        // The two largest tiles are of equally many panels.
        let [few @ .., (rest, _), (most, panels)] = sizes else { unreachable!("three sizes at least") };
        if let Some(&(tile, panels)) = few.iter().find(|size| size.0 >= rows) {
            return Self { rows: tile, large: 1, rest: tile, blocks: 1, super_blocks: 1, panels };
        }
        let (large, small) = Self::mix(rows, *most, *rest);
        let blocks = large + small;
        let fit = (TASK_SUMS / (most * panels * PANEL)).min(SUPER_BLOCK_ROWS / most);
        // Super-blocks of equal size.
        let super_blocks = blocks.div_ceil(blocks.div_ceil(fit));
        Self { rows: *most, large, rest: *rest, blocks, super_blocks, panels: *panels }
    }

    /// How many tiles of `most` and of `rest` rows compute `rows` rows fastest.
    fn mix(rows: usize, most: usize, rest: usize) -> (usize, usize) {
        let mixes = (0..=rows.div_ceil(most)).map(|large| (large, rows.saturating_sub(large * most).div_ceil(rest)));
        // A smaller tile takes some percent more time a row.
        let time = |&(large, small): &(usize, usize)| large * most * 100 + small * rest * 107;
        mixes.min_by_key(time).expect("a mix at least")
    }

    fn first_row(&self, block: usize) -> usize {
        let large = block.min(self.large);
        large * self.rows + (block - large) * self.rest
    }

    fn rows_of(&self, block: usize) -> usize {
        if block < self.large { self.rows } else { self.rest }
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
    threads: usize,
}

impl<'a> Job<'a> {
    pub(super) fn new(isa: Isa, threads: usize, product: Product<'a>) -> Self {
        let cut = Cut::new(isa, product.rows);
        let (k, groups) = (product.w.k.next_multiple_of(2), product.w.panels().div_ceil(cut.panels));
        Self { isa, product, cut, k, groups, threads }
    }

    pub(super) fn needs(&self) -> Needs {
        let Self { cut, k, product: Product { rows, w, .. }, .. } = *self;
        Needs {
            packed: cut.first_row(cut.blocks) * k * size_of::<f32>(),
            sums: 0,
            pack_tasks: cut.blocks,
            pack_work: rows * k,
            tasks: cut.blocks.div_ceil(cut.super_blocks) * self.groups,
            work: rows * k * w.n / 8,
        }
    }

    /// Whether each thread packs all rows for itself: `threads` are enough to wait for, rows fit its cache, and
    /// it has many columns to multiply them with.
    pub(super) fn packs_alone(&self, threads: usize) -> bool {
        const MOST_BYTES: usize = 1 << 20;
        const LEAST_COLUMNS: usize = 128;
        let Product { rows, w, .. } = self.product;
        rows >= 8 && self.needs().packed <= MOST_BYTES && w.n >= threads * LEAST_COLUMNS
    }

    /// Packs a row block.
    ///
    /// # Safety
    /// As [`super::job::Job::pack`].
    pub(super) unsafe fn pack(&self, block: usize, packed: Shared<u8>) {
        let (first, block_rows) = (self.cut.first_row(block), self.cut.rows_of(block));
        let count = block_rows.min(self.product.rows - first);
        // SAFETY: rows `first .. first + count` of x exist; each task writes its own block of the packed memory.
        unsafe {
            let at = packed.at(first * self.k * size_of::<f32>()).cast::<f32>();
            let block = std::slice::from_raw_parts_mut(at, block_rows * self.k);
            let mut rows = [&[][..]; MOST_ROWS];
            (rows.iter_mut().enumerate().take(count)).for_each(|(row, x)| *x = self.product.row(first + row));
            pack_block(self.isa, &rows[..count], block_rows, block);
        }
    }

    /// Computes a strip.
    ///
    /// # Safety
    /// As [`super::job::Job::run`].
    pub(super) unsafe fn run(&self, task: usize, packed: Shared<u8>) {
        let Self { isa, cut, k, groups, threads, ref product } = *self;
        let first_block = task / groups * cut.super_blocks;
        let first_panel = task % groups * cut.panels;
        let blocks = first_block..cut.blocks.min(first_block + cut.super_blocks);
        let panels = first_panel..product.w.panels().min(first_panel + cut.panels);
        let rows = cut.first_row(blocks.start)..product.rows.min(cut.first_row(blocks.end));
        // SAFETY: the packed memory begins here.
        let x = Shared::new(unsafe { packed.at(0) }.cast::<f32>());
        let strip = Strip {
            blocks,
            panels: panels.clone(),
            cut,
            k,
            x,
            weights: product.w.panel(first_panel),
            panel_bytes: product.w.panel_bytes(),
            next_panel: cut.panels * threads,
            product,
        };
        match product.w.format {
            WeightFormat::Plain(DType::F32) => vectorize(isa, Typed::<Plain<F32>>(strip, Plain(F32))),
            WeightFormat::Plain(DType::F16) => vectorize(isa, Typed::<Plain<F16>>(strip, Plain(F16))),
            WeightFormat::Plain(DType::Bf16) => vectorize(isa, Typed::<Pairs>(strip, Pairs)),
            WeightFormat::ScaledE4m3 { .. } => vectorize(isa, Typed::<Codes>(strip, Codes)),
            WeightFormat::Grouped(_) | WeightFormat::Blocks(_) => {
                match product.w.integers().map_or(Kept::Eight, |integers| integers.kept) {
                    Kept::Four => vectorize(isa, Typed::<Halves>(strip, Halves)),
                    Kept::Eight => vectorize(isa, Typed::<Bytes>(strip, Bytes)),
                    Kept::Levels(_) => unreachable!("kept so for products of integers alone"),
                }
            }
        }
        // SAFETY: the strip wrote these columns, and no other task does.
        unsafe { product.activate(isa, rows, panels) };
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
    assert!(width * rows <= block.len(), "a block for {rows} rows of {width}");
    // SAFETY: the block has room for `width` columns.
    unsafe { transpose(isa, x, block.as_mut_ptr(), rows) };
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
    /// Where this thread's next task begins, probably: panels from this one on.
    next_panel: usize,
    product: &'a Product<'a>,
}

/// How a weight panel is read, two k at a time.
trait Weights: Copy {
    /// Whether sums are multiplied by the scales of their weights.
    const SCALED: bool = false;
    /// Whether weights are made of integer codes and their group.
    const GROUPED: bool = false;
    /// Bytes of a panel's pair of k.
    const PAIR_BYTES: usize;
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
    const PAIR_BYTES: usize = PANEL;

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
    const PAIR_BYTES: usize = 2 * PANEL;

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
    const PAIR_BYTES: usize = 2 * PANEL * size_of::<E::Bits>();

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
    const PAIR_BYTES: usize = 4 * PANEL;

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
    const PAIR_BYTES: usize = 2 * PANEL;

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
                if depth.end == strip.k {
                    strip.write::<S>(block, &sums);
                }
            }
        }
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

/// What a tile multiplies: rows `[k][R]`, and vectors of panels.
struct Operands<S, const C: usize> {
    x: *const f32,
    weights: *const u8,
    panel_bytes: usize,
    groups: [Group<S>; C],
}

impl<S: Simd, const C: usize> Operands<S, C> {
    /// How many pairs of k ahead of their use weights are fetched, which may come from far; and rows.
    const AHEAD: usize = 24;
    const ROWS_AHEAD: usize = 8;

    /// `sums += x weights` over some pairs of k. `AHEAD`: fetches the weights, and a line a pair of what comes `next`.
    ///
    /// # Safety
    /// Rows and panels have these pairs; `next` may point anywhere.
    #[inline(always)]
    unsafe fn multiply<W: Weights, const R: usize, const AHEAD: bool>(
        &self,
        pairs: Range<usize>,
        next: *const u8,
        sums: &mut [[S; C]; R],
    ) {
        let per_panel = PANEL / S::N;
        let panel = |c: usize| self.weights.wrapping_add(c / per_panel * self.panel_bytes);
        for pair in pairs.clone() {
            if AHEAD {
                S::prefetch(next.wrapping_add((pair - pairs.start) * 64));
                for c in (0..C).step_by(per_panel) {
                    for line in (0..W::PAIR_BYTES).step_by(64) {
                        S::prefetch_near(panel(c).wrapping_add((pair + Self::AHEAD) * W::PAIR_BYTES + line));
                    }
                }
            }
            let x = self.x.wrapping_add(pair * 2 * R);
            if R == 8 {
                // A line; larger tiles give them time to come by themselves.
                S::prefetch_near(x.wrapping_add(Self::ROWS_AHEAD * 2 * R).cast());
            }
            let mut first = [S::splat(0.0); C];
            let mut second = [S::splat(0.0); C];
            // SAFETY: the caller's promise.
            unsafe {
                for c in 0..C {
                    (first[c], second[c]) = W::pair(panel(c), pair, c % per_panel, self.groups[c]);
                }
                for r in 0..R {
                    let x = S::splat(*x.add(r));
                    for c in 0..C {
                        sums[r][c] = x.fma(first[c], sums[r][c]);
                    }
                }
                for r in 0..R {
                    let x = S::splat(*x.add(R + r));
                    for c in 0..C {
                        sums[r][c] = x.fma(second[c], sums[r][c]);
                    }
                }
            }
        }
    }
}

impl Strip<'_> {
    /// Where a part of k that begins at `start` ends: all of its weights share their columns' scales.
    #[inline(always)]
    fn depth_end<W: Weights>(&self, start: usize) -> usize {
        let scales = self.product.w.scales().filter(|_| W::SCALED);
        let groups = self.product.w.integers().filter(|_| W::GROUPED);
        let end = scales.map(|scales| scales.end(start)).or(groups.map(|groups| groups.end(start)));
        let end = end.unwrap_or(usize::MAX);
        // Scaled sums are rounded where a part ends, whatever the rows.
        let most = if self.cut.rows >= 8 && !W::SCALED { SHORT_DEPTH } else { DEPTH };
        end.min(start + most).min(self.k)
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
            match (self.cut.rows_of(block), panels) {
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
            match (self.cut.rows_of(block), panels) {
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
        let first_row = self.cut.first_row(block);
        let kept_row = first_row - self.cut.first_row(self.blocks.start);
        let kept = kept.0[kept_row * width + first * PANEL..][..(R - 1) * width + C * S::N].as_mut_ptr().cast::<f32>();
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
            let x = self.x.at(first_row * self.k).cast_const();
            let weights = self.weights.add(first * self.panel_bytes);
            let operands = Operands { x, weights, panel_bytes: self.panel_bytes, groups };
            // With many rows, what comes next arrives behind arithmetic: the task's own panels in the first-level
            // cache before their first use, and a line a step of the next task's in the second-level cache.
            let index = block - self.blocks.start;
            let fetched = (depth.start * self.blocks.len() + index * depth.len()) / 2 * 64;
            let many = R >= 8 && C == 2;
            if many && depth.end == self.k {
                self.fetch_output::<S>(block);
            }
            let pairs = depth.start / 2..depth.end / 2;
            if many && fetched < self.cut.panels * self.panel_bytes {
                let next = self.weights.wrapping_add(self.next_panel * self.panel_bytes + fetched);
                operands.multiply::<W, R, true>(pairs, next, &mut sums);
            } else {
                operands.multiply::<W, R, false>(pairs, weights, &mut sums);
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

    /// Asks for the lines that a block's sums will be written to.
    #[inline(always)]
    fn fetch_output<S: Simd>(&self, block: usize) {
        let first = self.cut.first_row(block);
        for row in first..self.product.rows.min(first + self.cut.rows_of(block)) {
            for panel in self.panels.clone() {
                S::prefetch_write(self.product.out_line(row, panel * PANEL));
            }
        }
    }

    /// Hands the finished sums of a block over.
    #[inline(always)]
    fn write<S: Simd>(&self, block: usize, sums: &Sums) {
        let (width, rows, row) = (self.cut.panels * PANEL, self.cut.rows_of(block), self.cut.first_row(block));
        let first = (row - self.cut.first_row(self.blocks.start)) * width;
        let count = (rows - 1) * width + self.panels.len() * PANEL;
        // SAFETY: every tile of the block wrote its sums; the last columns of a row may be missing, and only they.
        let sums = unsafe { std::slice::from_raw_parts(sums.0[first..][..count].as_ptr().cast::<f32>(), count) };
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
                let (end, last) = (cut.first_row(cut.blocks), cut.first_row(cut.blocks - 1));
                assert!(end >= rows && last < rows && end - last == cut.rows_of(cut.blocks - 1), "{isa:?} {rows}");
                assert!(rows < 24 || end <= rows + 3, "{isa:?} {rows}: {end}");
                let most = cut.super_blocks * cut.rows * cut.panels * PANEL;
                assert!(most <= TASK_SUMS, "{isa:?} {rows}: {most} sums");
            }
        }
    }
}
