//! Launches `kernels/cuda/csrc/gemm/matmul_skinny.cu`: products of few rows, which read the weights at the memory's
//! speed; and `kernels/cuda/csrc/gemm/matmul_skinny_gated.cu`, which gates their outputs too.

use cudarc::driver::sys::CUdeviceptr;

use crate::fusion::split_norm::{self, After, Before, may_precede};
use crate::gemm::product::{Gate, Product};
use crate::gemm::table::Facts;
use crate::jit::specialization::{HOPPER, LOWEST, Special};
use crate::layers::elementwise::Function;
use crate::layers::lora_mma::{GateAdapters, Half};
use crate::runtime::activations::View;
use crate::runtime::arch::Arch;
use crate::runtime::device::{Device, Shape, args};
use kernels::ops::{DType, Epilogue};

/// Rows of `x` from which on cuBLASLt is faster, or `matmul_split_k`; without the latter it is later for matrices of so
/// few rows that cuBLASLt cannot fill the device.
const MOST_ROWS: usize = 16;
const MOST_ROWS_OF_SMALL: usize = 32;
const SMALL: usize = 2048;
/// Rows of `x` that share a half of a matrix operand.
const HALF: usize = 8;
/// Rows of `w` in a tile.
const TILE: usize = 8;
/// Elements of a matrix that takes much longer to read than a multiprocessor takes to become empty.
const LONG: usize = 12 << 20;
/// Columns of `w` from which on what is under way counts more than how soon it begins.
const DEEP: usize = 2048;
/// Elements of 16 bytes: what a row of `w` must be a multiple of.
const PIECE: usize = 8;
/// Bytes of an adapter's weights of one output that are copied before they are needed: of 16 ranks.
const COPIED_BYTES: usize = 32;
/// Rows of `x` up to which blocks that gate add what adapters give, too: each row reads its adapter for itself.
pub(crate) const MOST_ADAPTED: usize = 2;
/// Bytes for adapters that blocks have room for without having fewer beside them.
const MOST_SHARED: usize = 24 << 10;

/// How the kernel is compiled: warps of a block, which share `k` among them; halves of rows of `x`; tiles of rows of
/// `w` of a block; loads under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    warps: usize,
    halves: usize,
    tiles: usize,
    depth: usize,
}

const fn config(warps: usize, halves: usize, tiles: usize, depth: usize) -> Config {
    Config { warps, halves, tiles, depth }
}

impl Config {
    /// Those that were the fastest on an H200 for some shape of Llama-8B or Qwen3-0.6B.
    pub(crate) const ALL: [Self; 13] = [
        config(4, 1, 2, 2),
        config(4, 2, 2, 4),
        config(8, 1, 1, 4),
        config(8, 1, 2, 3),
        config(8, 1, 2, 4),
        config(8, 2, 2, 2),
        config(8, 2, 2, 4),
        config(8, 2, 4, 2),
        config(16, 1, 2, 2),
        config(16, 2, 4, 2),
        config(16, 1, 2, 4),
        config(16, 2, 2, 4),
        config(16, 4, 2, 2),
    ];

    /// The number of warps, on which the order of sums depends, follows from the matrix alone: a row's result does not
    /// depend on how many rows it comes with. Small matrices want many warps a row, so that all multiprocessors have
    /// work; large ones want few, which wait less for each other; those in between fill the device once, or with three
    /// blocks a multiprocessor where `k` is deep.
    fn choose(rows: usize, n: usize, k: usize) -> Self {
        let one = rows <= HALF;
        match (n, k) {
            (..=SMALL, _) if one => config(16, 1, 2, 4),
            (..=SMALL, _) if rows <= 2 * HALF => config(16, 2, 2, 4),
            (..=SMALL, _) => config(16, 4, 2, 2),
            (16384.., _) if one => config(4, 1, 2, 2),
            (16384.., _) => config(4, 2, 2, 4),
            (_, 8192..) if one => config(16, 1, 2, 2),
            (_, 8192..) => config(16, 2, 4, 2),
            (..=4224, _) if one => config(8, 1, 1, 4),
            (_, DEEP..) if one => config(8, 1, 2, 3),
            (_, DEEP..) => config(8, 2, 2, 2),
            (..=4224, _) => config(8, 2, 2, 4),
            _ if one => config(8, 1, 2, 4),
            _ => config(8, 2, 4, 2),
        }
    }

    /// Rows of `x` at most, for a matrix of `n` rows.
    fn most_rows(arch: Arch, n: usize) -> usize {
        if n <= SMALL && arch != HOPPER { MOST_ROWS_OF_SMALL } else { MOST_ROWS }
    }

