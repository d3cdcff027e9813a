//! Kernels that steps of few rows are sure to need once it is known what a model is made of: compiled on threads of
//! their own while weights are on their way, so that the first steps, and those that are recorded, find them made.

use std::time::{Duration, Instant};

use crate::CudaBackend;
use crate::attention::attention_decode;
use crate::attention::attention_prefill::{self, HopperTile};
use crate::attention::backend::Selected;
use crate::attention::layer::{AttentionTypes, HeadDims};
use crate::comm::peers;
use crate::gemm::table::Facts;
use crate::gemm::{codes, matmul_packed, matmul_packed_wgmma, matmul_skinny, matmul_split_k};
use crate::jit::sources::Need;
use crate::jit::specialization::{LOWEST, Special};
use crate::latent::{attention_latent, head_matmul_mma};
use crate::layers::groups::Group;
use crate::layers::norm_prepared;
use crate::moe::experts::{self, Keep};
use crate::options::{AttentionBackend, WholeSteps};
use crate::runtime::device::Device;
use crate::weights::Weights;
use crate::whole_step;
use kernels::ops::{Activation, ExpectedAttention, KvDType};

impl CudaBackend {
    /// For products of few rows with the matrix that came last.
    pub(crate) fn order_for_newest_matrix(&mut self) {
        if let Some(w) = self.matrices.last() {
            if w.packed.is_some() {
                self.device.order_for(Need::PackedWeights);
            }
            let (first, later) = for_matrix(&self.device, w);
            order(&self.device, first);
            later.into_iter().for_each(|special| self.device.order_last(special));
        }
    }

    /// For attention, and for a step of one row as a whole.
    pub(crate) fn order_for_attention(&mut self, expected: ExpectedAttention, selected: Selected) {
        let ExpectedAttention { heads, compute, cache, block_size, shared, scores, .. } = expected;
        let types = AttentionTypes { rows: compute, cache };
        let dims = HeadDims { dim: heads.dim, v_dim: heads.v_dim };
        if shared {
            self.device.order_for(Need::LatentAttention);
        }
        if cache == KvDType::E4m3 {
            self.device.order_for(Need::NarrowCache);
        }
        if shared && compute.size() == 2 {
            order(&self.device, head_matmul_mma::specials(compute));
        }
        if selected.decode == AttentionBackend::Plain {
            return self.order_for_ranks();
        }
        if shared {
            let first = attention_latent::specials(selected.prefill == AttentionBackend::Hopper, compute);
            order(&self.device, first.iter().copied());
            self.first_needed.extend(first);
            return self.order_for_ranks();
        }
        // A first request needs them in this order.
        let arch = self.device.context.arch;
        let tile = HopperTile::of(dims, cache, block_size).filter(|_| selected.prefill == AttentionBackend::Hopper);
        let hopper = tile.map(|tile| (tile, scores));
        let mut first = attention_prefill::specials(hopper, types, dims);
        first.extend(attention_decode::specials(types, heads, self.device.context.shared_of_block));
        order(&self.device, first.iter().copied());
        self.first_needed.extend(first);
        self.order_for_ranks();
        if self.whole_steps != WholeSteps::Never {
            order(&self.device, whole_step::special(arch, expected));
        }
    }

    /// For sums over ranks, which are loaded when these meet.
    fn order_for_ranks(&self) {
        if self.ranks.is_some() {
            self.device.order_for(Need::Ranks);
            peers::specials().for_each(|special| self.device.order(special));
        }
    }

    /// Whether the kernels that [`Self::await_first`] loads are there.
    pub(crate) fn are_first_compiled(&self) -> bool {
        let mut needed = self.first_needed.iter();
        self.device.are_first_compiled() && needed.all(|special| self.device.is_compiled(*special, Duration::ZERO))
    }

    /// Loads the kernels that every start has, and attention's, for which it waits a while. Meanwhile it loads code
    /// that is there.
    pub(crate) fn await_first(&mut self) {
        const MOST: Duration = Duration::from_secs(10);
        self.device.bind();
        self.load_expected();
        self.device.load_first();
        let start = Instant::now();
        for special in std::mem::take(&mut self.first_needed) {
            if self.device.is_compiled(special, MOST.saturating_sub(start.elapsed())) {
                self.device.load(special);
            }
        }
    }
}

/// For products with experts: gates are nearly always SiLU.
pub(crate) fn order_experts(device: &Device, group: &Group) {
    device.order_for(Need::Experts);
    let arch = device.context.arch;
    for keep in [Keep::All, Keep::Gated(Activation::Silu.into())] {
        match &group.packed {
            Some(packed) => order(device, packed.specials(arch, keep)),
            None => order(device, experts::specials(arch, group, keep)),
        }
    }
}

fn order(device: &Device, specials: impl IntoIterator<Item = Special>) {
    if device.context.arch >= LOWEST {
        specials.into_iter().for_each(|special| device.order(special));
    }
}

/// What a first step needs, and what larger ones need.
fn for_matrix(device: &Device, w: &Weights) -> (Vec<Special>, Vec<Special>) {
    if w.packed.is_some() && w.compute.size() == 2 {
        let few = matmul_packed::specials(w, w.compute).into_iter();
        let some = matmul_packed_wgmma::specials(Facts::of(device), w, w.compute);
        let norms = matmul_packed_wgmma::takes(Facts::of(device), w);
        let norms = norms.then(|| norm_prepared::specials(w.compute, w.cols)).into_iter().flatten();
        let all = few.chain(some).chain(codes::specials(Facts::of(device), w, w.compute)).chain(norms);
        return (all.collect(), matmul_packed_wgmma::later_specials(Facts::of(device), w, w.compute));
    }
    if w.dtype.size() != 2 || w.compute != w.dtype {
        return Default::default();
    }
    let mut first = matmul_skinny::specials(device.context.arch, [w.rows, w.cols], w.dtype);
    let mut normed = matmul_split_k::normed_specials(Facts::of(device), w).into_iter();
    first.extend(normed.next());
    (first, normed.collect())
}
