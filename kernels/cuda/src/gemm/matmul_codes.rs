//! Launches `kernels/cuda/csrc/gemm/matmul_codes.cu`: products of 8-bit codes with codes on Hopper.

use cudarc::driver::sys::CUdeviceptr;
use kernels::ops::DType;

use crate::gemm::codes::CodedInput;
use crate::gemm::matmul_packed_wgmma::{BOX, KEPT, MARGIN, PIECE, SHARED};
use crate::gemm::product::Product;
use crate::gemm::table::Facts;
use crate::jit::specialization::{HOPPER, Special};
use crate::runtime::device::{Device, Shape, args};
use crate::runtime::tensor_map::tensor_map;
use crate::weights::Weights;
use crate::weights::packed::{Kind, STAGE};

/// Rows of `x` that it is selected for: it was seen to be the faster at the most of them.
const LEAST_ROWS: usize = 33;
const MOST_ROWS: usize = 64;
/// Warpgroups that multiply.
const WARPGROUPS: usize = 2;

/// How the kernel is compiled: parts of `k`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Config {
    parts: usize,
}

impl Config {
    /// For a product with a matrix `[n, k]` whose parts of `k` take most multiprocessors at once. Of others nothing was
    /// seen.
    fn of([n, k]: [usize; 2], multiprocessors: usize) -> Option<Self> {
        /// Stages of `k` that each part has at least.
        const LEAST_STEPS: usize = 4;
        let (tiles, steps) = (n.div_ceil(WARPGROUPS * BOX), k.div_ceil(STAGE));
        // Clusters of four blocks that have a multiprocessor each do not fill the device.
        let wave = |parts| if parts == 4 { multiprocessors * 10 / 11 } else { multiprocessors };
        let fits = |parts: &usize| tiles * parts <= wave(*parts) && steps >= LEAST_STEPS * parts;
        let parts = [4, 3].into_iter().find(fits)?;
        (3 * tiles * parts >= 2 * multiprocessors).then_some(Self { parts })
    }

    fn special(&self, kind: Kind, dtype: DType) -> Special {
        let own = [("ROWS", MOST_ROWS), ("WARPGROUPS", WARPGROUPS), ("PARTS", self.parts)];
        let sizes: Vec<_> = kind.macros().into_iter().chain(own).chain([("DEPTH", Self::DEPTH)]).collect();
        Special::new("matmul_codes", dtype, &sizes)
    }

    /// Bytes of a stage, with its two barriers.
    const STAGE_BYTES: usize = (WARPGROUPS * BOX + MOST_ROWS) * STAGE + 2 * size_of::<u64>();
    /// Stages: as many as there is room for.
    const DEPTH: usize = (SHARED - KEPT - 2 * MARGIN) / Self::STAGE_BYTES;
    /// Stages, and room to align them.
    const SHARED_BYTES: usize = MARGIN + Self::DEPTH * Self::STAGE_BYTES;
    /// Threads that multiply, and a warp that feeds them.
    const THREADS: usize = WARPGROUPS * 128 + 32;
}

// Stages fit, and have room for the sums, which lie where they were.
const _: () = {
    assert!(Config::SHARED_BYTES + KEPT <= SHARED);
    assert!(
        MOST_ROWS * (WARPGROUPS * BOX + 4) * size_of::<f32>() <= Config::DEPTH * (WARPGROUPS * BOX + MOST_ROWS) * STAGE
    );
};

/// Whether the kernel computes a product whose both sides are codes.
pub(crate) fn fits(facts: Facts, Product { x, w, .. }: &Product<'_>) -> bool {
    (LEAST_ROWS..=MOST_ROWS).contains(&x.rows) && config(facts, w).is_some()
}

fn config(facts: Facts, w: &Weights) -> Option<Config> {
    let may = facts.arch == HOPPER && facts.shared_of_block >= Config::SHARED_BYTES && w.rows.is_multiple_of(PIECE);
    Config::of([w.rows, w.cols], facts.multiprocessors).filter(|_| may)
}

/// Queues a product that [`fits`]; false where the kernel cannot be compiled.
pub(crate) fn run(device: &mut Device, product: &Product<'_>, x: &CodedInput) -> bool {
    let Product { w, bias, out, .. } = product;
    let (Some(packed), Some(config)) = (&w.packed, config(Facts::of(device), w)) else { return false };
    // Two codes are described as a number of 16 bits.
    let size = [product.x.rows, x.rows.pitch / 2];
    let Ok(x_map) = tensor_map(x.rows.codes, x.dtype, size, MOST_ROWS) else { return false };
    let grid = [w.rows.div_ceil(WARPGROUPS * BOX) * config.parts, 1];
    let launch = Shape { grid, block: Config::THREADS, shared: Config::SHARED_BYTES };
    let bias: CUdeviceptr = bias.as_ref().map_or(0, |bias| bias.ptr());
    let (shape, weights, scales) = (product.shape(*out), packed.argument(), x.rows.scales);
    let special = config.special(packed.kind, x.dtype);
    device.launch_special(special, launch, args![out.ptr, x_map, weights, bias, shape, scales])
}

/// The kernel for products with a matrix of codes, where there is one.
pub(crate) fn special(facts: Facts, w: &Weights, dtype: DType) -> Option<Special> {
    Some(config(facts, w)?.special(w.packed.as_ref()?.kind, dtype))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrices_of_few_rows_are_cut_into_parts() {
        let parts = |shape| Config::of(shape, 132).map(|config| config.parts);
        let shapes =
            [[4096, 256], [1024, 3072], [2880, 2048], [4096, 4096], [4096, 14336], [6144, 4096], [28672, 4096]];
        assert_eq!(shapes.map(parts), [None, None, Some(4), Some(3), Some(3), None, None]);
    }
}
