//! [`Model`]: what a worker loads.

use kernels::ops::AttentionKernels;
use model_spec::ModelSpec;

use crate::runner::Runner;

/// A loaded model: this rank's part of it.
pub struct Model {
    /// The model as data.
    pub spec: ModelSpec,
    /// Bytes of weights on the device, with their scales.
    pub weight_bytes: u64,
    /// How many weights these are.
    pub num_weights: u64,
    /// The kernels by which its layers attend, each pair once; empty where the device has but one for all.
    pub attention: Vec<AttentionKernels>,
    /// Runs its steps.
    pub runner: Box<dyn Runner>,
}

/// Logits of a step.
#[derive(Clone, Copy, Debug)]
pub struct Logits<'a> {
    /// Rows asked for.
    pub rows: usize,
    /// Columns: [`ModelSpec::vocab_size`], which may exceed the tokenizer's vocabulary, and those of adapters' tokens.
    pub vocab: usize,
    /// Columns of the model's own tokens.
    pub own: usize,
    /// `[rows, vocab]`, row-major.
    pub data: &'a [f32],
}

impl Logits<'_> {
    /// One row, without the columns behind the model's own that its sequence does not know.
    pub fn row(&self, row: usize) -> &[f32] {
        let row = &self.data[row * self.vocab..(row + 1) * self.vocab];
        let extra = row[self.own..].iter().rposition(|logit| *logit != f32::NEG_INFINITY).map_or(0, |last| last + 1);
        &row[..self.own + extra]
    }
}

/// Sizes of a model's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Blocks of keys and values in every layer.
    pub num_blocks: usize,
    /// Tokens a block.
    pub block_size: usize,
    /// Sequences that may run at the same time; their slots are below this.
    pub max_sequences: usize,
}
