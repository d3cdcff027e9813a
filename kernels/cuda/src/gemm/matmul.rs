//! Runs a GEMM: asks the table of kernels (`table`) which one takes it, and the autotuner where that is measured.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUdeviceptr;

use crate::autotune::measure;
use crate::autotune::tactics::{GemmProblem, Tactic, TacticCache};
use crate::autotune::trial::Trial;
use crate::fusion::split_norm::{After, Before};
use crate::gemm::codes::{self, CodedInput};
use crate::gemm::cublaslt::Blas;
use crate::gemm::prepared::{self, Buffer, InputForm, Prepared, PreparedRows};
use crate::gemm::product::{Gate, Product, rounds_once};
use crate::gemm::table::{self, Facts, Fused, KERNELS, Launch, Tuned};
use crate::gemm::{matmul_packed, matmul_packed_wgmma, matmul_skinny, matmul_split_k, matmul_wgmma};
use crate::jit::specialization::LOWEST;
use crate::layers::lora_mma::GateAdapters;
use crate::runtime::activations::{Elements, View, cast};
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::weights::Weights;
use kernels::ops::{DType, Epilogue, WaitFor};

/// Trials that steps have begun, at most.
const MOST_TRIALS: usize = 64;
/// Tile of the SIMT kernel, and its threads.
const TILE: usize = 64;
const THREADS: usize = 256;

/// What products need beside their operands.
pub(crate) struct Matmul {
    pub(crate) blas: Blas,
    pub(crate) tactics: TacticCache,
    /// Trials that steps have begun, and later ones go on with.
    pub(crate) trials: HashMap<GemmProblem, Box<Trial>>,
    /// Inputs in another element type; grows to the largest.
    rounded: Option<Memory>,
    /// A packed matrix as 16-bit numbers, for products of many rows; as large as the largest.
    unpacked: Option<Arc<Memory>>,
    /// Inputs in the order in which they are multiplied with packed weights; as large as the largest.
    reordered: Option<Memory>,
    /// What products gate, as the next ones read it; as large as the largest.
    gated: Option<Memory>,
}

impl Matmul {
    pub(crate) fn new(blas: Blas, tactics: TacticCache) -> Self {
        Self { blas, tactics, trials: HashMap::new(), rounded: None, unpacked: None, reordered: None, gated: None }
    }

    /// Queues a product.
    pub(crate) fn run(&mut self, device: &mut Device, mut product: Product<'_>) {
        let Product { x, w, .. } = product;
        if x.rows == 0 {
            return;
        }
        if product.is_short() && x.dtype != w.dtype {
            product.x = self.round(device, x, w);
        }
        if !self.launch(device, &mut product, &Fused::default()) {
            self.run_unpacked(device, product);
        }
    }

    /// Makes room for what products with a packed matrix need beside it.
    pub(crate) fn reserve(&mut self, device: &mut Device, w: &Weights) {
        self.reserve_unpacked(device, w);
        let facts = Facts::of(device);
        let what = "inputs of products with quantized weights";
        device.reserve(&mut self.reordered, matmul_packed_wgmma::reordered_bytes(facts, w), what);
        device.reserve(&mut self.gated, prepared::gated_bytes(facts, w), what);
    }

    /// Makes room for a packed matrix as 16-bit numbers.
    fn reserve_unpacked(&mut self, device: &mut Device, w: &Weights) {
        let bytes = (w.rows * w.cols * w.compute.size()).max(codes::room_bytes(Facts::of(device), w));
        let fits = |memory: &Arc<Memory>| memory.bytes >= bytes;
        if w.packed.is_some() && w.compute.size() == 2 && !self.unpacked.as_ref().is_some_and(fits) {
            self.unpacked = None;
            self.unpacked = device.allocate(bytes, "weights of a product of many rows").map(Arc::new);
        }
    }

