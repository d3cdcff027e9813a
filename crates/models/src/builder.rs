//! What every part of a network is built with: projections, norms and rotations, as slices of tensors by id.

use std::ops::Range;

use kernels::ops::{LoraSite, Matrix, MatrixUse, Norm, RelativeBias, Rope, SavedSite};
use model_spec::{AttentionSpec, ModelSpec, NormScale, NormSpec, Position, RopeSpec};

use crate::error::LoadError;
use crate::linear::{Linear, Split};
use crate::lora::{ExpertParameter, LoraForm, LoraLayer, Projection, SavedLayer};
use crate::tp::Shard;
use crate::weights::{LayerParam, Names, ParamId, ParamKind, Role, Slice, Store};

/// Takes weights from a store, by id; shared by everything that a layer is made of.
pub(crate) struct Builder<'a> {
    pub spec: &'a ModelSpec,
    pub names: &'a Names,
    pub shard: Shard,
    pub store: &'a mut dyn Store,
    /// Frequency tables so far; most layers share one.
    pub ropes: Vec<(RopeSpec, Rope)>,
    /// The biases by distance, once a layer asked for them: all layers share one table.
    pub relative: Option<RelativeBias>,
    /// The layers so far that take adapters.
    pub lora: Vec<LoraLayer>,
    /// The modules so far that adapters may have in place of the model's.
    pub saved: Vec<SavedLayer>,
}

/// What a rank holds of a layer's parameter: `range` of its `total` output rows, or input columns.
#[derive(Clone, Debug)]
pub(crate) struct ParamRange {
    pub param: LayerParam,
    pub total: usize,
    pub range: Range<usize>,
}

impl LayerParam {
    /// A part of it.
    pub(crate) fn of(self, total: usize, range: Range<usize>) -> ParamRange {
        ParamRange { param: self, total, range }
    }
}

/// What a rank holds of one of the parameters that a linear layer stacks.
#[derive(Clone, Debug)]
pub(crate) struct LinearPart {
    pub id: ParamId,
    /// Of the whole parameter: `[out_features, in_features]`.
    pub shape: [usize; 2],
    pub rows: Range<usize>,
    pub cols: Range<usize>,
}

