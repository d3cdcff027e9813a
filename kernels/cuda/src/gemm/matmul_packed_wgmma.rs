//! Launches `kernels/cuda/csrc/gemm/matmul_packed_wgmma.cu`: products with weights of 4 or 8 bits on Hopper, of more
//! rows than `matmul_packed` is for, up to those for which decoding the matrix first costs little.

use cudarc::driver::sys::CUdeviceptr;
use kernels::ops::{DType, Epilogue};

use crate::gemm::codes::CodedInput;
use crate::gemm::prepared::PreparedRows;
use crate::gemm::product::{Gate, Product};
use crate::gemm::table::Facts;
use crate::jit::specialization::{HOPPER, Special};
use crate::layers::elementwise::Function;
use crate::runtime::activations::View;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::runtime::tensor_map::tensor_map;
use crate::weights::Weights;
use crate::weights::packed::{CHUNK, Kind, LEAST_GROUP, TILE};

/// Fewer rows of `x` are `matmul_packed`'s. Of more than the latter, decoding the matrix first costs less than what its
/// product gains.
const LEAST_ROWS: usize = 17;
pub(crate) const MOST_ROWS: usize = 2048;
/// Rows of `x` that the kernel is compiled for.
const ROWS: [usize; 6] = [32, 64, 96, 128, 192, 256];
/// Rows of `x` up to which two blocks share a multiprocessor.
const FEW_ROWS: usize = 64;
/// Rows of `w` of a warpgroup.
pub(super) const BOX: usize = 64;
/// Elements of 16 bytes, which rows are a multiple of.
pub(super) const PIECE: usize = 8;
/// Shared memory of a multiprocessor, what it keeps of that for each block, and what aligns stages.
pub(super) const SHARED: usize = 228 << 10;
pub(super) const KEPT: usize = 1 << 10;
pub(super) const MARGIN: usize = 1 << 10;
/// Stages at most, and at least: sums lie where they were.
const MOST_STAGES: usize = 8;
const LEAST_STAGES: usize = 5;
/// Chunks of `k` that each part has at least.
const LEAST_CHUNKS: usize = 4;
/// Cycles, about: a warpgroup's to decode a chunk, or to put its codes in order; a block's to wait for one, and for the
/// sums of a part.
const DECODING: usize = 100;
const ORDERING: usize = 20;
const WAITING: usize = 200;
const ENDING: usize = 1000;

/// How the kernel is compiled: rows of `x` of a tile, warpgroups that multiply, parts of `k`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Config {
    rows: usize,
    warpgroups: usize,
    parts: usize,
}

impl Config {
    /// For a product with a matrix `[n, k]`, a chunk of which takes a warpgroup `chunk_cycles` beside products.
    fn of(rows: usize, [n, k]: [usize; 2], chunk_cycles: usize, gated: bool, multiprocessors: usize) -> Self {
        // Tiles of rows are as even as can be.
        let most = ROWS[ROWS.len() - 1];
        let row_tiles = rows.div_ceil(most).max(1);
        let rows = ROWS.into_iter().find(|room| room * row_tiles >= rows).unwrap_or(most);
        let chunks = k.div_ceil(CHUNK);
        let blocks = |warpgroups: usize, parts: usize| n.div_ceil(warpgroups * BOX) * row_tiles * parts;
        let shapes = [2, 1].into_iter().filter(|warpgroups| !gated || *warpgroups == 2);
        let shapes = shapes.flat_map(|warpgroups| [1, 2, 4].map(|parts| Self { rows, warpgroups, parts }));
        let shapes = shapes.filter(|Self { parts, .. }| *parts == 1 || chunks >= parts * LEAST_CHUNKS);
        // Clusters of four do not fill the device where each block has a multiprocessor.
        let shapes = shapes.filter(|Self { parts, .. }| rows <= FEW_ROWS || *parts < 4);
        // Two blocks that share a multiprocessor take twice as long each, beyond what they wait for.
        let time = |&Self { warpgroups, parts, .. }: &Self| {
            let blocks = blocks(warpgroups, parts);
            let sharing = if rows <= FEW_ROWS { blocks.div_ceil(multiprocessors).min(2) } else { 1 };
            let waves = blocks.div_ceil(sharing * multiprocessors);
            waves * chunks.div_ceil(parts) * (sharing * warpgroups * (2 * rows + chunk_cycles) + WAITING)
                + parts * ENDING
        };
        shapes.min_by_key(time).unwrap_or(Self { rows, warpgroups: 2, parts: 1 })
    }

    fn special(&self, kind: Kind, inputs: Inputs, gated: bool) -> Special {
        let Self { rows, warpgroups, parts } = *self;
        let (dtype, codes) = match inputs {
            Inputs::Numbers(dtype) => (dtype, 0),
            Inputs::Codes(dtype) => (dtype, kind.code as usize),
        };
        let own = [("ROWS", rows), ("WARPGROUPS", warpgroups), ("PARTS", parts), ("DEPTH", self.depth())];
        let gated = [("GATED", usize::from(gated)), ("CODES", codes)];
        let sizes: Vec<_> = kind.macros().into_iter().chain(own).chain(gated).collect();
        Special::new("matmul_packed_wgmma", dtype, &sizes)
    }

