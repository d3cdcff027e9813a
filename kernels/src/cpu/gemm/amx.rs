//! Products of bf16 weights on the tile unit: sixteen rows times sixteen columns times 32 k an instruction.
//!
//! Activations are rounded to bf16 and packed `[k / (32 STEPS)][row tile][STEPS][16][32]`, so that what a task walks at
//! a time is dense. Every number of rows takes this path, one row as well (a tile of one row costs less than reading
//! its weights), and each output element is one chain of tile products in ascending k.

use super::needs::Needs;
use super::product::{Product, Tile};
use crate::cpu::gemm::pack::{PANEL, TILE_K};
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::memory::Shared;
use crate::cpu::simd::tile::{TILE_BYTES, TILE_ROWS, TileShape, load, multiply, release, store, zero};
use crate::cpu::simd::{Kernel, Simd, vectorize};
use std::arch::x86_64::{__m256bh, _MM_HINT_T0, _MM_HINT_T1, _mm_prefetch, _mm512_cvtneps_pbh, _mm512_maskz_loadu_ps};
use std::ops::Range;

/// Panels a task of one row tile.
const GROUP: usize = 4;
/// Panels a task of many, at most; and its row tiles. Sums (512 KB) and activations of [`STEPS`] fit the second-level
/// cache.
const WIDE_GROUP: usize = 32;
/// Row tiles a task, at most.
const ROW_TILES: usize = 16;
/// k steps between which sums rest in memory, so that a pair of panels stays close.
const STEPS: usize = 64;
/// How far ahead of their use tiles are fetched into the first-level cache.
const AHEAD_TILES: usize = 2;
/// How far ahead of a tile weights are fetched when each is used once.
const AHEAD_BYTES: usize = 1024;

/// A product of whole tiles.
pub(super) struct Job<'a> {
    product: Product<'a>,
    /// Tiles of k.
    steps: usize,
    row_tiles: usize,
    /// Panels a task.
    group: usize,
    shape: TileShape,
}

impl<'a> Job<'a> {
    pub(super) fn new(product: Product<'a>, threads: usize) -> Self {
        let row_tiles = product.rows.div_ceil(TILE_ROWS);
        let group = if row_tiles == 1 { GROUP } else { wide_group(product.w.panels(), row_tiles, threads) };
        let shape = TileShape::new(product.rows.min(TILE_ROWS));
        Self { product, steps: product.w.k_padded / TILE_K, row_tiles, group, shape }
    }

    pub(super) fn needs(&self) -> Needs {
        let Self { row_tiles, group, product: Product { rows, w, .. }, .. } = *self;
        Needs {
            packed: row_tiles * self.steps * TILE_BYTES,
            sums: if row_tiles == 1 { 0 } else { row_tiles.min(ROW_TILES) * group * size_of::<Sums>() },
            pack_tasks: rows,
            pack_work: rows * w.k,
            tasks: row_tiles.div_ceil(ROW_TILES) * w.panels().div_ceil(group),
            work: rows * w.k * w.n / 64,
        }
    }

    /// Packs a row.
    ///
    /// # Safety
    /// As [`super::job::Job::pack`], and AVX-512 BF16 is there.
    pub(super) unsafe fn pack(&self, row: usize, packed: Shared<u8>) {
        // SAFETY: row `row` of x exists; each task writes its own row of its tile.
        unsafe {
            let x = self.product.row(row);
            for (start, x) in (0..self.steps).step_by(STEPS).zip(x.chunks(STEPS * TILE_K)) {
                let tile = Depth::new(start, self.steps).tile_offset(row / TILE_ROWS, self.row_tiles);
                pack_row(x, packed.at(tile + row % TILE_ROWS * (TILE_K * 2)));
            }
        }
    }

    /// Computes a strip.
    ///
    /// # Safety
    /// As [`super::job::Job::run`], and the tile unit is available to this process.
    pub(super) unsafe fn run(&self, task: usize, packed: Shared<u8>, sums: *mut u8) {
        let Self { ref product, steps, row_tiles, group, ref shape } = *self;
        let groups = product.w.panels().div_ceil(group);
        let (first_tile, first_panel) = (task / groups * ROW_TILES, task % groups * group);
        let strip = Strip {
            x: packed,
            weights: product.w.panel(first_panel),
            panels: first_panel..product.w.panels().min(first_panel + group),
            row_tiles: first_tile..row_tiles.min(first_tile + ROW_TILES),
            all_row_tiles: row_tiles,
            steps,
            product,
        };
        // SAFETY: the tile unit is there (the caller's promise), the strip is inside the packed operands, each thread
        // has its own part of the sums, large enough for a task, and the strip wrote what is activated.
        unsafe {
            shape.load();
            if row_tiles == 1 {
                strip.single()
            } else {
                strip.many(sums.cast())
            }
            release();
            let rows = first_tile * TILE_ROWS..product.rows.min(strip.row_tiles.end * TILE_ROWS);
            product.activate(Isa::Amx, rows, strip.panels);
        }
    }
}

