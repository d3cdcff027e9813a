//! From a [`ModelSpec`] to weights on a device: which slices of which tensors this rank needs, fused as the decoder
//! runs them.

use std::ops::Range;

use kernels::ops::{Entries, Matrix, MatrixUse, Table, Vector};
use model_spec::{
    ClassesSpec, DenseSpec, EmbeddingSpec, HeadSpec, LayerSpec, LogitsSpec, ModelSpec, PositionTable, ProjectionSpec,
    Residual, TokenClasses,
};

use super::modules::{
    ClassesHead, DenseHead, Embedding, Head, Layer, LogitsHead, Modules, Output, ProjectedLinear, WideLogits,
};
use crate::builder::{Builder, LinearPart};
use crate::error::LoadError;
use crate::feed_forward;
use crate::linear::{Linear, Split};
use crate::lora::LoraForm;
use crate::mixer;
use crate::tp::{Shard, Vocabulary};
use crate::weights::{LayerParam, Names, ParamId, ParamKind, Role, Slice, Store};

/// This rank's rows of the embedding or the head.
struct EntryRows {
    /// Of the model's matrix.
    slice: Slice,
    /// Rows of padding after these.
    pad_rows: usize,
    /// Of the vocabulary with the tokens that adapters may have, and the rows of padding after those.
    wide: Range<usize>,
    wide_pad_rows: usize,
}

/// Walks over some layers of a model once, taking everything that this rank needs from `store`.
pub(crate) fn build(
    spec: &ModelSpec,
    names: &Names,
    shard: Shard,
    layers: Range<usize>,
    store: &mut dyn Store,
) -> Result<Modules, LoadError> {
    let (ropes, lora, saved) = (Vec::new(), Vec::new(), Vec::new());
    Builder { spec, names, shard, store, ropes, relative: None, lora, saved }.modules(layers)
}

