//! The GEMM kernels, in the order in which they are asked: the first one that takes a product runs it.
//!
//! A kernel is one file of this folder and one row of [`KERNELS`]. Selection looks at [`Facts`] of the device, the
//! product and what is fused with it, so it is tested without a GPU. Where several kernels could be the fastest, the
//! autotuner decides ([`Selection::Tuned`]).

use crate::autotune::tactics::Tactic;
use crate::fusion::split_norm::{After, Before};
use crate::gemm::codes::CodedInput;
use crate::gemm::product::{Activated, Gate, MANY_ROWS, OutputFunction, Product, rounds_once};
use crate::gemm::{
    codes, matmul, matmul_codes, matmul_packed, matmul_packed_wgmma, matmul_skinny, matmul_split_k, matmul_wgmma,
};
use crate::jit::specialization::Special;
use crate::runtime::arch::Arch;
use crate::runtime::device::Device;
use kernels::ops::DType;

/// What selection needs to know of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Facts {
    pub(crate) arch: Arch,
    pub(crate) multiprocessors: usize,
    /// Bytes of shared memory that a block may ask for.
    pub(crate) shared_of_block: usize,
}

impl Facts {
    pub(crate) fn of(device: &Device) -> Self {
        let context = &device.context;
        let (arch, multiprocessors, shared_of_block) = (context.arch, context.multiprocessors, context.shared_of_block);
        Self { arch, multiprocessors, shared_of_block }
    }
}

/// What a kernel does beside the product.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Fused {
    /// The rest of a norm of the input.
    pub(crate) before: Option<Before>,
    /// What gates the outputs or is taken of each, written instead of them.
    pub(crate) gate: Option<Gate>,
    /// The first part of the norm after it.
    pub(crate) after: Option<After>,
}

impl Fused {
    pub(crate) fn gate(gate: Option<Gate>) -> Self {
        Self { gate, ..Self::default() }
    }

    pub(crate) fn has_norms(&self) -> bool {
        self.before.is_some() || self.after.is_some()
    }

    /// Whether what is gated is to be written as the next product reads it, too.
    fn prepares(&self) -> bool {
        self.gate.is_some_and(|gate| gate.prepared.is_some())
    }

    fn is_nothing(&self) -> bool {
        self.gate.is_none() && !self.has_norms()
    }

    /// Whether an activation is taken of each output, which few kernels do.
    fn activates(&self) -> bool {
        self.gate.is_some_and(|gate| gate.of == Activated::Each)
    }

    /// Of the outputs.
    pub(crate) fn function(&self) -> Option<OutputFunction> {
        self.gate.map(|gate| gate.function())
    }
}

