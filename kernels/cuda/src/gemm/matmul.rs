//! Chooses who multiplies: `kernels/cuda/csrc/gemm/matmul_few.cu` for few rows, for other 16-bit weights and inputs whichever way is the fastest (cuBLASLt with one
//! of its algorithms, on Hopper `kernels/cuda/csrc/gemm/matmul_parts.cu` or `kernels/cuda/csrc/gemm/matmul_hopper.cu`), the plain kernel `kernels/cuda/csrc/gemm/matmul.cu` for the
//! rest.

use std::time::Instant;

use crate::autotune::measure;
use crate::autotune::tactics::{Way, Ways};
use crate::fusion::split_norm::{After, Before};
use crate::gemm::cublaslt::Blas;
use crate::gemm::matmul_e4m3;
use crate::gemm::matmul_few;
use crate::gemm::matmul_hopper;
use crate::gemm::matmul_parts;
use crate::gemm::product::{Gate, Product, rounds_once};
use crate::jit::specialization::LOWEST;
use crate::layers::elementwise::Function;
use crate::runtime::activations::{View, cast};
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::weights::Weights;
use kernels::ops::{Activation, DType, Epilogue};

/// Tile of the plain kernel, and its threads.
const TILE: usize = 64;
const THREADS: usize = 256;

/// What products need beside their operands.
pub(crate) struct Matmul {
    pub(crate) blas: Blas,
    pub(crate) ways: Ways,
    /// Inputs in another element type; grows to the largest.
    rounded: Option<Memory>,
}

impl Matmul {
    pub(crate) fn new(blas: Blas, ways: Ways) -> Self {
        Self { blas, ways, rounded: None }
    }

    pub(crate) fn run(&mut self, device: &mut Device, mut product: Product<'_>) {
        let Product { x, w, .. } = product;
        if x.rows == 0 {
            return;
        }
        if let Some(scales) = &w.scales {
            return matmul_e4m3::run(device, &product, scales);
        }
        if product.is_short() {
            product.x = if x.dtype == w.dtype { x } else { self.round(device, x, w) };
            if matmul_few::run(device, &product) || self.run_many(device, &mut product) {
                return;
            }
        }
        plain(device, &product);
    }

    /// Queues a product of 16-bit operands in the way that is the fastest; false where there is none.
    fn run_many(&mut self, device: &mut Device, product: &mut Product<'_>) -> bool {
        let (key, out) = (product.key(), product.out);
        let way = if self.is_small(device, product) { Way::Parts } else { self.way(device, product, None) };
        if run_own(device, way, product, None, out) {
            return true;
        }
        let wanted = if let Way::Library(algorithm) = way { Some(algorithm) } else { None };
        rounds_once(product) && {
            let operands = product.operands(device);
            self.blas.run(device, key, wanted, operands)
        }
    }

    /// The way of such a product; what is not measured yet is done in the usual one until it is (`ahead`).
    fn way(&mut self, device: &mut Device, product: &mut Product<'_>, gate: Option<Gate>) -> Way {
        let kind = product.kind(gate);
        self.ways.get(kind).unwrap_or_else(|| {
            let start = Instant::now();
            if self.ways.are_due(kind, start) {
                self.measure(device, product, gate);
                self.ways.rest(start.elapsed(), Instant::now());
            }
            self.ways.get(kind).unwrap_or(Way::Usual)
        })
    }

    /// Measures a kind of product on the operands of one that waits for the answer. One that is added to its output cannot be tried.
    fn measure(&mut self, device: &mut Device, product: &mut Product<'_>, gate: Option<Gate>) {
        if product.epilogue == Epilogue::Accumulate || !rounds_once(product) || !measure::is_possible(device) {
            return;
        }
        if gate.is_some() {
            // What it is compared with is the product in its own best way.
            self.way(device, product, None);
        }
        let rows = product.stretch(gate.map(|gate| gate.out));
        let gate = gate.map(|gate| Gate { out: View { rows: product.x.rows, ..gate.out }, ..gate });
        let (specials, most) = (self.specials(device, product, gate), self.ways.patience());
        if !specials.into_iter().all(|special| device.is_compiled(special, most)) {
            product.set_rows(rows);
            return;
        }
        let mut trial = self.trial(device, product, gate);
        while self.turn(device, &mut trial, product, gate) {}
        self.settle(trial);
        product.set_rows(rows);
    }

    /// Whether a product's way is known.
    pub(crate) fn is_known(&mut self, product: &Product<'_>, gate: Option<Gate>) -> bool {
        self.ways.get(product.kind(gate)).is_some()
    }

    /// Queues a product, with its gate if it has one.
    pub(crate) fn run_kind(&mut self, device: &mut Device, mut product: Product<'_>, gate: Option<Gate>) {
        match gate {
            Some(Gate { activation, out }) => drop(self.run_gated(device, &mut product, activation, out)),
            None => self.run(device, product),
        }
    }

    /// A product's input as it is multiplied: one of another type than the weights is rounded first, to memory that comes with the first such
    /// product.
    pub(crate) fn input(&self, x: View, w: &Weights) -> Option<View> {
        if x.dtype == w.dtype {
            return Some(x);
        }
        let fits = |memory: &&Memory| memory.bytes >= x.elements() * w.dtype.size();
        self.rounded.as_ref().filter(fits).map(|memory| View { ptr: memory.ptr, dtype: w.dtype, ..x })
    }

