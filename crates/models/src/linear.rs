//! Linear layers: whatever multiplies by a weight matrix does it here, and nowhere else in this crate.
//!
//! A layer's matrix is stored in any format; the device multiplies by it as it is. What is added to a product (a bias,
//! an adapter's delta) and what sums it over tensor-parallel ranks belongs to the layer, too.

use kernels::ops::{
    Act, Activation, Backend, Epilogue, ExpertRouting, GatedExperts, HeadColumns, LoraSite, Matrix, MatrixGroup,
    SavedSite, Vector,
};

use crate::error::ForwardError;
use crate::ranks::Run;

/// `x W^T + bias`.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    matrix: Matrix,
    bias: Option<Vector>,
    split: Split,
    /// Where its adapters are, if it takes some.
    lora: Option<LoraSite>,
    /// Where matrices of adapters in its place are, if it takes some.
    saved: Option<SavedSite>,
}

/// What a layer's own matrix gives, where adapters give more columns.
#[derive(Clone, Copy)]
pub(crate) struct OwnColumns {
    pub act: Act,
    pub width: usize,
}

/// How a layer's matrix is divided over the ranks of a tensor-parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Split {
    /// By output features, or not at all: what a rank computes is whole.
    Outputs,
    /// By input features: what a rank computes is one term of a sum over the ranks.
    Inputs,
}

impl Linear {
    /// `bias` is `[out_features]`; of a layer that is split by inputs, one rank has it.
    pub(crate) fn new(matrix: Matrix, bias: Option<Vector>, split: Split) -> Self {
        Self { matrix, bias, split, lora: None, saved: None }
    }

    /// With adapters. Of a layer that is split by inputs, each rank adds its term of their deltas.
    pub(crate) fn with_adapters(self, lora: Option<LoraSite>) -> Self {
        Self { lora, ..self }
    }

    /// With matrices of adapters in its place. It has no bias, and its products are stored.
    pub(crate) fn with_saved(self, saved: Option<SavedSite>) -> Self {
        Self { saved, ..self }
    }

    /// This rank's product of rows `input` `[rows, in_features]`, stored to `out` `[rows, out_features]` or added to
    /// it.
    pub(crate) fn run(&self, input: Act, epilogue: Epilogue, out: Act, backend: &mut dyn Backend) {
        backend.matmul(input, self.matrix, self.bias, epilogue, out);
        self.add_adapters(input, out, backend);
    }

    /// The same where `out` has more columns than the matrix gives, which adapters alone have: those of `own` are
    /// copied.
    pub(crate) fn run_wide(&self, input: Act, own: OwnColumns, out: Act, backend: &mut dyn Backend) {
        let OwnColumns { act, width } = own;
        backend.matmul(input, self.matrix, self.bias, Epilogue::Store, act);
        let at = HeadColumns { first: 0, stride: 0 };
        backend.copy_columns(act, at, out, at, 1, width);
        self.add_adapters(input, out, backend);
    }

    fn add_adapters(&self, input: Act, out: Act, backend: &mut dyn Backend) {
        if let Some(site) = self.saved {
            backend.saved_matmul(input, site, out);
        }
        if let Some(site) = self.lora {
            backend.lora(input, site, out);
        }
    }

    /// `out = activation(x W^T + bias)`, of a layer that is split by outputs.
    pub(crate) fn run_activated(&self, input: Act, activation: Activation, out: Act, backend: &mut dyn Backend) {
        if self.saved.is_none() && self.lora.is_none() {
            return backend.matmul_activated(input, self.matrix, self.bias, activation, out);
        }
        self.run(input, Epilogue::Store, out, backend);
        backend.activate(out, activation);
    }

    /// This rank's product, stored, and summed over the ranks where the layer is split by inputs.
    pub(crate) fn run_reduced(&self, input: Act, out: Act, run: &mut Run<'_>) -> Result<(), ForwardError> {
        self.run(input, Epilogue::Store, out, run.backend);
        match self.split {
            Split::Outputs => Ok(()),
            Split::Inputs => run.all_reduce(out),
        }
    }
}

/// One linear layer an expert, all of one shape; each row goes through those that were chosen for it.
#[derive(Clone, Copy)]
pub(crate) struct ExpertLinear {
    matrices: MatrixGroup,
    /// `[experts, out_features]`.
    bias: Option<Vector>,
    /// Where its adapters are, if it takes some.
    lora: Option<LoraSite>,
}

impl ExpertLinear {
    pub(crate) fn new(matrices: MatrixGroup, bias: Option<Vector>) -> Self {
        Self { matrices, bias, lora: None }
    }

    /// With adapters, each expert its own.
    pub(crate) fn with_adapters(self, lora: Option<LoraSite>) -> Self {
        Self { lora, ..self }
    }

    /// A row of `out` for every choice; `input` has a row for every choice, too, or one for all choices of a row.
    pub(crate) fn run(&self, input: Act, choice: ExpertRouting, out: Act, backend: &mut dyn Backend) {
        backend.expert_matmul(input, self.matrices, self.bias, choice, out);
        if let Some(site) = self.lora {
            backend.expert_lora(input, site, choice, out);
        }
    }

    /// The same of experts that give `[gate | up]`, gated: `out = activation(gate) * up`. What is given is the gate's
    /// `reader`'s alone.
    pub(crate) fn run_gated(&self, input: Act, gate: ExpertGate, choice: ExpertRouting, backend: &mut dyn Backend) {
        let ExpertGate { activation, raised, out, reader } = gate;
        if self.lora.is_some() && backend.adds_deltas() {
            self.run(input, choice, raised, backend);
            return backend.gated(raised, activation, out);
        }
        // Its adapters read numbers.
        let reader = (reader.lora.is_none() || !backend.adds_deltas()).then_some(reader.matrices);
        let experts = GatedExperts { w: self.matrices, bias: self.bias, activation, raised, reader };
        backend.gated_experts(input, experts, choice, out);
    }
}

/// What gates the outputs of experts.
#[derive(Clone, Copy)]
pub(crate) struct ExpertGate {
    pub activation: Activation,
    /// Room for `[gate | up]` of every choice.
    pub raised: Act,
    /// `[choices, out_features / 2]`.
    pub out: Act,
    /// The experts that read `out`, which nothing else does.
    pub reader: ExpertLinear,
}

/// One linear layer a head, all of one shape.
#[derive(Clone, Copy)]
pub(crate) struct HeadLinear {
    matrices: MatrixGroup,
}

/// Where the heads of a buffer's rows lie.
#[derive(Clone, Copy)]
pub(crate) struct Heads {
    pub act: Act,
    pub columns: HeadColumns,
}

impl HeadLinear {
    pub(crate) fn new(matrices: MatrixGroup) -> Self {
        Self { matrices }
    }

    /// Each head of `input` times its own matrix.
    pub(crate) fn run(&self, input: Heads, out: Heads, backend: &mut dyn Backend) {
        backend.head_matmul(input.act, input.columns, self.matrices, out.act, out.columns);
    }
}