    pub(crate) fn special(&self, dtype: DType) -> Special {
        self.special_of("matmul_skinny", dtype)
    }

    /// With the gate that follows, where a block has as many tiles of gates as of what they gate.
    pub(crate) fn gated_special(&self, dtype: DType) -> Option<Special> {
        self.tiles.is_multiple_of(2).then(|| self.special_of("matmul_skinny_gated", dtype))
    }

    fn special_of(&self, file: &'static str, dtype: DType) -> Special {
        let Self { warps, halves, tiles, depth } = *self;
        Special::new(file, dtype, &[("WARPS", warps), ("HALVES", halves), ("TILES", tiles), ("DEPTH", depth)])
    }
}

/// All kernels for products with a matrix, without what gates them and with it.
pub(crate) fn specials(arch: Arch, [n, k]: [usize; 2], dtype: DType) -> Vec<Special> {
    let mut all = Vec::new();
    for config in (1..=Config::most_rows(arch, n)).map(|rows| Config::choose(rows, n, k)) {
        for special in [Some(config.special(dtype)), config.gated_special(dtype)].into_iter().flatten() {
            let special = divided(arch, [n, k], special);
            if k.is_multiple_of(PIECE) && !all.contains(&special) {
                all.push(special);
            }
        }
    }
    all
}

/// Queues a product that [`fits`], with parts of the norms before and after it; false where the kernel cannot be
/// compiled.
pub(crate) fn run_between(device: &mut Device, product: &Product<'_>, before: Before, after: After) -> bool {
    let Product { x, w, bias, out, .. } = product;
    let config = Config::choose(x.rows, w.rows, w.cols);
    let shape = Shape { grid: [w.rows.div_ceil(TILE * config.tiles), 1], block: 32 * config.warps, shared: 0 };
    let bias: CUdeviceptr = bias.as_ref().map_or(0, |bias| bias.ptr());
    let few = product.shape(*out);
    let special = divided(device.context.arch, [w.rows, w.cols], config.special(w.dtype));
    device.launch_special(special, shape, args![out.ptr, x.ptr, w.ptr(), bias, few, before, after])
}

/// Whether the kernel can do a product.
pub(crate) fn fits(facts: Facts, Product { x, w, out, .. }: &Product<'_>) -> bool {
    facts.arch >= LOWEST
        && w.dtype.size() == 2
        && x.dtype == w.dtype
        && (out.dtype == DType::F32 || out.dtype == w.dtype)
        && x.rows <= Config::most_rows(facts.arch, w.rows)
        && w.cols % PIECE == 0
}

/// Whether a product could be added to a residual and do a part of the norm that follows. Only small ones, where
/// latency is what counts: while a norm runs, a large product after it reads weights, which takes as long.
pub(crate) fn may_add(facts: Facts, product: &Product<'_>) -> bool {
    let Product { x, w, .. } = product;
    let columns = TILE * Config::choose(x.rows, w.rows, w.cols).tiles;
    w.rows <= SMALL && columns == split_norm::PIECE && fits(facts, product) && may_precede(product)
}

/// Whether a product could be one with a gate that follows.
pub(crate) fn may_gate(facts: Facts, product: &Product<'_>) -> bool {
    let Product { x, w, out, epilogue, .. } = product;
    fits(facts, product)
        && out.dtype == w.dtype
        && *epilogue == Epilogue::Store
        && x.rows > 0
        && w.rows.is_multiple_of(2)
        && Config::choose(x.rows, w.rows, w.cols).tiles.is_multiple_of(2)
}

/// Queues such a product, with the rest of a norm before it, and the gate of its outputs, without writing the product's
/// own; false where it cannot be compiled.
pub(crate) fn run_gated(
    device: &mut Device,
    product: &Product<'_>,
    before: Before,
    Gate { activation, out, .. }: Gate,
) -> bool {
    let Product { x, w, bias, .. } = product;
    let Some((special, shape, _)) = gated_launch(device, product, out) else { return false };
    let bias: CUdeviceptr = bias.as_ref().map_or(0, |bias| bias.ptr());
    let [rows, n, k] = [x.rows, w.rows / 2, w.cols].map(|number| number as u32);
    let function = Function::from(activation);
    device.launch_special(special, shape, args![out.ptr, x.ptr, w.ptr(), bias, rows, n, k, function, before])
}

