//! Kernels that are compiled for one element type and shape, when a model first needs them: each is a function, alone in its module, named
//! like its file.

use super::arch::Arch;
use super::attention_decode::{self, Ring};
use super::attention_prefill;
use super::experts;
use super::matmul_cluster;
use super::matmul_few;
use super::matmul_hopper;
use super::matmul_parts;
use super::sources::{SPECIAL, Source};
use super::step;
use kernels::ops::DType;

/// From here on the hardware has what these kernels use: matrix products of 16-bit types and asynchronous copies.
pub(crate) const LOWEST: Arch = Arch::new(8, 0);
/// The architecture of the files that speak of it, and of `matmul_cluster`.
pub(crate) const HOPPER: Arch = Arch::new(9, 0);

/// Most sizes that a kernel is compiled for.
const SIZES: usize = 6;

/// A file and the macros it is compiled with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Special {
    pub(crate) file: &'static str,
    /// `TYPE`.
    dtype: DType,
    /// Further macros.
    sizes: [(&'static str, usize); SIZES],
}

impl Special {
    /// At most [`SIZES`] sizes.
    pub(crate) fn new(file: &'static str, dtype: DType, sizes: &[(&'static str, usize)]) -> Self {
        let mut all = [("", 0); SIZES];
        all[..sizes.len()].copy_from_slice(sizes);
        Self { file, dtype, sizes: all }
    }

    /// What the compiler is given.
    pub(crate) fn source(&self) -> Source {
        let found = SPECIAL.iter().find(|source| source.name == self.file);
        Source { special: Some(*self), ..*found.expect("a file in the list of sources") }
    }

    /// The compiler's options.
    pub(crate) fn options(&self) -> Vec<String> {
        let sizes = self.sizes.iter().filter(|(name, _)| !name.is_empty());
        std::iter::once(format!("-DTYPE={}", self.dtype.name()))
            .chain(sizes.map(|(name, value)| format!("-D{name}={value}")))
            .collect()
    }
}

/// What most models need, to be compiled ahead: bf16, heads of up to 256, up to 8 query heads a key head; of 8-bit caches, heads of 64 and 128.
pub(crate) fn usual(arch: Arch) -> Vec<Special> {
    const DIMS: [usize; 6] = [64, 80, 96, 112, 128, 256];
    const NARROW_DIMS: [usize; 2] = [64, 128];
    let dtype = DType::Bf16;
    if arch < LOWEST {
        return Vec::new();
    }
    let few = matmul_few::Config::ALL.iter().map(|config| config.special(dtype));
    let few = few.chain(matmul_few::Config::ALL.iter().filter_map(|config| config.gated_special(dtype)));
    let caches: Vec<(DType, usize)> =
        DIMS.iter().map(|dim| (dtype, *dim)).chain(NARROW_DIMS.iter().map(|dim| (DType::E4m3, *dim))).collect();
    let decode = caches.iter().flat_map(|&(cache, dim)| {
        Ring::of(cache, dim, dim).map(|ring| attention_decode::special([dtype, cache], (dim, dim), 1, ring))
    });
    let prefill = caches.iter().map(|&(cache, dim)| attention_prefill::special([dtype, cache], (dim, dim)));
    let hopper = attention_prefill::HOPPER_DIMS
        .iter()
        .flat_map(|dim| [dtype, DType::E4m3].map(|cache| attention_prefill::hopper_special([dtype, cache], *dim)));
    let hopper = hopper.chain(matmul_cluster::Config::ALL.iter().map(|config| config.special(dtype)));
    let hopper = hopper.chain(matmul_hopper::usual(dtype)).chain(matmul_parts::usual(dtype));
    let mut all: Vec<Special> = few
        .chain(experts::usual(arch, dtype))
        .chain(decode)
        .chain(prefill)
        .chain(hopper.filter(|_| arch == HOPPER))
        .chain(step::usual(arch))
        .collect();
    let mut known = std::collections::HashSet::new();
    all.retain(|special| known.insert(*special));
    all
}