    /// Bytes of a stage of `x`, with its two barriers.
    fn stage(&self) -> usize {
        self.rows * CHUNK * 2 + 2 * size_of::<u64>()
    }

    fn depth(&self) -> usize {
        let blocks = if self.rows <= FEW_ROWS { 2 } else { 1 };
        ((SHARED / blocks - KEPT - 2 * MARGIN) / self.stage()).clamp(LEAST_STAGES, MOST_STAGES)
    }

    /// Stages, two barriers each, and room to align them.
    fn shared(&self) -> usize {
        MARGIN + self.depth() * self.stage()
    }

    /// Threads that multiply, and a warpgroup that feeds them.
    fn threads(&self) -> usize {
        (self.warpgroups + 1) * 128
    }
}

/// What rows of `x` are, and the type of results where those are not f32.
#[derive(Clone, Copy, Debug)]
enum Inputs {
    Numbers(DType),
    /// Such codes of 8 bits as those of the matrix.
    Codes(DType),
}

/// The left side of a product: what it is, how the copy engine sees it, and the scales of rows of codes.
struct Rows {
    inputs: Inputs,
    x: View,
    scales: CUdeviceptr,
}

impl Inputs {
    /// See `chunk_cycles` of [`Config::of`].
    fn cycles(self) -> usize {
        match self {
            Self::Numbers(_) => DECODING,
            Self::Codes(_) => ORDERING,
        }
    }
}

/// Whether the kernel computes a product.
pub(crate) fn fits(facts: Facts, Product { x, w, out, .. }: &Product<'_>) -> bool {
    (LEAST_ROWS..=MOST_ROWS).contains(&x.rows)
        && takes(facts, w)
        && x.dtype.size() == 2
        && [DType::F32, x.dtype].contains(&out.dtype)
}

/// Whether it multiplies by a matrix.
pub(crate) fn takes(facts: Facts, w: &Weights) -> bool {
    w.packed.as_ref().is_some_and(|packed| {
        facts.arch == HOPPER
            && facts.shared_of_block >= SHARED - KEPT
            && w.cols.is_multiple_of(PIECE)
            && w.rows.is_multiple_of(PIECE)
            && packed.kind.group.is_multiple_of(LEAST_GROUP)
    })
}

/// The same for one whose columns are gated.
pub(crate) fn may_gate(facts: Facts, product: &Product<'_>) -> bool {
    let Product { x, w, out, epilogue, .. } = product;
    fits(facts, product) && out.dtype == x.dtype && *epilogue == Epilogue::Store && w.rows.is_multiple_of(2 * TILE)
}

/// Bytes of the largest input that the kernel may be given, in its order; 0 where it does not multiply by this matrix.
pub(crate) fn reordered_bytes(facts: Facts, w: &Weights) -> usize {
    if takes(facts, w) { MOST_ROWS * w.cols.next_multiple_of(CHUNK) * 2 } else { 0 }
}

/// Queues the writing of rows of `x` to `to`, in the order in which the kernel reads them.
pub(crate) fn reorder(device: &mut Device, x: View, to: CUdeviceptr) {
    const THREADS: usize = 256;
    let chunks = x.width.div_ceil(CHUNK);
    let pieces = x.rows * chunks * (CHUNK / PIECE);
    let shape = Shape { grid: [pieces.div_ceil(THREADS), 1], block: THREADS, shared: 0 };
    let name = Name::in_file("prepare_input", "reorder_input", &[]);
    let (k, row_chunks, pieces) = (x.width as u32, chunks as u32, pieces as u32);
    device.launch_early(name, shape, args![x.ptr, to, k, row_chunks, pieces]);
}

/// Rows that were written there in that order.
pub(crate) fn reordered(x: View, at: CUdeviceptr) -> View {
    View { ptr: at, width: x.width.next_multiple_of(CHUNK), most_rows: x.rows, ..x }
}

/// Queues a product that [`fits`], whose input was [reordered](reorder), and the gate of its outputs; false where the
/// kernel cannot be compiled.
pub(crate) fn run(device: &mut Device, product: &Product<'_>, gate: Option<Gate>) -> bool {
    launch(device, product, gate, &Rows { inputs: Inputs::Numbers(product.x.dtype), x: product.x, scales: 0 })
}

/// The same for an input of codes.
pub(crate) fn run_codes(device: &mut Device, product: &Product<'_>, gate: Option<Gate>, x: &CodedInput) -> bool {
    let rows = View { ptr: x.rows.codes, dtype: x.dtype, width: x.rows.pitch / 2, ..product.x };
    launch(device, product, gate, &Rows { inputs: Inputs::Codes(x.dtype), x: rows, scales: x.rows.scales })
}