    /// Makes of a product's input what packed weights are multiplied by.
    fn prepare(&mut self, device: &mut Device, product: &mut Product<'_>) {
        let (x, w) = (product.x, product.w);
        let Some(packed) = &w.packed else { return };
        let dtype = if x.dtype.size() == 2 { x.dtype } else { w.compute };
        let rounding = codes::rounding(Facts::of(device), product, packed);
        if !matmul_packed::needs_input(packed, rounding, x, dtype) {
            return;
        }
        let bytes = x.elements() * dtype.size();
        let ptr = self.reserve_rounded(device, bytes);
        let to = View { ptr, dtype, most_rows: x.rows, ..x };
        matmul_packed::prepare(device, packed, rounding, x, to);
        product.x = to;
    }

    /// Queues a product of many rows with packed weights: they are written as 16-bit numbers first.
    fn run_unpacked(&mut self, device: &mut Device, mut product: Product<'_>) {
        let (w, dtype) = (product.w, product.x.dtype);
        self.reserve_unpacked(device, w);
        let (Some(packed), Some(memory)) = (&w.packed, self.unpacked.clone()) else { return };
        packed.unpack(device, memory.ptr, dtype);
        let numbers = Weights { memory: Some(memory), dtype, compute: dtype, packed: None, ..*w };
        let mut product = Product { w: &numbers, bias: product.bias.take(), ..product };
        self.launch(device, &mut product, &Fused::default());
    }

    /// Queues a product and what is fused with it, by the first kernel of the table that takes both; false where none
    /// does: nothing happens then, but that the input may be prepared.
    fn launch(&mut self, device: &mut Device, product: &mut Product<'_>, fused: &Fused) -> bool {
        let (facts, mut tactic, mut is_prepared) = (Facts::of(device), None, fused.has_norms());
        for kernel in KERNELS {
            let reads_form = match kernel.launch {
                Launch::Coded(_) => true,
                Launch::Reordered(_) => product.is_reordered(),
                Launch::Kernel(_) | Launch::Library => false,
            };
            if !is_prepared && !reads_form {
                self.prepare(device, product);
                (product.prepared, is_prepared) = (None, true);
            }
            if !(kernel.fits)(facts, product, fused) {
                continue;
            }
            if tactic.is_none() && kernel.asks() {
                tactic = Some(self.tactic(device, product, fused));
            }
            let launched = kernel.is_selected(tactic)
                && match kernel.launch {
                    Launch::Kernel(launch) => launch(device, product, fused),
                    Launch::Coded(launch) => {
                        let input = self.coded(device, product);
                        input.is_some_and(|input| launch(device, product, fused, &input))
                    }
                    Launch::Reordered(launch) => {
                        self.reordered(device, product, |device, product| launch(device, product, fused))
                    }
                    Launch::Library => self.run_library(device, product, tactic),
                };
            if launched {
                return true;
            }
        }
        false
    }

    /// A product's input as codes: queues the rounding, unless it was rounded where it was made.
    fn coded(&mut self, device: &mut Device, product: &mut Product<'_>) -> Option<CodedInput> {
        self.reserve_unpacked(device, product.w);
        let room = self.unpacked.as_ref()?.ptr;
        if let Some(prepared) = product.prepared.take_if(|prepared| prepared.form.is_codes()) {
            return codes::quantized(product, self.address(device, product, prepared)?, room);
        }
        let to = self.reserve_rounded(device, codes::input_bytes(product.x));
        codes::quantize(device, product, to, room)
    }

    /// Where a kernel that makes a product's input is to write it as the product reads it, too; none without memory.
    pub(crate) fn prepared_rows(
        &mut self,
        device: &mut Device,
        product: &Product<'_>,
        prepared: Prepared,
    ) -> Option<PreparedRows> {
        let packed = product.w.packed.as_ref()?;
        let to = self.address(device, product, prepared)?;
        Some(PreparedRows::new(prepared.form, to, packed, product.x))
    }

    /// Queues a pass that does what the kernel did not that made the input.
    pub(crate) fn write_prepared(&mut self, device: &mut Device, product: &Product<'_>, prepared: Prepared) {
        if let Some(to) = self.address(device, product, prepared) {
            prepared.form.write(device, product, to);
        }
    }

