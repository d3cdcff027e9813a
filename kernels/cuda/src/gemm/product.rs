//! A product of rows with a matrix, and the activation that may follow it: what every kernel for products is asked.

use crate::autotune::tactics::{GemmProblem, bucket};
use crate::gemm::cublaslt::{Key, Operands};
use crate::gemm::prepared::{Prepared, PreparedRows};
use crate::jit::layouts::twin;
use crate::layers::elementwise::Function;
use crate::runtime::activations::View;
use crate::runtime::device::Device;
use crate::weights::{Vector, Weights};
use kernels::ops::{Activation, DType, Epilogue};

/// Products of more rows may be our own kernel's without a gate too: fewer gain 1 to 2 % by it on an H200, and it takes
/// a second to compile.
pub(crate) const MANY_ROWS: usize = 1024;

/// One product. The shapes fit (checked by the caller).
pub(crate) struct Product<'a> {
    pub(crate) x: View,
    pub(crate) w: &'a Weights,
    pub(crate) bias: Option<&'a mut Vector>,
    pub(crate) epilogue: Epilogue,
    pub(crate) out: View,
    /// Whether its input was prepared by who made it.
    pub(crate) prepared: Option<Prepared>,
}

/// What every own kernel for products is told first, in this order.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct GemmShape {
    rows: u32,
    n: u32,
    k: u32,
    accumulate: u32,
    wide: u32,
}

twin!(GemmShape = "GemmShape" { rows, n, k, accumulate, wide });

impl GemmShape {
    /// Of rows of `columns` numbers of 16 bits.
    pub(crate) fn with_columns(self, columns: usize) -> Self {
        Self { k: columns as u32, ..self }
    }
}

/// Which outputs of a product an activation is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Activated {
    /// Of the first half of `[gate | up]`, which it multiplies the other by: `activation(gate) * up`.
    Gates,
    /// Of each output.
    Each,
}

/// An activation of a product's outputs, as Hopper's kernels are compiled for it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct OutputFunction {
    pub(crate) of: Activated,
    function: Function,
}

impl OutputFunction {
    pub(crate) fn gate(activation: Activation) -> Self {
        Self { of: Activated::Gates, function: activation.into() }
    }

    /// `FUNCTION` of the kernels: see activation.cuh.
    pub(crate) fn number(&self) -> u32 {
        const EACH_COLUMN: u32 = 8;
        match self.of {
            Activated::Gates => self.function.number,
            Activated::Each => EACH_COLUMN + self.function.number,
        }
    }

    pub(crate) fn limit(&self) -> f32 {
        self.function.limit
    }
}

/// What gates a product's outputs next, or what is taken of each, and where to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gate {
    pub(crate) of: Activated,
    pub(crate) activation: Activation,
    pub(crate) out: View,
    /// Where else, as the next product reads it.
    pub(crate) prepared: Option<PreparedRows>,
}

impl Gate {
    pub(crate) fn function(&self) -> OutputFunction {
        OutputFunction { of: self.of, function: self.activation.into() }
    }
}

impl Product<'_> {
    /// Its shape, where results go to `out`: what a gate leaves of a product goes elsewhere.
    pub(crate) fn shape(&self, out: View) -> GemmShape {
        GemmShape {
            rows: self.x.rows as u32,
            n: self.w.rows as u32,
            k: self.w.cols as u32,
            accumulate: u32::from(self.epilogue == Epilogue::Accumulate),
            wide: u32::from(out.dtype == DType::F32),
        }
    }

    /// Whether its input was reordered where it was made.
    pub(crate) fn is_reordered(&self) -> bool {
        self.prepared.is_some_and(|prepared| !prepared.form.is_codes())
    }

    /// Whether it multiplies numbers of 16 bits.
    pub(crate) fn is_short(&self) -> bool {
        let Self { x, w, .. } = self;
        w.dtype.size() == 2 && (w.compute == w.dtype || x.dtype == w.dtype)
    }

    /// What its tactic is kept by.
    pub(crate) fn problem(&self, gate: Option<Gate>) -> GemmProblem {
        GemmProblem::of(&self.key(), gate.map(|gate| gate.function()))
    }

    pub(crate) fn key(&self) -> Key {
        let Self { x, w, bias, epilogue, out, .. } = self;
        let (rows, n, k, bias) = (x.rows, w.rows, w.cols, bias.is_some());
        Key { rows, n, k, input: w.dtype, output: out.dtype, bias, epilogue: *epilogue }
    }

    /// Takes as many rows as its kind goes up to, as far as its buffers and these have room; returns its own number. A
    /// way that is the fastest for some rows may be far from it for a few more, with which a tile more begins.
    pub(crate) fn stretch(&mut self, other: Option<View>) -> usize {
        let (rows, all) = (self.x.rows, [Some(self.x), Some(self.out), other]);
        let room = all.into_iter().flatten().map(|view| view.most_rows).min();
        self.set_rows(bucket(rows).min(room.unwrap_or(rows)));
        rows
    }

    pub(crate) fn set_rows(&mut self, rows: usize) {
        (self.x.rows, self.out.rows) = (rows, rows);
    }

    /// For cuBLASLt, which wants a bias in the output's type.
    pub(crate) fn operands(&mut self, device: &mut Device) -> Operands {
        let output = self.out.dtype;
        let bias = self.bias.as_deref_mut().map_or(0, |bias| bias.ptr_in(device, output));
        Operands { x: self.x.ptr, w: self.w.ptr(), bias, out: self.out.ptr }
    }
}

/// Whether cuBLASLt rounds only what it writes. Where rows do not begin at multiples of 16 bytes it rounds products
/// before it adds a bias.
pub(crate) fn rounds_once(product: &Product<'_>) -> bool {
    const PIECE: usize = 8;
    let Product { w, bias, out, .. } = product;
    bias.is_none() || out.dtype == DType::F32 || (w.rows.is_multiple_of(PIECE) && w.cols.is_multiple_of(PIECE))
}
