//! Which kernel takes which product: pinned for devices like an H100, an A100 and a T4.

use super::*;
use crate::jit::specialization::{HOPPER, LOWEST};
use crate::runtime::activations::View;
use crate::weights::Weights;
use kernels::ops::{Activation, DType, Epilogue};

const H100: Facts = Facts { arch: HOPPER, multiprocessors: 132, shared_of_block: 227 << 10 };
const A100: Facts = Facts { arch: LOWEST, multiprocessors: 108, shared_of_block: 163 << 10 };
const T4: Facts = Facts { arch: Arch::new(7, 5), multiprocessors: 40, shared_of_block: 64 << 10 };

/// A product of `rows` rows with `[n, k]` weights.
#[derive(Clone, Copy)]
struct Case {
    rows: usize,
    n: usize,
    k: usize,
    weights: DType,
    output: DType,
    epilogue: Epilogue,
}

impl Case {
    const fn new(rows: usize, [n, k]: [usize; 2]) -> Self {
        let (weights, output) = (DType::Bf16, DType::Bf16);
        Self { rows, n, k, weights, output, epilogue: Epilogue::Store }
    }

    /// To f32, as what is added to the residual stream.
    const fn wide(self) -> Self {
        Self { output: DType::F32, ..self }
    }

    const fn added(self) -> Self {
        Self { output: DType::F32, epilogue: Epilogue::Accumulate, ..self }
    }

    fn view(&self, width: usize, dtype: DType) -> View {
        View { ptr: 0, dtype, rows: self.rows, width, most_rows: self.rows }
    }

    /// Calls back with the product.
    fn with<T>(&self, run: impl FnOnce(&Product<'_>) -> T) -> T {
        let Self { n, k, weights: dtype, .. } = *self;
        let w = Weights { memory: None, dtype, rows: n, cols: k, compute: dtype, packed: None };
        let (x, out) = (self.view(k, dtype), self.view(n, self.output));
        run(&Product { x, w: &w, bias: None, epilogue: self.epilogue, out, prepared: None })
    }

    fn gated(&self) -> Fused {
        Fused::gate(Some(Gate {
            of: Activated::Gates,
            activation: Activation::Silu,
            out: self.view(self.n / 2, self.output),
            prepared: None,
        }))
    }

    fn activated(&self) -> Fused {
        let (of, activation, out) = (Activated::Each, Activation::Gelu, self.view(self.n, self.output));
        Fused::gate(Some(Gate { of, activation, out, prepared: None }))
    }

    /// The kernel that is launched first where the autotuner, if asked, gives a tactic.
    fn taken(&self, facts: Facts, fused: &Fused, tactic: Tactic) -> Option<&'static str> {
        self.with(|product| {
            let fits = KERNELS.iter().filter(|kernel| (kernel.fits)(facts, product, fused));
            fits.into_iter().find(|kernel| kernel.is_selected(Some(tactic))).map(|kernel| kernel.name)
        })
    }
}

const NONE: Fused = Fused { before: None, gate: None, after: None };
const QKV: [usize; 2] = [6144, 4096];
const GATE_UP: [usize; 2] = [28672, 4096];

#[test]
fn products_of_few_rows_are_the_skinny_kernel_s() {
    for tactic in [Tactic::Default, Tactic::Wgmma, Tactic::SplitK] {
        for (facts, rows) in [(H100, 1), (H100, 16), (A100, 16)] {
            assert_eq!(Case::new(rows, QKV).taken(facts, &NONE, tactic), Some("skinny"), "{rows} rows");
            let case = Case::new(rows, GATE_UP);
            assert_eq!(case.taken(facts, &case.gated(), tactic), Some("skinny"), "{rows} rows, gated");
        }
        // Matrices of few rows keep it longer where there is no split-K kernel.
        let small = Case::new(32, [1024, 3072]);
        assert_eq!(small.taken(A100, &NONE, tactic), Some("skinny"));
        assert_ne!(small.taken(H100, &NONE, tactic), Some("skinny"));
        assert_eq!(Case::new(33, [1024, 3072]).taken(A100, &NONE, tactic), Some("cublaslt"));
    }
}

#[test]
fn what_is_not_measured_yet_is_presumed() {
    const O: [usize; 2] = [4096, 4096];
    const DOWN: [usize; 2] = [4096, 14336];
    let tactic = |facts, case: Case, gate: Option<Gate>| {
        case.with(|product| presumed(facts, product, gate).map(|tuned| tuned.tactic))
    };
    let plain = |rows, shape| tactic(H100, Case::new(rows, shape), None);
    let gated = |facts, rows| {
        let case = Case::new(rows, GATE_UP);
        tactic(facts, case, case.gated().gate)
    };
    for (rows, shape, expected) in [
        (32, QKV, Some(Tactic::SplitK)),
        (33, QKV, None),
        (24, O, None),
        (24, DOWN, Some(Tactic::SplitK)),
        (128, DOWN, Some(Tactic::SplitK)),
        (129, DOWN, None),
        (8192, DOWN, None),
    ] {
        assert_eq!(plain(rows, shape), expected, "{rows} rows of {shape:?}");
    }
    for (rows, own) in [(17, true), (136, true), (256, true), (320, false), (512, true), (600, false), (8192, true)] {
        assert_eq!(gated(H100, rows), own.then_some(Tactic::Wgmma), "{rows} rows, gated");
    }
    assert_eq!(gated(A100, 64), None);
}

