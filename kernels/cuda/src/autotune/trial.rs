//! One problem's tactics beside each other: which ones race, and how the result is kept.
//!
//! A tactic is timed between two kernels that may start early, as in a step: what it does before its input is there,
//! and how soon what follows can begin, counts as it does there. cuBLASLt's kernels begin 1 to 2 µs after the kernel
//! ahead has ended.

use std::time::Instant;

use crate::autotune::measure::{self, Race};
use crate::autotune::tactics::{GemmProblem, Tactic};
use crate::gemm::cublaslt::{Algorithm, Candidates};
use crate::gemm::matmul::{Matmul, run_own};
use crate::gemm::matmul_skinny;
use crate::gemm::matmul_wgmma;
use crate::gemm::product::{Activated, Gate, Product, rounds_once};
use crate::gemm::table::{self, Facts};
use crate::jit::specialization::Special;
use crate::layers::elementwise;
use crate::layers::norm;
use crate::runtime::activations::View;
use crate::runtime::context::Memory;
use crate::runtime::device::Device;
use kernels::ops::{DType, WaitFor};

/// Algorithms of cuBLASLt that are tried.
const CANDIDATES: usize = 8;

/// A race under tactic.
pub(crate) struct Trial {
    kind: GemmProblem,
    race: Race,
    tactics: Vec<Tactic>,
    /// Where there is an activation: the product's own tactic, which a pass then follows. It is the first of the
    /// tactics, as [`Tactic::Default`].
    apart: Option<Tactic>,
    candidates: Option<Candidates>,
}

impl Matmul {
    /// Whether there is something to choose from.
    pub(crate) fn has_tactics(&self, device: &Device, product: &Product<'_>, gate: Option<Gate>) -> bool {
        match gate {
            Some(gate) => matmul_wgmma::takes(Facts::of(device), product, &gate),
            None => {
                let is_skinny = matmul_skinny::fits(Facts::of(device), product);
                rounds_once(product) && !is_skinny && !self.is_small(device, product)
            }
        }
    }

    /// The kernels compiled for a shape that would take part.
    pub(crate) fn specials(&self, device: &Device, product: &Product<'_>, gate: Option<Gate>) -> Vec<Special> {
        let facts = Facts::of(device);
        table::candidates(facts, product, gate).filter_map(|tuned| (tuned.specialise)(facts, product, gate)).collect()
    }

    /// Begins to measure a product, which is stored, over as many rows as it is to be measured for. A gated one's own
    /// tactic is known.
    pub(crate) fn trial(&mut self, device: &mut Device, product: &mut Product<'_>, gate: Option<Gate>) -> Trial {
        let kind = product.problem(gate);
        let apart = gate.map(|_| self.tactics.get(product.problem(None)).unwrap_or(Tactic::Default));
        let start = Instant::now();
        let candidates = self.blas.candidates(product.key(), if apart.is_some() { 1 } else { CANDIDATES });
        device.note_wait(WaitFor::Loading, start, || format!("cuBLASLt's candidates for {:?}", product.key()));
        let tactics: Vec<Tactic> = match (apart, &candidates) {
            (Some(_), _) => std::iter::once(Tactic::Default).chain(own_tactics(device, product, gate)).collect(),
            (None, candidates) => {
                let algorithms = candidates.iter().flat_map(|candidates| candidates.algorithms.iter());
                let library = algorithms.map(|algorithm| Tactic::Library(*algorithm));
                library.chain(own_tactics(device, product, gate)).collect()
            }
        };
        let count = if measure::is_possible(device) { tactics.len() } else { 0 };
        Trial { kind, race: Race::new(count), tactics, apart, candidates }
    }

