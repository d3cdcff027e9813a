//! Launches `kernels/cuda/matmul_cluster.cu`: products of some dozens of rows on Hopper, which read the weights at nearly the memory's speed.

use cudarc::driver::sys::{CUdeviceptr, CUtensorMap};

use super::context::Context;
use super::device::{Device, Shape, args};
use super::product::{Product, ProductShape};
use super::special::{HOPPER, Special};
use super::tensor_map::tensor_map;
use kernels::ops::DType;

/// Rows of `w` in a tile, columns of a chunk of `k`, and bytes of such a piece of `w`.
const TILE: usize = 64;
const CHUNK: usize = 64;
const W_BYTES: usize = TILE * CHUNK * 2;
/// Tiles whose sums a block has room for, each with a warpgroup that adds them up.
const BUFFERS: usize = 2;
/// One warpgroup that multiplies, those that add, and a warp that feeds.
const THREADS: usize = 128 * (1 + BUFFERS) + 32;
/// Pieces of `w` under way at most, and at least.
const MOST_STAGES: usize = 24;
const LEAST_STAGES: usize = 4;
/// Bytes of a barrier, and of what aligns the rest.
const BARRIER: usize = 8;
const MARGIN: usize = 1024;
/// Elements of 16 bytes, which the copy engine's rows are a multiple of.
const PIECE: usize = 8;

/// How the kernel is compiled: rows of `x` at most, and blocks of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Config {
    rows: usize,
    cluster: usize,
}

const fn config(rows: usize, cluster: usize) -> Config {
    Config { rows, cluster }
}

/// Stages of a block's ring, and its shared memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ring {
    stages: usize,
    shared: usize,
}

impl Config {
    /// All that [`choose`] takes.
    pub(crate) const ALL: [Self; 2] = [config(32, 4), config(64, 4)];

    pub(crate) fn special(&self, dtype: DType) -> Special {
        Special::new("matmul_cluster", dtype, &[("ROWS", self.rows), ("CLUSTER", self.cluster), ("BUFFERS", BUFFERS)])
    }

    /// The kernel's shared memory, as `ClusterProduct::plan` lays it out, if all blocks have a part of `k` and there is room.
    fn ring(&self, k: usize, most_shared: usize) -> Option<Ring> {
        let chunks = k.div_ceil(CHUNK);
        let part = chunks.div_ceil(self.cluster) * (self.rows * CHUNK * 2 + BARRIER);
        let fixed = part + BUFFERS * (TILE * self.rows * size_of::<f32>() + 2 * BARRIER) + MARGIN;
        let stage = W_BYTES + 2 * BARRIER;
        let stages = (most_shared.checked_sub(fixed)? / stage).min(MOST_STAGES);
        (chunks >= self.cluster && stages >= LEAST_STAGES).then_some(Ring { stages, shared: fixed + stages * stage })
    }
}

/// `struct ClusterShape` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct ClusterShape {
    product: ProductShape,
    stages: u32,
}

/// All kernels for products with a matrix `[n, k]`.
pub(crate) fn specials(context: &Context, [n, k]: [usize; 2], dtype: DType) -> Vec<Special> {
    let fits = context.arch == HOPPER && k.is_multiple_of(PIECE);
    let is_taken = |config: &Config| {
        fits && config.ring(k, context.shared_of_block).is_some()
            && (1..=config.rows).any(|rows| choose(rows, n, k) == Some(*config))
    };
    Config::ALL.into_iter().filter(is_taken).map(|config| config.special(dtype)).collect()
}

/// Queues a product; false if it is none for this kernel.
pub(crate) fn run(device: &mut Device, product: &Product<'_>) -> bool {
    let Product { x, w, bias, out, .. } = product;
    let fits = device.context.arch == HOPPER
        && w.dtype.size() == 2
        && x.dtype == w.dtype
        && (out.dtype == DType::F32 || out.dtype == w.dtype)
        && w.cols.is_multiple_of(PIECE);
    let Some(config) = choose(x.rows, w.rows, w.cols).filter(|_| fits) else { return false };
    let Some(ring) = config.ring(w.cols, device.context.shared_of_block) else { return false };
    let special = config.special(w.dtype);
    let cluster = Shape { grid: [config.cluster, 1], block: THREADS, shared: ring.shared };
    let Some(clusters) = device.clusters_at_once(special, cluster) else { return device.fault().is_some() };
    let maps = || -> Option<[CUtensorMap; 2]> {
        let x = tensor_map(x.ptr, x.dtype, [x.rows, w.cols], config.rows).ok()?;
        Some([x, tensor_map(w.ptr(), w.dtype, [w.rows, w.cols], TILE).ok()?])
    };
    let Some([x_map, w_map]) = maps().filter(|_| clusters > 0) else { return false };
    let grid = [clusters.min(w.rows.div_ceil(TILE)) * config.cluster, 1];
    let shape = ClusterShape { product: product.shape(*out), stages: ring.stages as u32 };
    let bias: CUdeviceptr = bias.as_ref().map_or(0, |bias| bias.ptr());
    let launch = Shape { grid, ..cluster };
    device.launch_special(special, launch, args![out.ptr, x_map, w_map, bias, shape])
}

/// The configuration, where this kernel is the fastest in a decode layer on an H200: where `w` has too few rows for cuBLASLt to fill the
/// device.
fn choose(rows: usize, n: usize, k: usize) -> Option<Config> {
    match (rows, n, k) {
        (17..=32, 2049..=4096, 2048..=8192) => Some(config(32, 4)),
        (33..=64, ..=2048, ..=4096) => Some(config(64, 4)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_is_compiled_ahead_and_has_room() {
        const H100: usize = 227 << 10;
        let mut found = 0;
        for rows in 1..=256 {
            for n in [64, 1024, 2048, 4096, 8192] {
                for k in [256, 1024, 3072, 4096, 8192] {
                    let Some(config) = choose(rows, n, k) else { continue };
                    assert!(Config::ALL.contains(&config) && config.rows >= rows, "{rows} rows of {n} x {k}");
                    let ring = config.ring(k, H100).expect("room");
                    assert!(ring.shared <= H100, "{ring:?} for {rows} rows of {n} x {k}");
                    found += 1;
                }
            }
        }
        assert!(found > 0);
    }
}