    /// Where a product's prepared input lies; none without memory.
    fn address(&mut self, device: &mut Device, product: &Product<'_>, prepared: Prepared) -> Option<CUdeviceptr> {
        let bytes = prepared.form.bytes(product.x);
        let address = match (prepared.buffer, prepared.form) {
            (Buffer::Usual, InputForm::Codes(_)) => self.reserve_rounded(device, bytes),
            (Buffer::Usual, InputForm::Reordered) => self.reordered.as_ref()?.ptr,
            (Buffer::Gated, _) => device.reserve(&mut self.gated, bytes, "an input of a quantized product"),
        };
        (address != 0).then_some(address)
    }

    /// Launches a kernel that reads its input in the order of packed weights.
    fn reordered(
        &mut self,
        device: &mut Device,
        product: &mut Product<'_>,
        launch: impl FnOnce(&mut Device, &Product<'_>) -> bool,
    ) -> bool {
        let x = product.x;
        let is_there = product.is_reordered();
        let usual = Prepared { form: InputForm::Reordered, buffer: Buffer::Usual };
        let prepared = product.prepared.take().filter(|_| is_there).unwrap_or(usual);
        let Some(at) = self.address(device, product, prepared) else { return false };
        product.x = matmul_packed_wgmma::reordered(x, at);
        if !is_there {
            matmul_packed_wgmma::reorder(device, x, at);
        }
        let launched = launch(device, product);
        product.x = x;
        launched
    }

    fn run_library(&mut self, device: &mut Device, product: &mut Product<'_>, tactic: Option<Tactic>) -> bool {
        let wanted = if let Some(Tactic::Library(algorithm)) = tactic { Some(algorithm) } else { None };
        let (key, operands) = (product.key(), product.operands(device));
        self.blas.run(device, key, wanted, operands)
    }

    /// The tactic for a product, without measuring where the shape decides.
    fn tactic(&mut self, device: &mut Device, product: &mut Product<'_>, fused: &Fused) -> Tactic {
        if fused.has_norms() {
            // One kernel alone does parts of norms, if it may.
            return if self.tactics.may_be(Tactic::SplitK) { Tactic::SplitK } else { Tactic::Default };
        }
        if fused.gate.is_none() && self.is_small(device, product) {
            return Tactic::SplitK;
        }
        self.tuned(device, product, fused.gate)
    }

    /// The tactic of such products; what is presumed of them until they are measured (`autotune::background`).
    fn tuned(&mut self, device: &mut Device, product: &mut Product<'_>, gate: Option<Gate>) -> Tactic {
        let problem = product.problem(gate);
        self.tactics.get(problem).unwrap_or_else(|| {
            let start = Instant::now();
            if self.tactics.are_due(problem, start) {
                self.measure(device, product, gate);
                device.note_wait(WaitFor::Tuning, start, || problem.to_string());
            }
            self.tactics.get(problem).unwrap_or_else(|| presumed(device, product, gate))
        })
    }

    /// Measures on the operands of a product that waits for the answer. One that is added to its output cannot be
    /// tried.
    fn measure(&mut self, device: &mut Device, product: &mut Product<'_>, gate: Option<Gate>) {
        if product.epilogue == Epilogue::Accumulate || !rounds_once(product) || !measure::is_possible(device) {
            return;
        }
        if gate.is_some() {
            // It is compared with the ungated product's best tactic.
            self.tuned(device, product, None);
            if !self.is_known(product, None) {
                return;
            }
        }
        let rows = product.stretch(gate.map(|gate| gate.out));
        let gate = gate.map(|gate| Gate { out: View { rows: product.x.rows, ..gate.out }, ..gate });
        let (specials, most) = (self.specials(device, product, gate), self.tactics.patience());
        if specials.into_iter().all(|special| device.is_compiled(special, most)) {
            self.try_tactics(device, product, gate);
        }
        product.set_rows(rows);
    }

    /// Goes on with a problem's trial, for as long as a step may be held up by it.
    fn try_tactics(&mut self, device: &mut Device, product: &mut Product<'_>, gate: Option<Gate>) {
        let problem = product.problem(gate);
        if !self.trials.contains_key(&problem) && self.trials.len() >= MOST_TRIALS {
            return;
        }
        // What was queued before would be timed with the first turn, and is not held up.
        device.synchronize();
        let start = Instant::now();
        let mut trial = match self.trials.remove(&problem) {
            Some(trial) => trial,
            None => Box::new(self.trial(device, product, gate)),
        };
        loop {
            if !self.turn(device, &mut trial, product, gate) {
                self.settle(*trial);
                break;
            }
            if self.tactics.is_enough(start.elapsed()) {
                self.trials.insert(problem, trial);
                break;
            }
        }
        self.tactics.rest(start.elapsed(), Instant::now());
    }

    /// Whether a product's tactic is known.
    pub(crate) fn is_known(&mut self, product: &Product<'_>, gate: Option<Gate>) -> bool {
        self.tactics.get(product.problem(gate)).is_some()
    }

    /// Queues a product, with its gate if it has one.
    pub(crate) fn run_kind(&mut self, device: &mut Device, mut product: Product<'_>, gate: Option<Gate>) {
        match gate {
            Some(gate) => drop(self.run_gated(device, &mut product, gate)),
            None => self.run(device, product),
        }
    }

    /// A product's input in the type that is multiplied: one of another type than the weights is rounded first, to
    /// memory that comes with the first such product.
    pub(crate) fn input(&self, x: View, w: &Weights) -> Option<View> {
        if x.dtype == w.dtype {
            return Some(x);
        }
        let fits = |memory: &&Memory| memory.bytes >= x.elements() * w.dtype.size();
        self.rounded.as_ref().filter(fits).map(|memory| View { ptr: memory.ptr, dtype: w.dtype, ..x })
    }

    /// Queues a product, with the rest of a norm before it, and the gate of its outputs, without writing the product's
    /// own; false where no kernel does all of that: nothing happens then.
    pub(crate) fn run_gated_after(
        &mut self,
        device: &mut Device,
        product: &mut Product<'_>,
        before: Before,
        gate: Gate,
    ) -> bool {
        let fused = Fused { before: Some(before), gate: Some(gate), after: None };
        self.launch(device, product, &fused)
    }

    /// Queues a product and the gate of its outputs: in one kernel where that is the fastest. The content
    /// of `product`'s own output is undefined afterwards. False where no kernel does that: nothing happens then.
    pub(crate) fn run_gated(&mut self, device: &mut Device, product: &mut Product<'_>, gate: Gate) -> bool {
        self.launch(device, product, &Fused::gate(Some(gate)))
    }

    /// Queues a product of few rows, what adapters add to it, and the gate of both, without writing the product's own
    /// output; false where no kernel does that: nothing happens then.
    pub(crate) fn run_gated_adapted(
        &self,
        device: &mut Device,
        product: &Product<'_>,
        gate: Gate,
        adapters: GateAdapters,
    ) -> bool {
        let facts = Facts::of(device);
        if product.w.packed.is_some() || [gate.out.dtype, adapters.half.dtype] != [product.w.dtype; 2] {
            return false;
        }
        if matmul_skinny::may_gate(facts, product) {
            return product.x.rows <= matmul_skinny::MOST_ADAPTED
                && matmul_skinny::run_adapted(device, product, gate, adapters);
        }
        self.tactics.may_be(Tactic::SplitK)
            && matmul_split_k::fits(facts, product)
            && matmul_wgmma::may_gate(facts, product)
            && matmul_split_k::run_adapted(device, product, gate, adapters)
    }

    /// Queues a product with parts of the norms before and after it; false where no kernel does that: nothing happens
    /// then.
    pub(crate) fn run_between(
        &mut self,
        device: &mut Device,
        product: &mut Product<'_>,
        before: Before,
        after: After,
    ) -> bool {
        let fused = Fused { before: Some(before), gate: None, after: Some(after) };
        self.launch(device, product, &fused)
    }

    /// Whether a product is the split-K kernel's without being measured.
    pub(crate) fn is_small(&self, device: &Device, product: &Product<'_>) -> bool {
        self.tactics.may_be(Tactic::SplitK) && matmul_split_k::is_small(Facts::of(device), product)
    }

    /// Whether some kernel may take an activation of a product's outputs.
    pub(crate) fn may_activate(device: &Device, product: &Product<'_>) -> bool {
        matmul_wgmma::may_activate(Facts::of(device), product)
    }

    /// Whether some kernel may gate a product's outputs.
    pub(crate) fn may_gate(device: &Device, product: &Product<'_>) -> bool {
        let facts = Facts::of(device);
        matmul_packed::may_gate(facts, product)
            || matmul_packed_wgmma::may_gate(facts, product)
            || matmul_skinny::may_gate(facts, product)
            || matmul_wgmma::may_gate(facts, product)
            || codes::may_gate_many(facts, product)
    }

    /// Whether a product may be added to a residual and do a part of the norm that follows.
    pub(crate) fn may_precede_norm(&self, device: &Device, product: &Product<'_>) -> bool {
        let facts = Facts::of(device);
        matmul_skinny::may_add(facts, product)
            || (self.tactics.may_be(Tactic::SplitK) && matmul_split_k::may_add(facts, product))
    }

    /// Whether a product may do what is left of a norm of its input.
    pub(crate) fn may_follow_norm(&self, device: &Device, product: &Product<'_>) -> bool {
        let facts = Facts::of(device);
        matmul_skinny::fits(facts, product)
            || (self.tactics.may_be(Tactic::SplitK) && matmul_split_k::fits(facts, product))
    }

    /// Whether it pays to wait for what a product may be added to: one launch less to read and write its result.
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

    /// Queues a product that [`Self::may_add`] and adds it to `sum` instead of writing it to its own output, whose
    /// content is lost.
    pub(crate) fn run_added(&mut self, device: &mut Device, mut product: Product<'_>, sum: View) {
        // Measured, if that is to be now, where it harms nothing.
        self.tuned(device, &mut product, None);
        self.run(device, Product { epilogue: Epilogue::Accumulate, out: sum, ..product });
    }

    /// `x` in the weights' element type.
    fn round(&mut self, device: &mut Device, x: View, w: &Weights) -> View {
        let ptr = self.reserve_rounded(device, x.elements() * w.dtype.size());
        cast(device, x.into(), Elements { ptr, dtype: w.dtype }, x.elements());
        View { ptr, dtype: w.dtype, most_rows: x.rows, ..x }
    }

    /// Room for an input in another element type.
    fn reserve_rounded(&mut self, device: &mut Device, bytes: usize) -> CUdeviceptr {
        device.reserve(&mut self.rounded, bytes.next_power_of_two(), "a product's rounded input")
    }
}

/// The tactic of a product whose kind was not measured: a kernel of ours only once it is compiled.
fn presumed(device: &Device, product: &Product<'_>, gate: Option<Gate>) -> Tactic {
    let facts = Facts::of(device);
    let is_compiled = |tuned: &Tuned| {
        let special = (tuned.specialise)(facts, product, gate);
        special.is_some_and(|special| device.is_compiled(special, Duration::ZERO))
    };
    table::presumed(facts, product, gate).filter(is_compiled).map_or(Tactic::Default, |tuned| tuned.tactic)
}

/// Launches the kernel of a tactic, if it is one of ours.
pub(crate) fn run_own(device: &mut Device, tactic: Tactic, product: &Product<'_>, gate: Option<Gate>) -> bool {
    table::launch(device, tactic, product, &Fused::gate(gate))
}

/// Queues any product by the SIMT kernel.
pub(crate) fn simt(device: &mut Device, product: &Product<'_>) {
    let Product { x, w, bias, epilogue, out, .. } = product;
    let shape = Shape { grid: [w.rows.div_ceil(TILE), x.rows.div_ceil(TILE)], block: THREADS, shared: 0 };
    let bias = bias.as_ref().map_or(0, |bias| bias.ptr());
    let [rows, n, k] = [x.rows, w.rows, w.cols].map(|number| number as u32);
    let accumulate = u32::from(*epilogue == Epilogue::Accumulate);
    let name = Name::of("matmul", &[x.dtype, w.dtype, out.dtype]);
    device.launch(name, shape, args![x.ptr, w.ptr(), bias, out.ptr, rows, n, k, accumulate]);
}
