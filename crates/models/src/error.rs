//! Why a model did not load, or a step did not run.

use std::path::PathBuf;

use collectives::CollectiveError;
use model_files::FilesError;
use model_spec::ConfigError;

/// A model folder that cannot be served, or not so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// `config.json` or a sibling.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The weight files.
    #[error(transparent)]
    Files(#[from] FilesError),
    /// Weights in another format than was asked for.
    #[error(
        "the weights of {} are stored as {found}, but --load-format {asked} asks for others; pass auto",
        model.display()
    )]
    Format {
        /// The model.
        model: PathBuf,
        /// How they are stored.
        found: &'static str,
        /// What was asked for.
        asked: &'static str,
    },
    /// A cache of a type that keys and values cannot be kept in.
    #[error(
        "a KV cache of {asked} beside computing in {compute}: --kv-cache-dtype is auto or fp8, or what --dtype says"
    )]
    CacheType {
        /// What was asked for.
        asked: &'static str,
        /// What is computed in.
        compute: &'static str,
    },
    /// Attention kernels that are not for the model's layers.
    #[error("--attention-backend: {0}")]
    Attention(String),
    /// A scale of cached keys or values that cannot be honoured.
    #[error(
        "tensor {tensor:?} scales a KV cache of 8-bit floats: {reason}; --kv-cache-dtype bfloat16 or float16 does \
         without"
    )]
    CacheScale {
        /// The tensor.
        tensor: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// Adapters for a device or a model that takes none.
    #[error("--enable-lora: {what} takes no adapters")]
    NoAdapters {
        /// The device or the architecture.
        what: String,
    },
    /// A tensor that the architecture needs is in no file.
    #[error("tensor {tensor:?} is in no weight file of {}{}; do config.json and weights belong together?",
            dir.display(), nearest.as_ref().map(|n| format!(" (nearest name: {n:?})")).unwrap_or_default())]
    MissingTensor {
        /// The folder.
        dir: PathBuf,
        /// The tensor.
        tensor: String,
        /// The most similar name that is there.
        nearest: Option<String>,
    },
    /// A tensor has another shape than `config.json` implies.
    #[error("{}: tensor {tensor:?} has shape {found:?}, but config.json implies {expected:?}", file.display())]
    Shape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What `config.json` implies.
        expected: Vec<usize>,
        /// What is there.
        found: Vec<usize>,
    },
    /// A tensor has an element type that cannot be used as a plain weight.
    #[error("{}: tensor {tensor:?} has element type {found}; expected F32, F16 or BF16", file.display())]
    ElementType {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is there.
        found: String,
    },
    /// A tensor whose content cannot be used.
    #[error("{}: tensor {tensor:?}: {reason}", file.display())]
    Tensor {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// Weights in another format than was asked for.
    #[error("--quantization {asked}, but the checkpoint is {found}; leave the flag out")]
    Quantization {
        /// What was asked for.
        asked: String,
        /// What the checkpoint is.
        found: &'static str,
    },
    /// Weights cannot be quantised while they load.
    #[error("--quantization {asked}: {device} does not multiply by such weights; leave the flag out")]
    Online {
        /// What was asked for.
        asked: String,
        /// The device.
        device: String,
    },
    /// Random weights of a format that is not made up.
    #[error("no random weights are made as {method} stores these; take quantization_config out of config.json")]
    DummyQuantized {
        /// `quant_method`.
        method: &'static str,
    },
    /// Activations that a checkpoint wants rounded, which cannot be done.
    #[error("inputs of {tensor:?} cannot be rounded as the checkpoint asks: {reason}")]
    Activations {
        /// The weight.
        tensor: String,
        /// Why.
        reason: &'static str,
    },
    /// A size beyond what the device has kernels for.
    #[error("{what} = {size} is too large for {device}, which computes up to {most}; start with --device cpu")]
    Beyond {
        /// The name in `config.json`.
        what: &'static str,
        /// Its value.
        size: usize,
        /// The largest that is possible.
        most: usize,
        /// The device.
        device: String,
    },
    /// A size that cannot be split over the ranks.
    #[error("{what} = {size} cannot be split over tensor-parallel size {ranks}; choose a size that {remedy}")]
    Shard {
        /// The name in `config.json`.
        what: &'static str,
        /// Its value.
        size: usize,
        /// Ranks asked for.
        ranks: usize,
        /// What would work, after "choose a size that".
        remedy: String,
    },
    /// A combination that the decoder does not run.
    #[error("layer {layer}: {what} is not supported")]
    Unsupported {
        /// Which layer.
        layer: usize,
        /// The combination.
        what: &'static str,
    },
    /// A model that text cannot be generated with: it gives hidden states or class scores.
    #[error("{architecture} does not go from tokens to logits; generating text takes a model that does")]
    NotGenerating {
        /// Its class.
        architecture: String,
    },
    /// A model that runs in one stage.
    #[error("{architecture} {why}; leave out --pipeline-parallel-size")]
    Whole {
        /// Its class.
        architecture: String,
        /// What keeps it from being divided.
        why: &'static str,
    },
    /// A model that is to pool, and not to be converted.
    #[error("{architecture} generates text; --convert embed makes it give embeddings, --runner generate texts")]
    NotPooling {
        /// Its class.
        architecture: String,
    },
    /// A model without class scores that is to classify.
    #[error("--convert classify: {architecture} has no class scores; only models with a head for them classify")]
    NoClasses {
        /// Its class.
        architecture: String,
    },
    /// The device failed, or its memory did not suffice.
    #[error("{0}")]
    Device(String),
    /// A file that cannot be written.
    #[error("cannot write {}: {source}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Options that contradict themselves.
    #[error("{what} is {value}: {reason}")]
    Option {
        /// The option.
        what: &'static str,
        /// Its value.
        value: usize,
        /// Why it is impossible.
        reason: &'static str,
    },
}