/// The same with what adapters add before the gate.
pub(crate) fn run_adapted(
    device: &mut Device,
    product: &Product<'_>,
    Gate { activation, out, .. }: Gate,
    adapters: GateAdapters,
) -> bool {
    let Product { x, w, bias, .. } = product;
    let Some((special, shape, columns)) = gated_launch(device, product, out) else { return false };
    let bias: CUdeviceptr = bias.as_ref().map_or(0, |bias| bias.ptr());
    let matrix = w.ptr();
    let GateAdapters { half, splits, slots } = adapters;
    let Half { rows: of_rows, weights, shrunk, .. } = half;
    let [rows, n, k, splits] = [x.rows, w.rows / 2, w.cols, splits].map(|number| number as u32);
    let (function, before) = (Function::from(activation), Before::default());
    // Shrunk rows, and weights of low ranks for a block's outputs of all rows (`ColumnDeltas` of gate_deltas.cuh).
    let shrunk_bytes = x.rows * (of_rows.parts * of_rows.max_rank) as usize * size_of::<f32>();
    let shared = shrunk_bytes + x.rows * 2 * columns * COPIED_BYTES;
    if shared > MOST_SHARED {
        return false;
    }
    let arguments =
        args![out.ptr, x.ptr, matrix, bias, rows, n, k, function, before, shrunk, splits, weights, of_rows, slots];
    device.launch_special(special.with("ADAPTED", 1), Shape { shared, ..shape }, arguments)
}

/// The kernel for a product and its gate, its blocks, and the outputs of one.
fn gated_launch(device: &Device, Product { x, w, .. }: &Product<'_>, out: View) -> Option<(Special, Shape, usize)> {
    let config = Config::choose(x.rows, w.rows, w.cols);
    let special = config.gated_special(w.dtype).filter(|_| out.dtype == w.dtype)?;
    let columns = TILE * config.tiles / 2;
    let shape = Shape { grid: [(w.rows / 2).div_ceil(columns), 1], block: 32 * config.warps, shared: 0 };
    Some((divided(device.context.arch, [w.rows, w.cols], special), shape, columns))
}

/// Kernels for products with a matrix whose outputs adapters add to before they are gated.
pub(crate) fn adapted_specials(arch: Arch, [n, k]: [usize; 2], dtype: DType) -> Vec<Special> {
    let gated = (1..=MOST_ADAPTED).filter_map(|rows| Config::choose(rows, n, k).gated_special(dtype));
    let mut all: Vec<Special> = gated.map(|special| divided(arch, [n, k], special).with("ADAPTED", 1)).collect();
    all.dedup();
    all
}

/// All that lanes have under way comes through the cache, and so does x, again for each block; where the kernel ahead
/// had much shared memory, there is little of it.
fn divided(arch: Arch, [n, k]: [usize; 2], special: Special) -> Special {
    if arch == HOPPER && n * k >= LONG && k >= DEEP { special.with_cache() } else { special }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_is_compiled_ahead_and_warps_follow_from_the_matrix() {
        for n in [64, 1024, 2048, 4096, 6144, 14336, 28672, 128_256] {
            for (k, arch) in [1024, 4096, 14336].into_iter().flat_map(|k| [(k, LOWEST), (k, HOPPER)]) {
                let rows = 1..=Config::most_rows(arch, n);
                let choices: Vec<Config> = rows.clone().map(|rows| Config::choose(rows, n, k)).collect();
                assert!(choices.iter().all(|choice| Config::ALL.contains(choice)), "{n} x {k}");
                assert!(choices.iter().all(|choice| choice.warps == choices[0].warps), "{n} x {k}");
                let ordered = specials(arch, [n, k], DType::Bf16);
                let launched = |choice: &Config| divided(arch, [n, k], choice.special(DType::Bf16));
                assert!(choices.iter().all(|choice| ordered.contains(&launched(choice))), "{n} x {k}");
                assert!(ordered.len() <= 6, "{n} x {k}: {ordered:?}");
                for (rows, choice) in rows.zip(&choices) {
                    assert!(choice.halves * HALF >= rows, "{rows} rows of {n} x {k}");
                }
            }
        }
    }

    #[test]
    fn large_matrices_want_cache_on_hopper() {
        let special = config(8, 1, 2, 4).special(DType::Bf16);
        let wants = |arch, shape| divided(arch, shape, special).with_cache;
        assert!([[4096, 4096], [6144, 4096], [28672, 4096], [4096, 14336]].iter().all(|shape| wants(HOPPER, *shape)));
        assert!([[4096, 1024], [6144, 1024], [151_936, 1024]].iter().all(|shape| !wants(HOPPER, *shape)));
        assert!(!wants(LOWEST, [28672, 4096]));
    }
}
