//! What every part of a network is built with: projections, norms and rotations, as slices of tensors by slot.

use std::ops::Range;

use kernels::ops::{self, Matrix, Norm, Rope, Vector};
use model_spec::{ModelSpec, NormKind, NormScale, NormSpec, Position, RopeSpec, RopeStyle};

use crate::error::LoadError;
use crate::tp::Shard;
use crate::weights::{LayerParam, Names, ParamId, ParamKind, Role, Slice, Store};

/// A matrix with its bias.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    pub matrix: Matrix,
    pub bias: Option<Vector>,
}

/// Takes weights from a store, by slot; shared by everything that a layer is made of.
pub(crate) struct Builder<'a> {
    pub spec: &'a ModelSpec,
    pub names: &'a Names,
    pub shard: Shard,
    pub store: &'a mut dyn Store,
    /// Frequency tables so far; most layers share one.
    pub ropes: Vec<(RopeSpec, Rope)>,
}

/// The rows of a projection that a rank holds, of how many.
pub(crate) type ParamRows = (LayerParam, usize, Range<usize>);

impl Builder<'_> {
    /// Width of the residual stream.
    pub(crate) fn hidden(&self) -> usize {
        self.spec.hidden_size
    }

    /// Projections from the residual stream, split by output rows and stacked.
    pub(crate) fn by_rows(&mut self, index: usize, stack: &[ParamRows], bias: bool) -> Result<Linear, LoadError> {
        let hidden = self.spec.hidden_size;
        let slices: Vec<Slice> = (stack.iter())
            .map(|(part, total, rows)| {
                self.matrix_slice(ParamId::Layer(index, *part), [*total, hidden], rows.clone(), 0..hidden)
            })
            .collect();
        let biases: Vec<Slice> = (stack.iter())
            .map(|(part, total, rows)| {
                self.vector_slice(ParamId::Layer(index, *part), ParamKind::Bias, *total, rows.clone(), Role::Shift)
            })
            .collect();
        let matrix = self.store.matrix(&slices, 0)?;
        let bias = if bias { Some(self.store.vector(&biases, 0.0)?) } else { None };
        Ok(Linear { matrix, bias })
    }

    /// A projection to the residual stream, split by input columns.
    pub(crate) fn by_cols(
        &mut self,
        index: usize,
        (part, total, cols): ParamRows,
        bias: bool,
    ) -> Result<Linear, LoadError> {
        let (hidden, slot) = (self.spec.hidden_size, ParamId::Layer(index, part));
        let matrix = self.store.matrix(&[self.matrix_slice(slot, [hidden, total], 0..hidden, cols)], 0)?;
        let bias = match bias && self.shard.adds_bias() {
            true => Some(
                self.store.vector(&[self.vector_slice(slot, ParamKind::Bias, hidden, 0..hidden, Role::Shift)], 0.0)?,
            ),
            false => None,
        };
        Ok(Linear { matrix, bias })
    }

    pub(crate) fn rope(&mut self, position: &Position) -> Option<Rope> {
        let Position::Rope(spec) = position else { return None };
        if let Some((_, rope)) = self.ropes.iter().find(|(known, _)| known == spec) {
            return Some(*rope);
        }
        let table = spec.table(self.spec.context_len);
        let style = match spec.style {
            RopeStyle::Halves => ops::RopeStyle::Halves,
            RopeStyle::Interleaved => ops::RopeStyle::Interleaved,
        };
        let inv_freq = self.store.constants(&table.inv_freq);
        let rope = Rope { inv_freq, rotary_dim: spec.rotary_dim, style, mscale: table.mscale };
        self.ropes.push((spec.clone(), rope));
        Some(rope)
    }

    pub(crate) fn norm(
        &mut self,
        spec: Option<NormSpec>,
        slot: ParamId,
        width: usize,
    ) -> Result<Option<Norm>, LoadError> {
        spec.map(|spec| self.norms(spec, &[slot], width)).transpose()
    }

    /// One norm of `width` columns for each slot, side by side.
    pub(crate) fn norms(&mut self, spec: NormSpec, slots: &[ParamId], width: usize) -> Result<Norm, LoadError> {
        let slices = |kind, role| -> Vec<Slice> {
            slots.iter().map(|slot| self.vector_slice(*slot, kind, width, 0..width, role)).collect()
        };
        let (scale, one_plus, shift) = (
            slices(ParamKind::Weight, Role::Scale),
            slices(ParamKind::Weight, Role::Shift),
            slices(ParamKind::Bias, Role::Shift),
        );
        let weight = match spec.scale {
            NormScale::Weight => Some(self.store.vector(&scale, 0.0)?),
            NormScale::OnePlusWeight => Some(self.store.vector(&one_plus, 1.0)?),
            NormScale::None => None,
        };
        let bias = if spec.bias { Some(self.store.vector(&shift, 0.0)?) } else { None };
        let kind = match spec.kind {
            NormKind::Rms => ops::NormKind::Rms,
            NormKind::Layer => ops::NormKind::Layer,
        };
        Ok(Norm { kind, weight, bias, eps: spec.eps })
    }

    pub(crate) fn matrix_slice(
        &self,
        slot: ParamId,
        shape: [usize; 2],
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> Slice {
        Slice { location: (self.names)(slot, ParamKind::Weight), shape: shape.to_vec(), rows, cols, role: Role::Matrix }
    }

    pub(crate) fn vector_slice(
        &self,
        slot: ParamId,
        kind: ParamKind,
        len: usize,
        rows: Range<usize>,
        role: Role,
    ) -> Slice {
        Slice { location: (self.names)(slot, kind), shape: vec![len], rows, cols: 0..1, role }
    }
}