    /// Queues a product, with the rest of a norm before it, and the gate of its outputs, into `out`, without writing the product's own; false where it
    /// is none for that: nothing happens then.
    pub(crate) fn run_gated_after(
        &self,
        device: &mut Device,
        product: &Product<'_>,
        before: Before,
        (activation, out): (Activation, View),
    ) -> bool {
        if matmul_few::may_gate(device, product) {
            return matmul_few::run_gated(device, product, before, (activation, out));
        }
        matmul_hopper::may_gate(device, product)
            && out.dtype == product.w.dtype
            && self.ways.may_be(Way::Parts)
            && matmul_parts::fits(device, product)
            && matmul_parts::run_between(device, product, Some(activation.into()), out, (before, After::default()))
    }

    /// Queues a product and the gate of its outputs, into `out`: together where that is the fastest. What `product` leaves in its own output
    /// nobody may read. False where it is no product for that: nothing happens then.
    pub(crate) fn run_gated(
        &mut self,
        device: &mut Device,
        product: &mut Product<'_>,
        activation: Activation,
        out: View,
    ) -> bool {
        if matmul_few::may_gate(device, product)
            && matmul_few::run_gated(device, product, Before::default(), (activation, out))
        {
            return true;
        }
        if !matmul_hopper::may_gate(device, product) || out.dtype != product.w.dtype {
            return false;
        }
        let way = self.way(device, product, Some(Gate { activation, out }));
        run_own(device, way, product, Some(activation.into()), out)
    }

    /// Whether a product is `matmul_parts`'s without being measured.
    pub(crate) fn is_small(&self, device: &Device, product: &Product<'_>) -> bool {
        self.ways.may_be(Way::Parts) && matmul_parts::is_small(device, product)
    }

    /// Whether a product may be added to a residual and do a part of the norm that follows.
    pub(crate) fn may_precede_norm(&self, device: &Device, product: &Product<'_>) -> bool {
        matmul_few::may_add(device, product) || (self.ways.may_be(Way::Parts) && matmul_parts::may_add(device, product))
    }

    /// Whether a product may do what is left of a norm of its input.
    pub(crate) fn may_follow_norm(&self, device: &Device, product: &Product<'_>) -> bool {
        matmul_few::fits(device, product) || (self.ways.may_be(Way::Parts) && matmul_parts::fits(device, product))
    }

    /// Queues a product with parts of the norms before and after it; false where it is none for that: nothing happens then.
    pub(crate) fn run_between(&self, device: &mut Device, product: &Product<'_>, before: Before, after: After) -> bool {
        self.may_follow_norm(device, product)
            && (matmul_few::run_between(device, product, before, after)
                || matmul_parts::run_between(device, product, None, product.out, (before, after)))
    }

    /// Whether it pays to wait for what a product may be added to: one launch less to read and write what it gave.
    pub(crate) fn may_add(device: &Device, product: &Product<'_>) -> bool {
        /// Of fewer rows the sums cost as little to read again as the residual does beside a product.
        const LEAST_ROWS: usize = 129;
        let Product { x, w, epilogue, out, .. } = product;
        device.context.arch >= LOWEST
            && w.dtype.size() == 2
            && x.dtype == w.dtype
            && out.dtype == DType::F32
            && *epilogue == Epilogue::Store
            && x.rows >= LEAST_ROWS
    }

    /// Queues a product that [`Self::may_add`] and adds it to `sum` instead of writing it to its own output, whose content is lost.
    pub(crate) fn run_added(&mut self, device: &mut Device, mut product: Product<'_>, sum: View) {
        // Measured, if that is to be now, where it harms nobody.
        self.way(device, &mut product, None);
        self.run(device, Product { epilogue: Epilogue::Accumulate, out: sum, ..product });
    }

    /// `x` in the weights' element type.
    fn round(&mut self, device: &mut Device, x: View, w: &Weights) -> View {
        let bytes = x.elements() * w.dtype.size();
        if self.rounded.as_ref().is_none_or(|memory| memory.bytes < bytes) {
            self.rounded = None;
            self.rounded = device.allocate(bytes.next_power_of_two(), "a product's rounded input");
        }
        let ptr = self.rounded.as_ref().map_or(0, |memory| memory.ptr);
        cast(device, (x.ptr, x.dtype), (ptr, w.dtype), x.elements());
        View { ptr, dtype: w.dtype, most_rows: x.rows, ..x }
    }
}

/// Queues a product, gated where there is a function, by one of our own kernels; false where the way is none of them or cannot be taken.
pub(crate) fn run_own(
    device: &mut Device,
    way: Way,
    product: &Product<'_>,
    function: Option<Function>,
    out: View,
) -> bool {
    match way {
        Way::Own => matmul_hopper::fits(device, product) && matmul_hopper::run(device, product, function, out),
        Way::Parts => matmul_parts::fits(device, product) && matmul_parts::run(device, product, function, out),
        Way::Usual | Way::Library(_) => false,
    }
}

fn plain(device: &mut Device, product: &Product<'_>) {
    let Product { x, w, bias, epilogue, out } = product;
    let shape = Shape { grid: [w.rows.div_ceil(TILE), x.rows.div_ceil(TILE)], block: THREADS, shared: 0 };
    let bias = bias.as_ref().map_or(0, |bias| bias.ptr());
    let [rows, n, k] = [x.rows, w.rows, w.cols].map(|number| number as u32);
    let accumulate = u32::from(*epilogue == Epilogue::Accumulate);
    let name = Name::of("matmul", &[x.dtype, w.dtype, out.dtype]);
    device.launch(name, shape, args![x.ptr, w.ptr(), bias, out.ptr, rows, n, k, accumulate]);
}