/// A step that was not run. The model stays usable, unless its device failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ForwardError {
    /// The group of ranks failed; the step's cache entries are undefined.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// More rows than the model was loaded for, or none.
    #[error("a step of {rows} {what}; from 1 to {max} are possible")]
    Rows {
        /// `tokens` or `rows with logits`.
        what: &'static str,
        /// Asked for.
        rows: usize,
        /// Limit given at load.
        max: usize,
    },
    /// A token id outside the vocabulary.
    #[error("token {token} is outside the vocabulary of {vocab}")]
    Token {
        /// The token.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A position beyond the learned ones.
    #[error("position {position} of a model with {positions} learned positions")]
    Position {
        /// The position.
        position: u32,
        /// Positions that the model has.
        positions: usize,
    },
    /// The batch contradicts itself.
    #[error("sequence {sequence} of the batch: {reason}")]
    Batch {
        /// Index of the sequence.
        sequence: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// Logits were asked for rows that are not in ascending order within the batch.
    #[error("logit rows must ascend and be below {rows}")]
    LogitRows {
        /// Rows in the batch.
        rows: usize,
    },
    /// Tokens were asked for of rows without logits, or for slots that do not exist.
    #[error("tokens are chosen from rows below {logit_rows}, in ascending order, for slots below {slots}")]
    Choices {
        /// Rows with logits.
        logit_rows: usize,
        /// Slots.
        slots: usize,
    },
    /// [`Runner::allocate`](crate::Runner::allocate) was not called.
    #[error("no key/value memory was allocated")]
    NoKv,
    /// The group is not the one that the model was split for.
    #[error("the model is rank {rank} of {size}, but the group says rank {group_rank} of {group_size}")]
    Group {
        /// Rank at load.
        rank: usize,
        /// Ranks at load.
        size: usize,
        /// Rank in the group.
        group_rank: usize,
        /// Ranks in the group.
        group_size: usize,
    },
    /// Tokens were to be sampled from something else than logits as wide as those that the device's slots were made
    /// for.
    #[error("tokens are sampled from logits of {slots} columns; this network gives rows of {width}")]
    Vocabulary {
        /// Columns of the network's outputs.
        width: usize,
        /// Columns of the logits that the slots were made for.
        slots: usize,
    },
    /// A stage was given another number of values than its rows have, or some though it embeds tokens.
    #[error("a stage was given {found} values of the residual stream; its rows have {expected}")]
    Received {
        /// Values that it takes.
        expected: usize,
        /// Values that it was given.
        found: usize,
    },
    /// Outputs were asked for after another network of the device had run, or before any step.
    #[error("the outputs are gone: another network's step, or none, was the device's last")]
    OutputsGone,
    /// The device failed: nothing on it can be used any more.
    #[error("{0}")]
    Device(String),
}