    /// Tries one tactic; false once there is none left to try.
    pub(crate) fn turn(
        &mut self,
        device: &mut Device,
        trial: &mut Trial,
        product: &mut Product<'_>,
        gate: Option<Gate>,
    ) -> bool {
        let Trial { race, tactics, apart, candidates, .. } = trial;
        let (blas, operands) = (&self.blas, product.operands(device));
        let library = |device: &mut Device, algorithm: Option<&Algorithm>| {
            let (candidates, algorithm) = candidates.as_ref().zip(algorithm)?;
            blas.attempt(device, candidates, algorithm, operands).then_some(())
        };
        let first = || candidates.as_ref().and_then(|candidates| candidates.algorithms.first());
        let multiply = |device: &mut Device, tactic: Tactic| match tactic {
            Tactic::Wgmma | Tactic::SplitK => run_own(device, tactic, product, None),
            Tactic::Library(algorithm) => library(device, Some(&algorithm)).is_some(),
            Tactic::Default => library(device, first()).is_some(),
        };
        let run = |device: &mut Device, tactic: usize| match (gate, *apart, tactics[tactic]) {
            (Some(_), _, tactic @ (Tactic::Wgmma | Tactic::SplitK)) => run_own(device, tactic, product, gate),
            (Some(gate), Some(apart), _) => {
                let multiplied = multiply(device, apart);
                match gate.of {
                    Activated::Gates => elementwise::gated(device, product.out, gate.activation, gate.out),
                    Activated::Each => elementwise::activate(device, product.out, gate.activation),
                }
                multiplied
            }
            (_, _, tactic) => multiply(device, tactic),
        };
        let out = gate.map_or(product.out, |gate| gate.out);
        let mut run_between = |device: &mut Device, tactic: usize| {
            read(device, product.x, blas.workspace());
            if product.out.dtype == DType::F32 {
                crowd(device, blas.workspace());
            }
            let ran = run(device, tactic);
            read(device, out, blas.workspace());
            ran
        };
        measure::turn(device, blas.workspace(), race, &mut run_between)
    }

    /// Keeps what a race came to; whether such products are done otherwise from now on.
    pub(crate) fn settle(&mut self, trial: Trial) -> bool {
        let Trial { kind, race, tactics, .. } = trial;
        let measured = race.measured();
        let tactic = measured.as_ref().map_or(Tactic::Default, |measured| tactics[measured.best]);
        self.tactics.settle(kind, tactic, measured.map(|measured| measured.text()).as_deref());
        self.trials.remove(&kind);
        self.blas.forget(|key| GemmProblem::of(key, None) == kind);
        tactic != Tactic::Default
    }
}

/// Parameters of a norm that is there for the time it takes.
const PLAIN: norm::Params = norm::Params { weight: 0, bias: 0, eps: 1.0, subtract_mean: 0 };

/// Queues a kernel that may start early and reads rows, or some of them where they are very many; what it writes nobody
/// reads.
fn read(device: &mut Device, x: View, to: &Memory) {
    /// Rows, and what a block of the kernel keeps of one.
    const MOST: [usize; 2] = [256, 16384];
    let x = View { rows: x.rows.min(MOST[0]), width: x.width.min(MOST[1]), ..x };
    let dtype = if x.dtype == DType::F32 { DType::Bf16 } else { x.dtype };
    if x.elements() * dtype.size() <= to.bytes {
        norm::norm(device, x, PLAIN, View { ptr: to.ptr, dtype, ..x });
    }
}

/// Queues one that leaves no room beside it and reads from memory up to its end, as what comes before products that
/// write f32: these are added to the residual stream, after attention or the product before. What others read follows a
/// norm, which leaves room.
fn crowd(device: &mut Device, memory: &Memory) {
    /// As many blocks as fill a device a few times.
    const ROWS: usize = 1024;
    const WIDTH: usize = 4096;
    let bytes = ROWS * WIDTH * DType::F32.size();
    if 2 * bytes <= memory.bytes {
        let x = View { ptr: memory.ptr, dtype: DType::F32, rows: ROWS, width: WIDTH, most_rows: ROWS };
        norm::norm(device, x, PLAIN, View { ptr: memory.ptr + bytes as u64, dtype: DType::Bf16, ..x });
    }
}

/// Our own kernels that are tactics for a product.
fn own_tactics(device: &Device, product: &Product<'_>, gate: Option<Gate>) -> impl Iterator<Item = Tactic> {
    table::candidates(Facts::of(device), product, gate).map(|tuned| tuned.tactic)
}