impl Builder<'_> {
    /// Width of the residual stream.
    pub(crate) fn hidden(&self) -> usize {
        self.spec.hidden_size
    }

    /// Projections from the residual stream, stacked; each rank has some of the output rows.
    pub(crate) fn by_rows(&mut self, index: usize, stack: &[ParamRange], bias: bool) -> Result<Linear, LoadError> {
        self.linear(&self.row_parts(index, stack), bias, Split::Outputs)
    }

    /// Parts with some of the output rows each.
    pub(crate) fn row_parts(&self, index: usize, stack: &[ParamRange]) -> Vec<LinearPart> {
        let hidden = self.spec.hidden_size;
        let part = |ParamRange { param, total, range }: &ParamRange| LinearPart {
            id: ParamId::Layer(index, *param),
            shape: [*total, hidden],
            rows: range.clone(),
            cols: 0..hidden,
        };
        stack.iter().map(part).collect()
    }

    /// A projection to the residual stream; each rank has some of the input columns.
    pub(crate) fn by_cols(&mut self, index: usize, cols: ParamRange, bias: bool) -> Result<Linear, LoadError> {
        self.linear(&[self.col_part(index, cols)], bias, Split::Inputs)
    }

    /// A part with some of the input columns.
    pub(crate) fn col_part(&self, index: usize, cols: ParamRange) -> LinearPart {
        let (hidden, ParamRange { param, total, range }) = (self.spec.hidden_size, cols);
        LinearPart { id: ParamId::Layer(index, param), shape: [hidden, total], rows: 0..hidden, cols: range }
    }

    /// A linear layer: the only place that makes one. Of one split by inputs, the first rank adds the bias.
    pub(crate) fn linear(&mut self, parts: &[LinearPart], bias: bool, split: Split) -> Result<Linear, LoadError> {
        let matrix = self.matrix(parts, MatrixUse::Linear)?;
        let bias = match bias && (split == Split::Outputs || self.shard.adds_bias()) {
            true => {
                let of = |part: &LinearPart| {
                    self.vector_slice(part.id, ParamKind::Bias, part.shape[0], part.rows.clone(), Role::Shift)
                };
                let slices: Vec<Slice> = parts.iter().map(of).collect();
                Some(self.store.vector(&slices, 0.0)?)
            }
            false => None,
        };
        let inside = parts.iter().all(|part| matches!(part.id, ParamId::Layer(..)));
        let lora = if inside { self.lora_site(LoraForm::Linear, parts, 0) } else { None };
        Ok(Linear::new(matrix, bias, split).with_adapters(lora))
    }

    /// Room for the adapters of a layer, where there are to be any. `pad_rows` are this rank's after those of the last
    /// part.
    pub(crate) fn lora_site(&mut self, form: LoraForm, parts: &[LinearPart], pad_rows: usize) -> Option<LoraSite> {
        let mut projections: Vec<Projection> = parts.iter().map(|part| self.projection_of(part)).collect();
        projections.last_mut()?.pad_rows = pad_rows;
        let outputs: Vec<usize> = projections.iter().map(|part| part.rows.len() + part.pad_rows).collect();
        let site = self.store.lora_site(projections[0].cols.len(), &outputs, None)?;
        self.lora.push(LoraLayer { form, site, projections, of_experts: false, parameter: None });
        Some(site)
    }

    /// Room for the adapters of a layer of experts, where there are to be any: the parts that each stacks, expert after
    /// expert. `parameter` is what has them all for PEFT.
    pub(crate) fn expert_lora_site(
        &mut self,
        experts: &[Vec<LinearPart>],
        parameter: Option<ExpertParameter>,
    ) -> Option<LoraSite> {
        let projections: Vec<Projection> = experts.iter().flatten().map(|part| self.projection_of(part)).collect();
        // Where experts share a tensor, that is how adapters name them.
        if parameter.is_none() && projections.iter().any(|one| one.location.stack.is_some()) {
            return None;
        }
        let outputs: Vec<usize> = experts.first()?.iter().map(|part| part.rows.len()).collect();
        let site = self.store.lora_site(projections.first()?.cols.len(), &outputs, Some(experts.len()))?;
        self.lora.push(LoraLayer { form: LoraForm::Linear, site, projections, of_experts: true, parameter });
        Some(site)
    }

    /// Room for matrices that adapters have in place of one, where there are to be any; then `pad_rows` rows.
    pub(crate) fn saved_site(&mut self, form: LoraForm, part: &LinearPart, pad_rows: usize) -> Option<SavedSite> {
        let matrix = Projection { pad_rows, ..self.projection_of(part) };
        let site = self.store.saved_site(part.rows.len() + pad_rows, part.cols.len())?;
        self.saved.push(SavedLayer { form, site, matrix });
        Some(site)
    }

    /// What a rank holds of a part, as adapters' files see it.
    pub(crate) fn projection_of(&self, part: &LinearPart) -> Projection {
        Projection {
            location: (self.names)(part.id, ParamKind::Weight),
            shape: part.shape,
            rows: part.rows.clone(),
            cols: part.cols.clone(),
            pad_rows: 0,
        }
    }

    /// The matrix of a linear layer.
    pub(crate) fn matrix(&mut self, parts: &[LinearPart], by: MatrixUse) -> Result<Matrix, LoadError> {
        let slices = self.slices(parts);
        self.store.matrix(&slices, 0, by)
    }

    /// The matrices of layers in a group.
    pub(crate) fn matrices(&mut self, parts: &[Vec<LinearPart>], by: MatrixUse) -> Result<Vec<Matrix>, LoadError> {
        let stacks: Vec<Vec<Slice>> = parts.iter().map(|parts| self.slices(parts)).collect();
        self.store.matrices(&stacks, by)
    }

    fn slices(&self, parts: &[LinearPart]) -> Vec<Slice> {
        let slice = |part: &LinearPart| self.matrix_slice(part.id, part.shape, part.rows.clone(), part.cols.clone());
        parts.iter().map(slice).collect()
    }

    pub(crate) fn rope(&mut self, position: &Position) -> Option<Rope> {
        let Position::Rope(spec) = position else { return None };
        if let Some((_, rope)) = self.ropes.iter().find(|(known, _)| known == spec) {
            return Some(*rope);
        }
        let table = spec.table(self.spec.context_len);
        let inv_freq = self.store.constants(&table.inv_freq);
        let rope = Rope { inv_freq, rotary_dim: spec.rotary_dim, style: spec.style, mscale: table.mscale };
        self.ropes.push((spec.clone(), rope));
        Some(rope)
    }

    /// Learned biases of this rank's query heads.
    pub(crate) fn relative_bias(&mut self, spec: &AttentionSpec) -> Result<Option<RelativeBias>, LoadError> {
        let Position::Relative(bias) = spec.position else { return Ok(None) };
        if self.relative.is_none() {
            let heads = self.shard.part(spec.heads);
            let count = heads.len();
            let slice = self.matrix_slice(ParamId::RelativeBias, [bias.buckets, spec.heads], 0..bias.buckets, heads);
            let table = self.store.vector_of(&[slice], &|table| bias.by_distance(&table, count))?;
            self.relative = Some(RelativeBias { table, reach: bias.max_distance });
        }
        Ok(self.relative)
    }

    pub(crate) fn norm(
        &mut self,
        spec: Option<NormSpec>,
        id: ParamId,
        width: usize,
    ) -> Result<Option<Norm>, LoadError> {
        spec.map(|spec| self.norms(spec, &[id], width)).transpose()
    }

    /// One norm of `width` columns for each id, side by side.
    pub(crate) fn norms(&mut self, spec: NormSpec, ids: &[ParamId], width: usize) -> Result<Norm, LoadError> {
        let slices = |kind, role| -> Vec<Slice> {
            ids.iter().map(|id| self.vector_slice(*id, kind, width, 0..width, role)).collect()
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
        Ok(Norm { kind: spec.kind, weight, bias, eps: spec.eps })
    }

    pub(crate) fn matrix_slice(&self, id: ParamId, shape: [usize; 2], rows: Range<usize>, cols: Range<usize>) -> Slice {
        let role = if is_projection(id) { Role::Projection } else { Role::Matrix };
        Slice { location: (self.names)(id, ParamKind::Weight), shape: shape.to_vec(), rows, cols, role }
    }

    pub(crate) fn vector_slice(
        &self,
        id: ParamId,
        kind: ParamKind,
        len: usize,
        rows: Range<usize>,
        role: Role,
    ) -> Slice {
        Slice { location: (self.names)(id, kind), shape: vec![len], rows, cols: 0..1, role }
    }
}

/// Whether a parameter is one of the large projections inside layers; heads, embeddings, routers and small gates are
/// not.
fn is_projection(id: ParamId) -> bool {
    use LayerParam::{
        Down, Expert, Gate, Key, KvDown, KvUp, MixerGate, Output, Query, QueryDown, QueryUp, ScanInput, Shared, Up,
        Value,
    };
    let ParamId::Layer(_, param) = id else { return false };
    matches!(
        param,
        Query
            | Key
            | Value
            | Output
            | Gate
            | Up
            | Down
            | Expert(..)
            | Shared(_)
            | MixerGate
            | ScanInput
            | QueryDown
            | QueryUp
            | KvDown
            | KvUp
    )
}