/// Panels of a task: many, to read activations seldom, but a few tasks for every thread.
fn wide_group(panels: usize, row_tiles: usize, threads: usize) -> usize {
    let tasks = threads * 4;
    let shares = tasks.div_ceil(row_tiles.div_ceil(ROW_TILES));
    panels.div_ceil(shares).next_multiple_of(2).min(WIDE_GROUP)
}

/// Rounds a row to bf16 into its lines of a row of tiles.
///
/// # Safety
/// `tile` points to the row's line in the first of `k / 32` (rounded up) tiles; AVX-512 BF16 is there.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn pack_row(x: &[f32], tile: *mut u8) {
    for (half, values) in x.chunks(PANEL).enumerate() {
        // SAFETY: the mask keeps the read inside `values`; each half line is inside its tile.
        unsafe {
            let mask = (u32::MAX >> (32 - values.len())) as u16;
            let line = tile.add(half / 2 * TILE_BYTES + half % 2 * 32);
            line.cast::<__m256bh>().write_unaligned(_mm512_cvtneps_pbh(_mm512_maskz_loadu_ps(mask, values.as_ptr())));
        }
    }
    // The scratch memory may hold anything, and zero weights times NaN would be NaN.
    if x.len().div_ceil(PANEL) % 2 == 1 {
        // SAFETY: the second half of the last line.
        unsafe { tile.add(x.len() / TILE_K * TILE_BYTES + 32).write_bytes(0, 32) };
    }
}

/// Tiles of sums begin at zero with the first k, and where they rested with later ones.
macro_rules! start_sums {
    ($depth:expr, $sums:expr, $($tile:literal)*) => {
        if $depth.start == 0 {
            $(zero!($tile);)*
        } else {
            let mut rested = $sums.iter();
            $(load!($tile, *rested.next().expect("a sum for each tile"));)*
        }
    };
}

/// Some k steps.
#[derive(Clone, Copy)]
struct Depth {
    start: usize,
    end: usize,
}

impl Depth {
    /// Up to [`STEPS`] of `steps`, from `start` on.
    #[inline(always)]
    fn new(start: usize, steps: usize) -> Self {
        Self { start, end: steps.min(start + STEPS) }
    }

    /// Where a row tile's part begins in packed activations of `row_tiles` tiles, in bytes.
    #[inline(always)]
    fn tile_offset(self, tile: usize, row_tiles: usize) -> usize {
        (self.start * row_tiles + (self.end - self.start) * tile) * TILE_BYTES
    }

    /// Where their tiles begin.
    #[inline(always)]
    fn bytes(self) -> impl Iterator<Item = usize> {
        (self.start..self.end).map(|step| step * TILE_BYTES)
    }
}

/// A place in a task: tile and panel counted from its first.
#[derive(Clone, Copy)]
struct Block {
    tile: usize,
    panel: usize,
    depth: Depth,
}

/// Asks for the tile that is needed [`AHEAD_TILES`] later.
#[inline(always)]
fn fetch_ahead(tiles: *const u8, at: usize) {
    for line in (0..TILE_BYTES).step_by(64) {
        // SAFETY: prefetches may point anywhere.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(tiles.wrapping_add(at + AHEAD_TILES * TILE_BYTES + line).cast()) };
    }
}

/// One tile of sums.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Sums([f32; TILE_ROWS * PANEL]);

const ZERO: Sums = Sums([0.0; TILE_ROWS * PANEL]);

/// A task: some row tiles times up to [`GROUP`] panels.
struct Strip<'a> {
    x: Shared<u8>,
    weights: *const u8,
    panels: Range<usize>,
    row_tiles: Range<usize>,
    all_row_tiles: usize,
    steps: usize,
    product: &'a Product<'a>,
}