/// A row of the table.
pub(crate) struct GemmKernel {
    /// For people.
    #[cfg_attr(not(test), allow(dead_code, reason = "tests name kernels by it"))]
    pub(crate) name: &'static str,
    /// Whether the kernel can compute such a product, and does all that is fused with it.
    pub(crate) fits: fn(Facts, &Product<'_>, &Fused) -> bool,
    pub(crate) selection: Selection,
    pub(crate) launch: Launch,
}

/// How a kernel that fits is selected.
#[derive(Clone, Copy)]
pub(crate) enum Selection {
    /// Always.
    Always,
    /// Where the autotuner says so.
    Tuned(Tuned),
}

/// A kernel that the autotuner measures.
#[derive(Clone, Copy)]
pub(crate) struct Tuned {
    /// What the autotuner calls it.
    pub(crate) tactic: Tactic,
    /// Whether measuring it is worth the while, for a product that fits or its gated form.
    pub(crate) competes: fn(Facts, &Product<'_>, Option<Gate>) -> bool,
    /// Whether products of its kind, until they are measured, are taken to be the fastest this way.
    pub(crate) presumed: fn(Facts, &Product<'_>, Option<Gate>) -> bool,
    /// The kernel as it is compiled for a shape.
    pub(crate) specialise: fn(Facts, &Product<'_>, Option<Gate>) -> Option<Special>,
}

/// How a kernel is launched; false where it cannot be, for example because it does not compile.
#[derive(Clone, Copy)]
pub(crate) enum Launch {
    Kernel(fn(&mut Device, &Product<'_>, &Fused) -> bool),
    /// The same with an input of 8-bit codes (`codes::quantize`).
    Coded(fn(&mut Device, &Product<'_>, &Fused, &CodedInput) -> bool),
    /// The same with an input in the order of packed weights (`matmul_packed_wgmma::reorder`).
    Reordered(fn(&mut Device, &Product<'_>, &Fused) -> bool),
    /// cuBLASLt, with the algorithm that the autotuner found or its own first choice.
    Library,
}

/// Every GEMM kernel, the most special first.
pub(crate) const KERNELS: &[GemmKernel] =
    &[CODES, PACKED_CODES, WGMMA_CODES, PACKED_WGMMA, PACKED, PACKED_PLAIN, SKINNY, WGMMA, SPLIT_K, CUBLASLT, SIMT];

/// Few rows of 8-bit codes with such weights, on Hopper, where parts of `k` keep more multiprocessors busy.
const CODES: GemmKernel = GemmKernel {
    name: "codes",
    fits: |facts, product, fused| {
        let plain = !fused.has_norms() && !fused.activates() && fused.gate.is_none();
        plain && matmul_codes::fits(facts, product) && codes::fits_packed(facts, product, None)
    },
    selection: Selection::Always,
    launch: Launch::Coded(|device, product, _, x| matmul_codes::run(device, product, x)),
};

/// Some rows of 8-bit codes with such weights, on Hopper.
const PACKED_CODES: GemmKernel = GemmKernel {
    name: "packed-codes",
    fits: |facts, product, fused| {
        !fused.has_norms() && !fused.activates() && codes::fits_packed(facts, product, fused.gate)
    },
    selection: Selection::Always,
    launch: Launch::Coded(|device, product, fused, x| matmul_packed_wgmma::run_codes(device, product, fused.gate, x)),
};

/// Many rows of the same.
const WGMMA_CODES: GemmKernel = GemmKernel {
    name: "wgmma-codes",
    fits: |facts, product, fused| {
        let plain = !fused.has_norms() && !fused.prepares() && !fused.activates();
        plain && codes::fits_many(facts, product, fused.gate)
    },
    selection: Selection::Always,
    launch: Launch::Coded(|device, product, fused, x| codes::run_many(device, product, fused.gate, x)),
};

/// More rows with weights of 4 or 8 bits, on Hopper's warpgroup instructions.
const PACKED_WGMMA: GemmKernel = GemmKernel {
    name: "packed-wgmma",
    fits: |facts, product, fused| match fused {
        _ if fused.has_norms() || fused.activates() => false,
        Fused { gate: Some(gate), .. } => {
            matmul_packed_wgmma::may_gate(facts, product) && gate.out.dtype == product.x.dtype
        }
        _ => matmul_packed_wgmma::fits(facts, product),
    },
    selection: Selection::Always,
    launch: Launch::Reordered(|device, product, fused| matmul_packed_wgmma::run(device, product, fused.gate)),
};

/// Few rows with weights of 4 or 8 bits, at the speed of reading them.
const PACKED: GemmKernel = GemmKernel {
    name: "packed",
    fits: |facts, product, fused| match fused {
        _ if fused.has_norms() || fused.prepares() || fused.activates() => false,
        Fused { gate: Some(gate), .. } => matmul_packed::may_gate(facts, product) && gate.out.dtype == product.x.dtype,
        _ => matmul_packed::fits(facts, product),
    },
    selection: Selection::Always,
    launch: Launch::Kernel(|device, product, fused| matmul_packed::run(device, product, fused.gate)),
};

/// f32 with weights of 4 or 8 bits, on no tensor core.
const PACKED_PLAIN: GemmKernel = GemmKernel {
    name: "packed-plain",
    fits: |_, product, fused| product.w.packed.is_some() && product.x.dtype == DType::F32 && fused.is_nothing(),
    selection: Selection::Always,
    launch: Launch::Kernel(|device, product, _| matmul_packed::plain(device, product)),
};

/// Few rows, at the speed of reading the weights.
const SKINNY: GemmKernel = GemmKernel {
    name: "skinny",
    fits: |facts, product, fused| match fused.gate {
        _ if fused.activates() => false,
        Some(gate) => matmul_skinny::may_gate(facts, product) && gate.out.dtype == product.w.dtype,
        None => matmul_skinny::fits(facts, product),
    },
    selection: Selection::Always,
    launch: Launch::Kernel(|device, product, Fused { before, gate, after }| {
        let (before, after) = (before.unwrap_or_default(), after.unwrap_or_default());
        match gate {
            &Some(gate) => matmul_skinny::run_gated(device, product, before, gate),
            None => matmul_skinny::run_between(device, product, before, after),
        }
    }),
};

/// Many rows on Hopper's warpgroup instructions.
const WGMMA: GemmKernel = GemmKernel {
    name: "wgmma",
    fits: |facts, product, fused| match fused {
        _ if fused.has_norms() => false,
        Fused { gate: Some(gate), .. } => matmul_wgmma::takes(facts, product, gate),
        _ => matmul_wgmma::fits(facts, product),
    },
    selection: Selection::Tuned(Tuned {
        tactic: Tactic::Wgmma,
        competes: |facts, product, gate| {
            gate.is_some() || (product.x.rows > MANY_ROWS && matmul_wgmma::fits(facts, product))
        },
        presumed: |facts, product, gate| {
            gate.is_some_and(|gate| {
                matmul_wgmma::takes(facts, product, &gate) && matmul_wgmma::wastes_little(facts, product, gate)
            })
        },
        specialise: |facts, product, gate| {
            let out = gate.map_or(product.out, |gate| gate.out);
            Some(matmul_wgmma::special(facts, product, gate.map(|gate| gate.function()), out))
        },
    }),
    launch: Launch::Kernel(|device, product, fused| {
        let out = fused.gate.map_or(product.out, |gate| gate.out);
        matmul_wgmma::run(device, product, fused.function(), out)
    }),
};

/// 17 to 128 rows on Hopper: operands swapped, and `k` split over the blocks of a cluster.
const SPLIT_K: GemmKernel = GemmKernel {
    name: "split-k",
    fits: |facts, product, fused| {
        let takes = |gate: Gate| matmul_wgmma::takes(facts, product, &gate);
        matmul_split_k::fits(facts, product) && fused.gate.is_none_or(takes)
    },
    selection: Selection::Tuned(Tuned {
        tactic: Tactic::SplitK,
        competes: |facts, product, _| matmul_split_k::fits(facts, product),
        presumed: |_, product, gate| gate.is_none() && matmul_split_k::is_long(product),
        specialise: |facts, product, gate| matmul_split_k::special(facts, product, gate.map(|gate| gate.function())),
    }),
    launch: Launch::Kernel(matmul_split_k::run_between),
};

/// All other products of 16 bits.
const CUBLASLT: GemmKernel = GemmKernel {
    name: "cublaslt",
    fits: |_, product, fused| {
        let is_16_bit = product.is_short() && product.x.dtype == product.w.dtype;
        is_16_bit && rounds_once(product) && fused.is_nothing()
    },
    selection: Selection::Always,
    launch: Launch::Library,
};

/// Any product, on no tensor core.
const SIMT: GemmKernel = GemmKernel {
    name: "simt",
    fits: |_, product, fused| product.w.packed.is_none() && fused.is_nothing(),
    selection: Selection::Always,
    launch: Launch::Kernel(|device, product, _| {
        matmul::simt(device, product);
        true
    }),
};

impl GemmKernel {
    /// Whether the autotuner is to be asked before this kernel is launched.
    pub(crate) fn asks(&self) -> bool {
        matches!(self.selection, Selection::Tuned(_)) || matches!(self.launch, Launch::Library)
    }

    /// Whether a kernel that fits is to be launched, where the autotuner, if it was asked, gave this tactic.
    pub(crate) fn is_selected(&self, tactic: Option<Tactic>) -> bool {
        match self.selection {
            Selection::Always => true,
            Selection::Tuned(tuned) => tactic == Some(tuned.tactic),
        }
    }
}

/// Kernels that the autotuner measures for a product, beside cuBLASLt's algorithms.
pub(crate) fn candidates(facts: Facts, product: &Product<'_>, gate: Option<Gate>) -> impl Iterator<Item = Tuned> {
    let tuned = KERNELS.iter().filter_map(|kernel| match kernel.selection {
        Selection::Tuned(tuned) => Some(tuned),
        Selection::Always => None,
    });
    tuned.filter(move |tuned| (tuned.competes)(facts, product, gate))
}

/// The kernel that is taken to be the fastest for a product until its kind is measured, if that is one of ours.
pub(crate) fn presumed(facts: Facts, product: &Product<'_>, gate: Option<Gate>) -> Option<Tuned> {
    candidates(facts, product, gate).find(|tuned| (tuned.presumed)(facts, product, gate))
}

/// Launches the kernel of a tactic; false where the tactic is none of a kernel of ours, or it cannot be launched.
pub(crate) fn launch(device: &mut Device, tactic: Tactic, product: &Product<'_>, fused: &Fused) -> bool {
    let facts = Facts::of(device);
    KERNELS.iter().any(|kernel| match (kernel.selection, kernel.launch) {
        (Selection::Tuned(tuned), Launch::Kernel(launch)) => {
            tuned.tactic == tactic && (kernel.fits)(facts, product, fused) && launch(device, product, fused)
        }
        _ => false,
    })
}

#[cfg(test)]
mod tests;