#[test]
fn products_of_more_rows_are_the_autotuner_s_to_decide() {
    let table = [
        (17, QKV, ["cublaslt", "wgmma", "split-k"]),
        (128, QKV, ["cublaslt", "wgmma", "split-k"]),
        (129, QKV, ["cublaslt", "wgmma", "cublaslt"]),
        (8192, QKV, ["cublaslt", "wgmma", "cublaslt"]),
        // Columns that are no whole chunk, and rows that are no piece of 16 bytes.
        (64, [4096, 72], ["cublaslt", "wgmma", "cublaslt"]),
        (64, [4097, 4096], ["cublaslt", "cublaslt", "cublaslt"]),
    ];
    for (rows, shape, names) in table {
        let taken =
            |case: Case| [Tactic::Default, Tactic::Wgmma, Tactic::SplitK].map(|tactic| case.taken(H100, &NONE, tactic));
        for case in [Case::new(rows, shape), Case::new(rows, shape).wide(), Case::new(rows, shape).added()] {
            assert_eq!(taken(case), names.map(Some), "{rows} rows of {shape:?}");
        }
        let elsewhere = [Tactic::Default, Tactic::Wgmma, Tactic::SplitK]
            .map(|tactic| Case::new(rows, shape).taken(A100, &NONE, tactic));
        assert_eq!(elsewhere, [Some("cublaslt"); 3], "{rows} rows of {shape:?}");
    }
}

#[test]
fn gates_are_fused_on_hopper_where_the_autotuner_says_so() {
    for (rows, names) in [(64, [None, Some("wgmma"), Some("split-k")]), (512, [None, Some("wgmma"), None])] {
        let case = Case::new(rows, GATE_UP);
        let taken = [Tactic::Default, Tactic::Wgmma, Tactic::SplitK];
        assert_eq!(taken.map(|tactic| case.taken(H100, &case.gated(), tactic)), names, "{rows} rows");
        assert_eq!(taken.map(|tactic| case.taken(A100, &case.gated(), tactic)), [None; 3]);
        // What is written in f32 is gated apart.
        let wide = case.wide();
        assert_eq!(taken.map(|tactic| wide.taken(H100, &wide.gated(), tactic)), [None; 3]);
    }
}

#[test]
fn activations_are_fused_likewise_but_by_kernels_of_few_rows() {
    let tactics = [Tactic::Default, Tactic::Wgmma, Tactic::SplitK];
    let table = [
        (1, [None; 3]),
        (16, [None; 3]),
        (64, [None, Some("wgmma"), Some("split-k")]),
        (512, [None, Some("wgmma"), None]),
        (8192, [None, Some("wgmma"), None]),
    ];
    for (rows, names) in table {
        // Rows of an odd number of pieces cannot be halves, but are whole here.
        for shape in [QKV, [6152, 4096]] {
            let case = Case::new(rows, shape);
            let taken = |facts| tactics.map(|tactic| case.taken(facts, &case.activated(), tactic));
            assert_eq!((taken(H100), taken(A100)), (names, [None; 3]), "{rows} rows of {shape:?}");
            let wide = case.wide();
            assert_eq!(tactics.map(|tactic| wide.taken(H100, &wide.activated(), tactic)), [None; 3]);
        }
    }
}

#[test]
fn parts_of_norms_are_done_by_the_skinny_and_the_split_k_kernel() {
    let after = Fused { before: None, gate: None, after: Some(After::default()) };
    let before = Fused { before: Some(Before::default()), gate: None, after: None };
    for fused in [before, after] {
        for (rows, name) in [(1, Some("skinny")), (64, Some("split-k")), (129, None)] {
            assert_eq!(Case::new(rows, [1024, 3072]).added().taken(H100, &fused, Tactic::SplitK), name, "{rows} rows");
        }
        // Where the split-K kernel is not allowed.
        assert_eq!(Case::new(64, [1024, 3072]).added().taken(H100, &fused, Tactic::Default), None);
    }
}

#[test]
fn what_no_tensor_core_takes_is_the_simt_kernel_s() {
    for rows in [1, 64, 4096] {
        let case = Case { weights: DType::F32, output: DType::F32, ..Case::new(rows, QKV) };
        assert_eq!(case.taken(H100, &NONE, Tactic::Default), Some("simt"));
        // Without asynchronous copies cuBLASLt does all that is of 16 bits.
        assert_eq!(Case::new(rows, QKV).taken(T4, &NONE, Tactic::Default), Some("cublaslt"));
    }
}

#[test]
fn the_autotuner_measures_kernels_that_are_worth_it() {
    let tactics = |rows, shape, gated: bool| {
        let case = Case::new(rows, shape);
        let gate = case.gated().gate.filter(|_| gated);
        case.with(|product| candidates(H100, product, gate).map(|tuned| tuned.tactic).collect::<Vec<_>>())
    };
    // Without a gate, the wgmma kernel gains too little on cuBLASLt up to `MANY_ROWS`.
    assert_eq!(tactics(64, QKV, false), [Tactic::SplitK]);
    assert_eq!(tactics(MANY_ROWS, QKV, false), []);
    assert_eq!(tactics(MANY_ROWS + 1, QKV, false), [Tactic::Wgmma]);
    assert_eq!(tactics(64, GATE_UP, true), [Tactic::Wgmma, Tactic::SplitK]);
    assert_eq!(tactics(8192, GATE_UP, true), [Tactic::Wgmma]);
}