impl Strip<'_> {
    /// Weights of a panel of the group.
    ///
    /// # Safety
    /// The panel is in the group.
    #[inline(always)]
    unsafe fn panel(&self, panel: usize) -> *const u8 {
        // SAFETY: panels lie one after the other.
        unsafe { self.weights.add(panel * self.steps * TILE_BYTES) }
    }

    /// A row tile of the task, moved so that `step * TILE_BYTES` after it is what a step of `depth` needs.
    #[inline(always)]
    fn row_tile(&self, tile: usize, depth: Depth) -> *const u8 {
        let offset = depth.tile_offset(self.row_tiles.start + tile, self.all_row_tiles);
        // SAFETY: the offset is that of a packed tile.
        let first = unsafe { self.x.at(offset) };
        first.cast_const().wrapping_sub(depth.start * TILE_BYTES)
    }

    /// One row tile: weights are used once; several panels are read side by side.
    ///
    /// # Safety
    /// The operands exist as described and the tile unit is configured.
    unsafe fn single(&self) {
        let mut sums = [ZERO; GROUP];
        // SAFETY: the caller's promise; all tiles are `steps` long.
        unsafe {
            let x = self.x.at(0).cast_const();
            if self.panels.len() == GROUP {
                self.single_by_four(x, &mut sums);
            } else {
                for (panel, sums) in sums.iter_mut().enumerate().take(self.panels.len()) {
                    let weights = self.panel(panel);
                    load!("0", sums.0.as_ptr());
                    for at in (0..self.steps).map(|step| step * TILE_BYTES) {
                        load!("4", x.add(at));
                        load!("6", weights.add(at));
                        multiply!("0", "4", "6");
                    }
                    store!("0", sums.0.as_mut_ptr());
                }
            }
        }
        vectorize(Isa::Amx, Finish { strip: self, sums: sums.as_ptr(), tiles: 1 });
    }

    /// # Safety
    /// As [`Self::single`]; the group is whole.
    #[inline(always)]
    unsafe fn single_by_four(&self, x: *const u8, sums: &mut [Sums; GROUP]) {
        // SAFETY: the caller's promise; prefetches may point anywhere.
        unsafe {
            let w = [self.panel(0), self.panel(1), self.panel(2), self.panel(3)];
            load!("0", sums[0].0.as_ptr());
            load!("1", sums[1].0.as_ptr());
            load!("2", sums[2].0.as_ptr());
            load!("3", sums[3].0.as_ptr());
            for at in (0..self.steps).map(|step| step * TILE_BYTES) {
                load!("4", x.add(at));
                for w in w {
                    for line in (0..TILE_BYTES).step_by(64) {
                        _mm_prefetch::<_MM_HINT_T0>(w.wrapping_add(at + AHEAD_BYTES + line).cast());
                    }
                }
                load!("6", w[0].add(at));
                multiply!("0", "4", "6");
                load!("7", w[1].add(at));
                multiply!("1", "4", "7");
                load!("6", w[2].add(at));
                multiply!("2", "4", "6");
                load!("7", w[3].add(at));
                multiply!("3", "4", "7");
            }
            store!("0", sums[0].0.as_mut_ptr());
            store!("1", sums[1].0.as_mut_ptr());
            store!("2", sums[2].0.as_mut_ptr());
            store!("3", sums[3].0.as_mut_ptr());
        }
    }

    /// Many row tiles: some k at a time, two panels at a time, two row tiles at a time. `sums` is `[row tile][panel]`,
    /// overwritten.
    ///
    /// # Safety
    /// As [`Self::single`]; there is a sum for every row tile and panel.
    unsafe fn many(&self, sums: *mut Sums) {
        let (tiles, panels) = (self.row_tiles.len(), self.panels.len());
        for first in (0..self.steps).step_by(STEPS) {
            let depth = Depth::new(first, self.steps);
            for panel in (0..panels).step_by(2) {
                for tile in (0..tiles).step_by(2) {
                    let block = Block { tile, panel, depth };
                    // SAFETY: tiles and panels are inside, as are the next ones where there are two.
                    unsafe {
                        let sums = sums.add(tile * panels + panel);
                        match (tile + 1 < tiles, panel + 1 < panels) {
                            (true, true) => {
                                self.two_by_two(block, [sums, sums.add(1), sums.add(panels), sums.add(panels + 1)])
                            }
                            (true, false) => self.two_by_one(block, [sums, sums.add(panels)]),
                            (false, true) => self.one_by_two(block, [sums, sums.add(1)]),
                            (false, false) => self.one_by_two(block, [sums, sums]),
                        }
                    }
                }
            }
        }
        vectorize(Isa::Amx, Finish { strip: self, sums, tiles });
    }

    /// # Safety
    /// As [`Self::many`]; both tiles and panels exist.
    #[inline(always)]
    unsafe fn two_by_two(&self, block: Block, sums: [*mut Sums; 4]) {
        // SAFETY: the caller's promise; prefetches may point anywhere.
        unsafe {
            let (x0, x1) = (self.row_tile(block.tile, block.depth), self.row_tile(block.tile + 1, block.depth));
            let (w0, w1) = (self.panel(block.panel), self.panel(block.panel + 1));
            // Each pair of row tiles fetches its share of the next two panels.
            let (next0, next1) =
                (w1.wrapping_add(self.steps * TILE_BYTES), w1.wrapping_add(2 * self.steps * TILE_BYTES));
            let share = TILE_BYTES * 2 / self.row_tiles.len().min(16);
            let offset = block.tile / 2 * share % TILE_BYTES;
            start_sums!(block.depth, sums, "0" "1" "2" "3");
            for at in block.depth.bytes() {
                load!("4", x0.wrapping_add(at));
                load!("6", w0.add(at));
                fetch_ahead(x0, at);
                fetch_ahead(w0, at);
                multiply!("0", "4", "6");
                load!("7", w1.add(at));
                multiply!("1", "4", "7");
                fetch_ahead(x1, at);
                fetch_ahead(w1, at);
                load!("5", x1.wrapping_add(at));
                multiply!("2", "5", "6");
                multiply!("3", "5", "7");
                for line in (offset..offset + share).step_by(64) {
                    _mm_prefetch::<_MM_HINT_T1>(next0.wrapping_add(at + line).cast());
                    _mm_prefetch::<_MM_HINT_T1>(next1.wrapping_add(at + line).cast());
                }
            }
            store!("0", sums[0]);
            store!("1", sums[1]);
            store!("2", sums[2]);
            store!("3", sums[3]);
        }
    }

    /// # Safety
    /// As [`Self::many`]; both tiles exist.
    unsafe fn two_by_one(&self, block: Block, sums: [*mut Sums; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            let (x0, x1) = (self.row_tile(block.tile, block.depth), self.row_tile(block.tile + 1, block.depth));
            let w = self.panel(block.panel);
            start_sums!(block.depth, sums, "0" "1");
            for at in block.depth.bytes() {
                load!("4", x0.wrapping_add(at));
                load!("6", w.add(at));
                load!("5", x1.wrapping_add(at));
                multiply!("0", "4", "6");
                multiply!("1", "5", "6");
            }
            store!("0", sums[0]);
            store!("1", sums[1]);
        }
    }

    /// One tile times two panels; where both sums are one and the same, only the first panel exists.
    ///
    /// # Safety
    /// As [`Self::many`]; the tile and the panels exist.
    unsafe fn one_by_two(&self, block: Block, sums: [*mut Sums; 2]) {
        let second = block.panel + usize::from(sums[0] != sums[1]);
        // SAFETY: the caller's promise.
        unsafe {
            let x = self.row_tile(block.tile, block.depth);
            let (w0, w1) = (self.panel(block.panel), self.panel(second));
            start_sums!(block.depth, sums, "0" "1");
            for at in block.depth.bytes() {
                load!("4", x.wrapping_add(at));
                load!("6", w0.add(at));
                load!("7", w1.add(at));
                multiply!("0", "4", "6");
                multiply!("1", "4", "7");
            }
            store!("0", sums[0]);
            store!("1", sums[1]);
        }
    }

    #[inline(always)]
    fn write<S: Simd>(&self, row_tile: usize, panel: usize, sums: &Sums) {
        let row = row_tile * TILE_ROWS;
        let col = (self.panels.start + panel) * PANEL;
        let tile =
            Tile { sums: &sums.0, stride: PANEL, row, col, rows: TILE_ROWS.min(self.product.rows - row), cols: PANEL };
        // SAFETY: each strip writes its own rows and columns.
        unsafe { self.product.write::<S>(&tile) };
    }
}

/// Hands a strip's finished sums over: `[row tile][panel]`, all of them written.
struct Finish<'a> {
    strip: &'a Strip<'a>,
    sums: *const Sums,
    tiles: usize,
}

impl Kernel for Finish<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { strip, sums, tiles } = self;
        let panels = strip.panels.len();
        for tile in 0..tiles {
            for panel in 0..panels {
                // SAFETY: there is a sum for every row tile and panel.
                strip.write::<S>(strip.row_tiles.start + tile, panel, unsafe { &*sums.add(tile * panels + panel) });
            }
        }
    }
}
