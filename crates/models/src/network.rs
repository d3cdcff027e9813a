//! From a [`ModelSpec`] to weights on a device: which slices of which tensors this rank needs, fused as the decoder runs them.

use std::ops::Range;

use kernels::ops::{self, Matrix, Norm, Rope, Table, Vector};
use model_spec::{
    LayerSpec, ModelSpec, NormKind, NormScale, NormSpec, Position, PositionTable, Residual, RopeSpec, RopeStyle,
};

use crate::error::LoadError;
use crate::feed_forward::{self, FeedForward};
use crate::mixer::{self, Mixer};
use crate::tp::Shard;
use crate::weights::{Kind, Names, Part, Role, Slice, Slot, Store};

/// A model's weights on a device, ready to run.
pub(crate) struct Network {
    pub embedding: Table,
    /// Token of the table's first row.
    pub first_entry: u32,
    pub project_in: Option<Matrix>,
    /// Learned positions, and the row of position 0.
    pub positions: Option<(Table, usize)>,
    pub embedding_norm: Option<Norm>,
    pub layers: Vec<Layer>,
    pub final_norm: Option<Norm>,
    pub project_out: Option<Matrix>,
    pub head: Linear,
    /// Columns of this rank's logits, padding included.
    pub head_width: usize,
}

/// A matrix with its bias.
#[derive(Clone, Copy)]
pub(crate) struct Linear {
    pub matrix: Matrix,
    pub bias: Option<Vector>,
}

pub(crate) struct Layer {
    pub mixer: Box<dyn Mixer>,
    /// From what the mixer puts out to the residual stream.
    pub output: Linear,
    /// Absent where the mixer is the whole layer.
    pub feed_forward: Option<Box<dyn FeedForward>>,
    pub before_attention: Option<Norm>,
    pub after_attention: Option<Norm>,
    pub before_mlp: Option<Norm>,
    pub after_mlp: Option<Norm>,
    pub residual: Residual,
    pub residual_scale: f32,
}

/// Walks over the model once, taking everything that this rank needs from `store`.
pub(crate) fn build(
    spec: &ModelSpec,
    names: &Names,
    shard: Shard,
    store: &mut dyn Store,
) -> Result<Network, LoadError> {
    Builder { spec, names, shard, store, ropes: Vec::new() }.network()
}

/// Takes weights from a store, by slot; shared by everything that a layer is made of.
pub(crate) struct Builder<'a> {
    spec: &'a ModelSpec,
    names: &'a Names,
    pub shard: Shard,
    pub store: &'a mut dyn Store,
    /// Frequency tables so far; most layers share one.
    ropes: Vec<(RopeSpec, Rope)>,
}

/// The rows of a projection that a rank holds, of how many.
pub(crate) type Part1d = (Part, usize, Range<usize>);

