//! Kernels compiled ahead of the first start: all that are compiled as they are, and of those compiled for a shape what
//! most models need.

use std::collections::HashSet;
use std::path::Path;

use crate::attention::attention_cascade;
use crate::attention::attention_decode::{self, Ring};
use crate::attention::attention_prefill::{self, HopperTile};
use crate::attention::layer::{AttentionTypes, HeadDims};
use crate::comm::peers;
use crate::gemm::matmul_skinny;
use crate::gemm::matmul_split_k;
use crate::gemm::matmul_wgmma;
use crate::jit::compiler::{Compiler, Filled};
use crate::jit::sources::{KERNELS, Source};
use crate::jit::specialization::{HOPPER, LOWEST, Special};
use crate::latent::{attention_expanded, attention_latent, head_matmul_mma};
use crate::layers::{lora_mma, norm_prepared};
use crate::moe::experts;
use crate::recurrent::{delta_chunks, delta_steps, scan_chunks, scan_steps};
use crate::runtime::arch::Arch;
use crate::runtime::libraries::Folders;
use crate::whole_step;
use kernels::ops::{DType, KvDType, ScoreMods};

/// Compiles every kernel for these architectures into `cache`, for an image or a first start. Needs NVRTC and no GPU.
/// `begin` is told each architecture, with the number of its kernels, before they are compiled.
pub fn fill_cache(
    folders: &Folders,
    cache: &Path,
    archs: &[Arch],
    mut begin: impl FnMut(Arch, usize),
) -> Result<Filled, String> {
    let compiler = Compiler::filling(folders, cache)?;
    let mut filled = Filled::default();
    for arch in archs {
        let sources = sources(*arch);
        begin(*arch, sources.len());
        let part = compiler.several(&sources, *arch)?;
        filled = Filled { compiled: filled.compiled + part.compiled, cached: filled.cached + part.cached };
    }
    match compiler.unkept() {
        None => Ok(filled),
        Some(reason) => Err(format!("compiled kernels cannot be kept: {reason}")),
    }
}

/// What an image has compiled ahead.
fn sources(arch: Arch) -> Vec<Source> {
    KERNELS.iter().copied().chain(peers::specials().chain(usual(arch)).map(Source::of)).collect()
}

/// What most models need, to be compiled ahead: bf16, heads of up to 256, up to 8 query heads a key head; of 8-bit
/// caches, heads of 64 and 128; with soft caps (Gemma 2), of 128 and 256.
fn usual(arch: Arch) -> Vec<Special> {
    const DIMS: [usize; 6] = [64, 80, 96, 112, 128, 256];
    const NARROW_DIMS: [usize; 2] = [64, 128];
    const CAPPED_DIMS: [usize; 2] = [128, 256];
    const BLOCK_SIZE: usize = 16;
    let dtype = DType::Bf16;
    if arch < LOWEST {
        return Vec::new();
    }
    let skinny = matmul_skinny::Config::ALL.iter().map(|config| config.special(dtype));
    let gated = matmul_skinny::Config::ALL.iter().filter_map(move |config| config.gated_special(dtype));
    let skinny = skinny.chain(gated.flat_map(|special| [special, special.with("ADAPTED", 1)]));
    let plain = AttentionTypes { rows: dtype, cache: dtype.into() };
    let narrow = AttentionTypes { cache: KvDType::E4m3, ..plain };
    let caches: Vec<(AttentionTypes, usize)> =
        DIMS.iter().map(|dim| (plain, *dim)).chain(NARROW_DIMS.iter().map(|dim| (narrow, *dim))).collect();
    let decode = caches.iter().flat_map(|&(types, dim)| {
        let dims = HeadDims::same(dim);
        Ring::of(types.cache, dims).map(|ring| attention_decode::special(types, dims, 1, ring))
    });
    let cascade = caches.iter().flat_map(|&(types, dim)| {
        // As many query heads a key head as one tile of them has.
        attention_cascade::specials(types, HeadDims::same(dim), 8)
    });
    let prefill = caches.iter().map(|&(types, dim)| attention_prefill::special(types, HeadDims::same(dim)));
    let capped = ScoreMods { soft_cap: true, ..ScoreMods::default() };
    let hopper = caches.iter().map(|&(types, dim)| (types, dim, ScoreMods::default()));
    let hopper = hopper.chain(CAPPED_DIMS.iter().map(|dim| (plain, *dim, capped)));
    let hopper = hopper.flat_map(|(types, dim, scores)| {
        let tile = HopperTile::of(HeadDims::same(dim), types.cache, BLOCK_SIZE);
        tile.into_iter().flat_map(move |tile| attention_prefill::hopper_specials(types, tile, scores))
    });
    let hopper = hopper.chain(matmul_wgmma::usual(dtype)).chain(matmul_split_k::usual(dtype));
    let hopper = hopper.chain(attention_expanded::specials(dtype));
    let hopper = hopper.chain(attention_latent::specials(true, dtype)).chain(norm_prepared::usual(dtype));
    let hopper = hopper.chain([scan_steps::usual(dtype), delta_steps::usual(dtype)]);
    let mut all: Vec<Special> = skinny
        .chain(experts::usual(arch, dtype))
        .chain(lora_mma::specials(dtype))
        .chain(delta_chunks::usual(dtype))
        .chain(head_matmul_mma::specials(dtype))
        .chain(attention_latent::specials(false, dtype))
        .chain(decode)
        .chain(cascade)
        .chain(prefill)
        .chain(scan_chunks::usual(dtype))
        .chain(hopper.filter(|_| arch == HOPPER))
        .chain(whole_step::usual(arch))
        .collect();
    let mut known = HashSet::new();
    all.retain(|special| known.insert(*special));
    all
}
