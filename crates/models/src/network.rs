//! From a [`ModelSpec`] to weights on a device: which slices of which tensors this rank needs, fused as the decoder runs them.

use kernels::ops::{Matrix, MatrixUse, Norm, Table, Vector};
use model_spec::{LayerSpec, ModelSpec, PositionTable, Residual};

use crate::builder::{Builder, LinearPart};
use crate::error::LoadError;
use crate::feed_forward::{self, FeedForward};
use crate::linear::{Linear, Split};
use crate::mixer::{self, Mixer};
use crate::tp::Shard;
use crate::weights::{LayerParam, Names, ParamId, ParamKind, Role, Slice, Store};

/// A model's weights on a device, ready to run.
pub(crate) struct Network {
    pub embedding: Table,
    /// Token of the table's first row.
    pub first_entry: u32,
    pub project_in: Option<Linear>,
    /// Learned positions, and the row of position 0.
    pub positions: Option<(Table, usize)>,
    pub embedding_norm: Option<Norm>,
    pub layers: Vec<Layer>,
    pub final_norm: Option<Norm>,
    pub project_out: Option<Linear>,
    pub head: Linear,
    /// Columns of this rank's logits, padding included.
    pub head_width: usize,
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

impl Builder<'_> {
    fn network(mut self) -> Result<Network, LoadError> {
        let (vocab, hidden, width) = (self.spec.vocab_size, self.spec.hidden_size, self.spec.embedding.width);
        let rows = self.shard.vocabulary(vocab);
        let entries = |id, builder: &Self| builder.matrix_slice(id, [vocab, width], rows.entries.clone(), 0..width);
        let (embedding, shared) = self.embedding(entries(ParamId::Embedding, &self), rows.pad_rows)?;
        let project_in = self.projection(ParamId::ProjectIn, [hidden, width])?;
        let positions = self.positions(hidden)?;
        let embedding_norm = self.norm(self.spec.embedding.norm, ParamId::EmbeddingNorm, hidden)?;
        let layers = self.spec.layers.iter().enumerate();
        let layers = layers.map(|(index, layer)| self.layer(index, layer)).collect::<Result<_, _>>()?;
        let final_norm = self.norm(self.spec.final_norm, ParamId::FinalNorm, hidden)?;
        let project_out = self.projection(ParamId::ProjectOut, [width, hidden])?;
        let head_slot = if self.spec.head.tied { ParamId::Embedding } else { ParamId::Head };
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
            head: Linear::new(matrix, bias, Split::Outputs),
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
        let by = if self.spec.head.tied { MatrixUse::Table } else { MatrixUse::Linear };
        self.store.matrix(&[Slice { role, ..slice }], pad_rows, by)
    }

    /// Between the embedding's width and the residual stream's, where they differ; whole on every rank.
    fn projection(&mut self, id: ParamId, shape: [usize; 2]) -> Result<Option<Linear>, LoadError> {
        let [rows, cols] = shape;
        if rows == cols {
            return Ok(None);
        }
        let part = LinearPart { id, shape, rows: 0..rows, cols: 0..cols };
        self.linear(&[part], false, Split::Outputs).map(Some)
    }

    fn positions(&mut self, hidden: usize) -> Result<Option<(Table, usize)>, LoadError> {
        let Some(PositionTable { rows, offset }) = self.spec.embedding.positions else { return Ok(None) };
        let slice = self.matrix_slice(ParamId::Positions, [rows, hidden], 0..rows, 0..hidden);
        Ok(Some((self.store.table(&[slice], 0)?, offset)))
    }

    /// Split like the head; where rows are padded the bias is padded with what lies before it; padding is never read.
    fn head_bias(&mut self, vocab: usize) -> Result<Vector, LoadError> {
        let rows = self.shard.vocabulary(vocab);
        let mut stack = vec![self.vector_slice(ParamId::Head, ParamKind::Bias, vocab, rows.entries, Role::Shift)];
        if rows.pad_rows > 0 {
            stack.push(self.vector_slice(ParamId::Head, ParamKind::Bias, vocab, 0..rows.pad_rows, Role::Shift));
        }
        self.store.vector(&stack, 0.0)
    }

    fn layer(&mut self, index: usize, layer: &LayerSpec) -> Result<Layer, LoadError> {
        let parallel = layer.residual == Residual::Parallel;
        if parallel && (layer.norms.after_attention.is_some() || layer.norms.after_mlp.is_some()) {
            return Err(LoadError::Unsupported { layer: index, what: "a parallel residual with norms on its outputs" });
        }
        let hidden = self.spec.hidden_size;
        let id = |part| ParamId::Layer(index, part);
        let before_attention = self.norm(layer.norms.before_attention, id(LayerParam::BeforeAttention), hidden)?;
        let (mixer, output) = mixer::build(self, index, &layer.mixer)?;
        let after_attention = self.norm(layer.norms.after_attention, id(LayerParam::AfterAttention), hidden)?;
        let before_mlp = self.norm(layer.norms.before_mlp, id(LayerParam::BeforeMlp), hidden)?;
        let feed_forward = feed_forward::build(self, index, &layer.feed_forward)?;
        let after_mlp = self.norm(layer.norms.after_mlp, id(LayerParam::AfterMlp), hidden)?;
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
}