impl Builder<'_> {
    fn modules(mut self, layers: Range<usize>) -> Result<Modules, LoadError> {
        let spec = self.spec;
        let (input, tied) = match layers.start == 0 {
            true => {
                let (input, tied) = self.embedding(layers.end == spec.layers.len())?;
                (Some(input), tied)
            }
            false => (None, None),
        };
        let is_last = layers.end == spec.layers.len();
        let layers =
            layers.map(|index| self.layer(index, &spec.layers[index])).collect::<Result<Vec<Layer>, LoadError>>()?;
        let output = if is_last { Some(self.output(tied)?) } else { None };
        Ok(Modules { hidden: spec.hidden_size, input, layers, output, lora: self.lora, saved: self.saved })
    }

    /// From tokens to the residual stream; and the matrix whose rows the table is, where that is this network's head.
    fn embedding(&mut self, has_head: bool) -> Result<(Embedding, Option<Matrix>), LoadError> {
        let EmbeddingSpec { width, scale, norm, .. } = self.spec.embedding;
        let hidden = self.spec.hidden_size;
        let EntryRows { slice, pad_rows, wide: rows, .. } = self.entries(ParamId::Embedding);
        let entries = Entries { first: slice.rows.start as u32, scale };
        let (table, tied) = match &self.spec.head {
            HeadSpec::Logits(head) if has_head && head.tied && !head.unit_rows => {
                let matrix = self.store.matrix(&[slice], pad_rows, MatrixUse::Table)?;
                (self.store.table_of(matrix), Some(matrix))
            }
            _ => (self.store.table(&[slice], pad_rows)?, None),
        };
        let (id, vocab) = (ParamId::Embedding, self.spec.vocab_size + self.store.extra_vocab());
        let part = LinearPart { id, shape: [vocab, width], rows: rows.clone(), cols: 0..width };
        let saved = self.saved_site(LoraForm::Embedding, &part, 0);
        let turned = LinearPart { id, shape: [width, vocab], rows: 0..width, cols: rows };
        let lora = self.lora_site(LoraForm::Embedding, &[turned], 0);
        let project = self.projection(ParamId::ProjectIn, [hidden, width])?;
        let token_types = self.token_types(hidden)?;
        let positions = self.positions(hidden)?;
        let norm = self.norm(norm, ParamId::EmbeddingNorm, hidden)?;
        Ok((Embedding { table, entries, lora, saved, project, token_types, positions, norm }, tied))
    }

    /// This rank's rows of a matrix `[vocab, embedding width]`.
    fn entries(&self, id: ParamId) -> EntryRows {
        let (vocab, width, extra) = (self.spec.vocab_size, self.spec.embedding.width, self.store.extra_vocab());
        let Vocabulary { entries, wide, pad_rows } = self.shard.vocabulary(vocab, extra);
        let slice = self.matrix_slice(id, [vocab, width], entries, 0..width);
        // What the model's matrix lacks of wider logits is masked: padding would only cost its format.
        EntryRows { slice, pad_rows: if extra == 0 { pad_rows } else { 0 }, wide, wide_pad_rows: pad_rows }
    }

    /// From the residual stream to what the model gives. `tied`: the head's matrix, where it is loaded already.
    fn output(&mut self, tied: Option<Matrix>) -> Result<Output, LoadError> {
        let hidden = self.spec.hidden_size;
        let norm = self.norm(self.spec.final_norm, ParamId::FinalNorm, hidden)?;
        let head = match &self.spec.head {
            HeadSpec::Logits(head) => Head::Logits(self.logits_head(head, tied)?),
            HeadSpec::Hidden => Head::Hidden,
            HeadSpec::Classes(classes) => Head::Classes(self.classes_head(classes)?),
            HeadSpec::Projected(layers) => Head::Projected(self.projected_head(layers)?),
            HeadSpec::HiddenWith(layers) => Head::HiddenWith(self.projected_head(layers)?),
        };
        Ok(Output { norm, head, vocab: self.spec.vocab_size + self.store.extra_vocab() })
    }

    /// Whole on every rank.
    fn classes_head(&mut self, classes: &ClassesSpec) -> Result<ClassesHead, LoadError> {
        let (hidden, vocab) = (self.spec.hidden_size, self.spec.vocab_size);
        let whole = |id, rows: usize| LinearPart { id, shape: [rows, hidden], rows: 0..rows, cols: 0..hidden };
        let dense = match classes.dense {
            Some(DenseSpec { activation, bias, norm }) => Some(DenseHead {
                linear: self.linear(&[whole(ParamId::HeadDense, hidden)], bias, Split::Outputs)?,
                activation,
                norm: self.norm(norm, ParamId::HeadNorm, hidden)?,
            }),
            None => None,
        };
        let parts = match &classes.tokens {
            None => vec![whole(ParamId::Head, classes.count)],
            Some(TokenClasses { tokens, tied }) => {
                let id = if *tied { ParamId::Embedding } else { ParamId::Head };
                let row = |token: &u32| LinearPart { rows: *token as usize..*token as usize + 1, ..whole(id, vocab) };
                tokens.iter().map(row).collect()
            }
        };
        Ok(ClassesHead { dense, linear: self.linear(&parts, classes.bias, Split::Outputs)?, count: classes.count })
    }

    /// Whole on every rank.
    fn projected_head(&mut self, layers: &[ProjectionSpec]) -> Result<Vec<ProjectedLinear>, LoadError> {
        let build = |(number, layer): (usize, &ProjectionSpec)| {
            let ProjectionSpec { inputs, outputs, bias, activation, .. } = *layer;
            let (id, shape) = (ParamId::Projection(number), [outputs, inputs]);
            let part = LinearPart { id, shape, rows: 0..outputs, cols: 0..inputs };
            let linear = self.linear(&[part], bias, Split::Outputs)?;
            Ok(ProjectedLinear { linear, activation, width: outputs })
        };
        layers.iter().enumerate().map(build).collect()
    }

    fn logits_head(&mut self, head: &LogitsSpec, tied: Option<Matrix>) -> Result<LogitsHead, LoadError> {
        let (vocab, width, hidden) = (self.spec.vocab_size, self.spec.embedding.width, self.spec.hidden_size);
        let project = self.projection(ParamId::ProjectOut, [width, hidden])?;
        let EntryRows { slice, pad_rows, wide: rows, wide_pad_rows } =
            self.entries(if head.tied { ParamId::Embedding } else { ParamId::Head });
        let (own, extra) = (slice.rows.len(), self.store.extra_vocab());
        let role = if head.unit_rows { Role::UnitRows } else { Role::Matrix };
        // A tied head is stored as a table wherever it is loaded.
        let by = if head.tied { MatrixUse::Table } else { MatrixUse::Linear };
        let matrix = match tied {
            Some(matrix) => matrix,
            None => self.store.matrix(&[Slice { role, ..slice }], pad_rows, by)?,
        };
        let bias = if head.bias { Some(self.head_bias(vocab)?) } else { None };
        let columns = rows.len() + wide_pad_rows;
        let part = [LinearPart { id: ParamId::Head, shape: [vocab + extra, width], rows, cols: 0..width }];
        // A delta would have to be added before rows are divided by their length.
        let lora = if head.unit_rows { None } else { self.lora_site(LoraForm::Head, &part, wide_pad_rows) };
        // PEFT saves a bias with its matrix.
        let is_plain = !head.unit_rows && !head.bias;
        let saved = if is_plain { self.saved_site(LoraForm::Head, &part[0], wide_pad_rows) } else { None };
        let wide = if extra > 0 { saved.map(|site| WideLogits { site, own }) } else { None };
        let linear = Linear::new(matrix, bias, Split::Outputs).with_adapters(lora).with_saved(saved);
        Ok(LogitsHead { project, linear, width: columns, wide, scale: head.scale, soft_cap: head.soft_cap })
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

    fn token_types(&mut self, hidden: usize) -> Result<Option<Table>, LoadError> {
        let Some(rows) = self.spec.embedding.token_types else { return Ok(None) };
        let slice = self.matrix_slice(ParamId::TokenTypes, [rows, hidden], 0..rows, 0..hidden);
        Ok(Some(self.store.table(&[slice], 0)?))
    }

    fn positions(&mut self, hidden: usize) -> Result<Option<(Table, usize)>, LoadError> {
        let Some(PositionTable { rows, offset }) = self.spec.embedding.positions else { return Ok(None) };
        let slice = self.matrix_slice(ParamId::Positions, [rows, hidden], 0..rows, 0..hidden);
        Ok(Some((self.store.table(&[slice], 0)?, offset)))
    }

    /// Split like the head; where rows are padded the bias is padded with what lies before it; padding is never read.
    fn head_bias(&mut self, vocab: usize) -> Result<Vector, LoadError> {
        let rows = self.shard.vocabulary(vocab, 0);
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