impl Builder<'_> {
    fn network(mut self) -> Result<Network, LoadError> {
        let (vocab, hidden, width) = (self.spec.vocab_size, self.spec.hidden_size, self.spec.embedding.width);
        let rows = self.shard.vocabulary(vocab);
        let entries = |slot, builder: &Self| builder.matrix_slice(slot, [vocab, width], rows.entries.clone(), 0..width);
        let (embedding, shared) = self.embedding(entries(Slot::Embedding, &self), rows.pad_rows)?;
        let project_in = self.projection(Slot::ProjectIn, [hidden, width])?;
        let positions = self.positions(hidden)?;
        let embedding_norm = self.norm(self.spec.embedding.norm, Slot::EmbeddingNorm, hidden)?;
        let layers = self.spec.layers.iter().enumerate();
        let layers = layers.map(|(index, layer)| self.layer(index, layer)).collect::<Result<_, _>>()?;
        let final_norm = self.norm(self.spec.final_norm, Slot::FinalNorm, hidden)?;
        let project_out = self.projection(Slot::ProjectOut, [width, hidden])?;
        let head_slot = if self.spec.head.tied { Slot::Embedding } else { Slot::Head };
        let matrix = match shared {
            Some(matrix) => matrix,
            None => self.head(entries(head_slot, &self), rows.pad_rows)?,
        };
        let bias = match self.spec.head.bias {
            true => Some(self.head_bias(vocab)?),
            false => None,
        };
        Ok(Network {
            embedding,
            first_entry: rows.entries.start as u32,
            project_in,
            positions,
            embedding_norm,
            layers,
            final_norm,
            project_out,
            head: Linear { matrix, bias },
            head_width: rows.entries.len() + rows.pad_rows,
        })
    }

    /// The table of tokens; and the matrix whose rows it is, where that is the head.
    fn embedding(&mut self, slice: Slice, pad_rows: usize) -> Result<(Table, Option<Matrix>), LoadError> {
        if !self.spec.head.tied || self.spec.head.unit_rows {
            return Ok((self.store.table(&[slice], pad_rows)?, None));
        }
        let matrix = self.head(slice, pad_rows)?;
        Ok((self.store.table_of(matrix), Some(matrix)))
    }

    fn head(&mut self, slice: Slice, pad_rows: usize) -> Result<Matrix, LoadError> {
        let role = if self.spec.head.unit_rows { Role::UnitRows } else { Role::Matrix };
        self.store.matrix(&[Slice { role, ..slice }], pad_rows)
    }

    /// Between the embedding's width and the residual stream's, where they differ; whole on every rank.
    fn projection(&mut self, slot: Slot, shape: [usize; 2]) -> Result<Option<Matrix>, LoadError> {
        let [rows, cols] = shape;
        if rows == cols {
            return Ok(None);
        }
        self.store.matrix(&[self.matrix_slice(slot, shape, 0..rows, 0..cols)], 0).map(Some)
    }

    fn positions(&mut self, hidden: usize) -> Result<Option<(Table, usize)>, LoadError> {
        let Some(PositionTable { rows, offset }) = self.spec.embedding.positions else { return Ok(None) };
        let slice = self.matrix_slice(Slot::Positions, [rows, hidden], 0..rows, 0..hidden);
        Ok(Some((self.store.table(&[slice], 0)?, offset)))
    }

    /// Split like the head; where rows are padded the bias is padded with what lies before it, which nobody reads.
    fn head_bias(&mut self, vocab: usize) -> Result<Vector, LoadError> {
        let rows = self.shard.vocabulary(vocab);
        let mut stack = vec![self.vector_slice(Slot::Head, Kind::Bias, vocab, rows.entries, Role::Shift)];
        if rows.pad_rows > 0 {
            stack.push(self.vector_slice(Slot::Head, Kind::Bias, vocab, 0..rows.pad_rows, Role::Shift));
        }
        self.store.vector(&stack, 0.0)
    }

    fn layer(&mut self, index: usize, layer: &LayerSpec) -> Result<Layer, LoadError> {
        let parallel = layer.residual == Residual::Parallel;
        if parallel && (layer.norms.after_attention.is_some() || layer.norms.after_mlp.is_some()) {
            return Err(LoadError::Unsupported { layer: index, what: "a parallel residual with norms on its outputs" });
        }
        let hidden = self.spec.hidden_size;
        let slot = |part| Slot::Layer(index, part);
        let before_attention = self.norm(layer.norms.before_attention, slot(Part::BeforeAttention), hidden)?;
        let (mixer, output) = mixer::build(self, index, &layer.mixer)?;
        let after_attention = self.norm(layer.norms.after_attention, slot(Part::AfterAttention), hidden)?;
        let before_mlp = self.norm(layer.norms.before_mlp, slot(Part::BeforeMlp), hidden)?;
        let feed_forward = feed_forward::build(self, index, &layer.feed_forward)?;
        let after_mlp = self.norm(layer.norms.after_mlp, slot(Part::AfterMlp), hidden)?;
        Ok(Layer {
            mixer,
            output,
            feed_forward,
            before_attention,
            after_attention,
            before_mlp,
            after_mlp,
            residual: layer.residual,
            residual_scale: layer.residual_scale,
        })
    }

    /// Width of the residual stream.
    pub(crate) fn hidden(&self) -> usize {
        self.spec.hidden_size
    }

    /// Projections from the residual stream, split by output rows and stacked.
    pub(crate) fn by_rows(&mut self, index: usize, stack: &[Part1d], bias: bool) -> Result<Linear, LoadError> {
        let hidden = self.spec.hidden_size;
        let slices: Vec<Slice> = (stack.iter())
            .map(|(part, total, rows)| {
                self.matrix_slice(Slot::Layer(index, *part), [*total, hidden], rows.clone(), 0..hidden)
            })
            .collect();
        let biases: Vec<Slice> = (stack.iter())
            .map(|(part, total, rows)| {
                self.vector_slice(Slot::Layer(index, *part), Kind::Bias, *total, rows.clone(), Role::Shift)
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
        (part, total, cols): Part1d,
        bias: bool,
    ) -> Result<Linear, LoadError> {
        let (hidden, slot) = (self.spec.hidden_size, Slot::Layer(index, part));
        let matrix = self.store.matrix(&[self.matrix_slice(slot, [hidden, total], 0..hidden, cols)], 0)?;
        let bias = match bias && self.shard.adds_bias() {
            true => {
                Some(self.store.vector(&[self.vector_slice(slot, Kind::Bias, hidden, 0..hidden, Role::Shift)], 0.0)?)
            }
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

    pub(crate) fn norm(&mut self, spec: Option<NormSpec>, slot: Slot, width: usize) -> Result<Option<Norm>, LoadError> {
        spec.map(|spec| self.norms(spec, &[slot], width)).transpose()
    }

    /// One norm of `width` columns for each slot, side by side.
    pub(crate) fn norms(&mut self, spec: NormSpec, slots: &[Slot], width: usize) -> Result<Norm, LoadError> {
        let slices = |kind, role| -> Vec<Slice> {
            slots.iter().map(|slot| self.vector_slice(*slot, kind, width, 0..width, role)).collect()
        };
        let (scale, one_plus, shift) =
            (slices(Kind::Weight, Role::Scale), slices(Kind::Weight, Role::Shift), slices(Kind::Bias, Role::Shift));
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

    pub(crate) fn matrix_slice(&self, slot: Slot, shape: [usize; 2], rows: Range<usize>, cols: Range<usize>) -> Slice {
        Slice { place: (self.names)(slot, Kind::Weight), shape: shape.to_vec(), rows, cols, role: Role::Matrix }
    }

    pub(crate) fn vector_slice(&self, slot: Slot, kind: Kind, len: usize, rows: Range<usize>, role: Role) -> Slice {
        Slice { place: (self.names)(slot, kind), shape: vec![len], rows, cols: 0..1, role }
    }
}