fn launch(device: &mut Device, product: &Product<'_>, gate: Option<Gate>, rows: &Rows) -> bool {
    let (Product { w, bias, out, .. }, &Rows { inputs, x, scales }) = (product, rows);
    let Some(packed) = &w.packed else { return false };
    let to = gate.map_or(*out, |gate| gate.out);
    let multiprocessors = device.context.multiprocessors;
    let config = Config::of(x.rows, [w.rows, w.cols], inputs.cycles(), gate.is_some(), multiprocessors);
    let Ok(x_map) = tensor_map(x.ptr, x.dtype, [x.rows, x.width], config.rows) else { return false };
    let tiles = w.rows.div_ceil(config.warpgroups * BOX) * x.rows.div_ceil(config.rows);
    let launch = Shape { grid: [tiles * config.parts, 1], block: config.threads(), shared: config.shared() };
    let bias: CUdeviceptr = bias.as_ref().map_or(0, |bias| bias.ptr());
    let shape = product.shape(to);
    let function = gate.map_or(Function { number: 0, limit: 0.0 }, |gate| gate.activation.into());
    let special = config.special(packed.kind, inputs, gate.is_some());
    let prepared = gate.and_then(|gate| gate.prepared).unwrap_or(PreparedRows::NONE);
    let weights = packed.argument();
    device.launch_special(special, launch, args![to.ptr, x_map, weights, bias, shape, function, scales, prepared])
}

/// Kernels for products of some rows with a matrix: those of decode steps, and of prompts beside them.
pub(crate) fn specials(facts: Facts, w: &Weights, dtype: DType) -> Vec<Special> {
    let rows = ROWS.into_iter().chain([MOST_ROWS / 4, MOST_ROWS / 2, MOST_ROWS]);
    specials_for(facts, w, dtype, rows)
}

/// Those for all numbers of rows, these among them.
pub(crate) fn later_specials(facts: Facts, w: &Weights, dtype: DType) -> Vec<Special> {
    specials_for(facts, w, dtype, row_counts())
}

/// The most rows of each tile size in each number of tiles that rows are divided into.
fn row_counts() -> impl Iterator<Item = usize> {
    const MOST: usize = ROWS[ROWS.len() - 1];
    (1..=MOST_ROWS / MOST).flat_map(|tiles| {
        let rows = ROWS.into_iter().map(move |rows| tiles * rows);
        rows.filter(move |rows| *rows > (tiles - 1) * MOST)
    })
}

fn specials_for(facts: Facts, w: &Weights, dtype: DType, rows: impl Iterator<Item = usize>) -> Vec<Special> {
    let Some(packed) = w.packed.as_ref().filter(|_| takes(facts, w)) else { return Vec::new() };
    let inputs = if packed.both_codes().is_some() { Inputs::Codes(dtype) } else { Inputs::Numbers(dtype) };
    let config = |rows| Config::of(rows, [w.rows, w.cols], inputs.cycles(), false, facts.multiprocessors);
    let mut all: Vec<Special> = rows.map(|rows| config(rows).special(packed.kind, inputs, false)).collect();
    all.dedup();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPES: [[usize; 2]; 7] =
        [[96, 256], [1024, 128], [1024, 3072], [4096, 4096], [6144, 4096], [4096, 14336], [28672, 4096]];

    fn configs() -> impl Iterator<Item = (usize, Config)> {
        let rows = [17, 32, 33, 64, 65, 128, 129, 200, 257, 400, 513, 2048];
        let config = |rows, shape| [false, true].map(|gated| (rows, Config::of(rows, shape, DECODING, gated, 132)));
        rows.into_iter().flat_map(move |rows| SHAPES.into_iter().flat_map(move |shape| config(rows, shape)))
    }

    #[test]
    fn stages_fit_and_have_room_for_the_sums() {
        for (rows, config) in configs() {
            let blocks = if config.rows <= FEW_ROWS { 2 } else { 1 };
            assert!(blocks * (config.shared() + KEPT + MARGIN) <= SHARED, "{rows} rows: {config:?}");
            let sums = config.rows * (config.warpgroups * BOX + 4) * size_of::<f32>();
            assert!(sums <= config.depth() * config.rows * CHUNK * 2, "{rows} rows: {config:?}");
        }
    }

    #[test]
    fn all_numbers_of_rows_are_known_ahead() {
        for shape in SHAPES {
            let of = |rows| Config::of(rows, shape, DECODING, false, 132);
            let known: Vec<Config> = row_counts().map(of).collect();
            assert!((1..=MOST_ROWS).all(|rows| known.contains(&of(rows))), "{shape:?}: {known:?}");
        }
    }

    #[test]
    fn tiles_of_rows_are_even_and_have_room() {
        for (rows, config) in configs() {
            assert!(rows.div_ceil(config.rows) == rows.div_ceil(256), "{rows} rows: {config:?}");
        }
    }

    #[test]
    fn small_matrices_are_cut_into_parts() {
        let cut = |rows, shape| {
            let Config { warpgroups, parts, .. } = Config::of(rows, shape, DECODING, false, 132);
            (warpgroups, parts)
        };
        assert_eq!(SHAPES.map(|shape| cut(64, shape)), [(1, 1), (1, 1), (1, 4), (2, 4), (2, 4), (2, 4), (2, 1)]);
        assert_eq!(SHAPES.map(|shape| cut(256, shape)), [(1, 1), (1, 1), (1, 2), (1, 2), (2, 2), (1, 2), (2, 1)]);
    }
}
