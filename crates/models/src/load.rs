//! From a folder to a [`Model`].

use std::ops::Range;
use std::path::Path;

use kernels::ops::{Backend, DType, ExpectedAttention, ExpectedDeltaRule, Heads, KvDType, MatrixUse, ScoreMods};
use model_files::Format;
use model_spec::{
    ClassesSpec, DeltaSpec, HeadSpec, LayerSpec, LogitsSpec, MixerSpec, ModelSpec, Position, ProjectionSpec,
    ScoredTokens, TokenClasses,
};

use crate::activations::Buffers;
use crate::arch::{self, Description};
use crate::cache::{StateKind, StateOptions, StateTypes};
use crate::device::Device;
use crate::error::LoadError;
use crate::lora::{LoraForm, LoraLayer, LoraOptions};
use crate::model::Model;
use crate::network::{self, CacheTypes, Network, Parts};
use crate::placement::{Placement, Stage};
use crate::pooling;
use crate::quant::{self, Online, Quantized};
use crate::runner::{self, Decoder};
use crate::shapes;
use crate::tp::Shard;
use crate::weights::cache_scales::LayerScales;
use crate::weights::{
    Checkpoint, Dummy, Loader, Measure, Names, ParamId, Resident, TensorLocation, Weights, cache_scales,
};

/// How to load a model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// What to compute in; absent: as `config.json` says, else f32. `F32` is exact on the stored weights;
    /// the 16-bit types round weights stored otherwise, and may round the inputs of products.
    pub dtype: Option<DType>,
    /// The KV cache's element type; absent: 8-bit floats if the checkpoint is quantised for them, else what is computed
    /// in.
    pub kv_cache_dtype: Option<KvDType>,
    /// What recurrent states are kept in.
    pub states: StateOptions,
    /// Which part of the model is loaded.
    pub placement: Placement,
    /// What the network gives.
    pub head: NetworkHead,
    /// Where weights come from.
    pub format: LoadFormat,
    /// The quantisation method that the checkpoint must have, as its `quant_method` spells it, or `gguf`; absent:
    /// whichever it has. Numbers become what `quant/online.rs` names while they load.
    pub quantization: Option<String>,
    /// What becomes of the inputs of quantised layers.
    pub activations: ActivationRounding,
    /// Seed of dummy weights.
    pub seed: u64,
    /// Longest sequence that will be served, where shorter than the model's context: scalings that tell short from long
    /// ask for it.
    pub max_len: Option<usize>,
    /// Tokens of a block of the KV cache, as it will be allocated.
    pub block_size: usize,
    /// Most tokens in a step.
    pub max_rows: usize,
    /// Most rows of a step whose logits are wanted.
    pub max_logit_rows: usize,
    /// Threads that unpack quantised weights, and put together what lies in pieces.
    pub threads: usize,
    /// Adapters that the device has room for; absent: none.
    pub lora: Option<LoraOptions>,
}

impl LoadOptions {
    fn limits(&self) -> Result<Limits, LoadError> {
        let Self { max_rows, max_logit_rows, .. } = *self;
        for (what, value) in [("max_rows", max_rows), ("max_logit_rows", max_logit_rows)] {
            if value == 0 {
                return Err(LoadError::Option { what, value, reason: "it must be at least 1" });
            }
        }
        Ok(Limits { max_rows, max_logit_rows: max_logit_rows.min(max_rows) })
    }
}

/// Where weights come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LoadFormat {
    /// The model's files.
    #[default]
    Auto,
    /// The model's files, which must be safetensors.
    Safetensors,
    /// The model's files, which must be PyTorch's.
    Torch,
    /// The model's files, which must be GGUF.
    Gguf,
    /// Random numbers; only `config.json` is needed.
    Dummy,
}

/// What becomes of the inputs of layers whose checkpoint asks for rounded ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ActivationRounding {
    /// They stay what is computed in, which is closer to the model before it was quantised.
    #[default]
    None,
    /// They are rounded as the checkpoint says.
    AsConfigured,
    /// The same where that makes a device's products faster; elsewhere they stay.
    WhereFaster,
}

/// What a loaded network gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum NetworkHead {
    /// What the checkpoint's head does: logits, class scores, or hidden states where it has none.
    #[default]
    Stored,
    /// Hidden states after the last norm, of any checkpoint. Its head is not loaded.
    Hidden,
    /// What the linear layers among the modules of sentence-transformers make of hidden states.
    Projected,
    /// The last token's logits of some tokens, as class scores: of a checkpoint that generates text.
    Tokens(ScoreTokens),
}

/// Tokens whose logits are class scores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScoreTokens {
    /// One, whose logit is the score.
    One(u32),
    /// Two, the second of which a pair of texts is scored by.
    Two([u32; 2]),
}

impl ScoreTokens {
    /// The tokens, by class.
    fn list(self) -> Vec<u32> {
        match self {
            Self::One(token) => vec![token],
            Self::Two(tokens) => tokens.to_vec(),
        }
    }
}

/// How far loading has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Bytes read.
    pub bytes_done: u64,
    /// Bytes that this rank will read in all.
    pub bytes_total: u64,
}

/// Sizes of buffers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub max_rows: usize,
    pub max_logit_rows: usize,
}

/// Reads a folder's description without its weights.
pub fn read_spec(dir: &Path) -> Result<ModelSpec, LoadError> {
    Ok(arch::read(dir)?.spec)
}

/// Loads a model, or a stage of one that generates text, onto a device of its own: this rank's slices only. Every fault
/// in names and shapes is found before any weight is read.
pub fn load(
    dir: &Path,
    options: &LoadOptions,
    backend: Box<dyn Backend>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Model, LoadError> {
    let description = describe(dir, options)?;
    let mut device = Device::new(backend, options.placement.tp)?;
    let limits = options.limits()?;
    let spec = description.spec.clone();
    let in_stages = options.placement.stage.count > 1;
    if let Some(runner) = runner::without_weights(&spec) {
        if in_stages {
            return Err(LoadError::Whole { architecture: spec.architecture, why: "has no layers to divide" });
        }
        if options.lora.is_some() {
            return Err(LoadError::NoAdapters { what: spec.architecture });
        }
        return Ok(Model { spec, weight_bytes: 0, num_weights: 0, attention: Vec::new(), runner });
    }
    if in_stages && spec.head.logits().is_none() {
        return Err(LoadError::Whole { architecture: spec.architecture, why: "pools prompts, which one stage does" });
    }
    let network = Loading { dir, options, limits, description }.network(&mut device, progress)?;
    let (weight_bytes, num_weights) = (network.weight_bytes(), network.num_weights());
    let attention = device.attention.iter().copied().collect();
    Ok(Model { spec, weight_bytes, num_weights, attention, runner: Box::new(Decoder::new(device, network)?) })
}

/// Loads a model, or a stage of it, onto a device beside the networks that are there: this rank's slices only. Every
/// fault in names and shapes is found before any weight is read.
pub fn load_network(
    dir: &Path,
    options: &LoadOptions,
    device: &mut Device,
    progress: &mut dyn FnMut(Progress),
) -> Result<Network, LoadError> {
    let description = describe(dir, options)?;
    let limits = options.limits()?;
    if Shard::new(options.placement.tp.rank, options.placement.tp.size)? != device.shard {
        let (what, value) = ("tensor-parallel rank", options.placement.tp.rank);
        return Err(LoadError::Option { what, value, reason: "it must be the device's" });
    }
    if runner::without_weights(&description.spec).is_some() {
        return Err(LoadError::NotGenerating { architecture: description.spec.architecture });
    }
    let network = Loading { dir, options, limits, description }.network(device, progress)?;
    device.check().map_err(|fault| LoadError::Device(fault.to_string()))?;
    Ok(network)
}

/// The model as data, as far as the options change it.
fn describe(dir: &Path, options: &LoadOptions) -> Result<Description, LoadError> {
    let mut description = arch::read(dir)?;
    let spec = &mut description.spec;
    spec.context_len = options.max_len.map_or(spec.context_len, |len| len.min(spec.context_len));
    match options.head {
        NetworkHead::Stored => {}
        NetworkHead::Hidden => spec.head = HeadSpec::Hidden,
        NetworkHead::Projected => {
            let projections = pooling::projections(dir)?;
            description.names = with_files(description.names, &projections);
            spec.head = HeadSpec::Projected(projections);
        }
        NetworkHead::Tokens(tokens) => spec.head = token_classes(spec, tokens)?,
    }
    Ok(description)
}

/// The same names, but for projections that lie in files beside the model's own.
fn with_files(names: Names, projections: &[ProjectionSpec]) -> Names {
    let files: Vec<Option<String>> = projections.iter().map(|projection| projection.file.clone()).collect();
    Box::new(move |id, kind| match id {
        ParamId::Projection(number) => match files.get(number) {
            Some(Some(file)) => format!("{file}/linear.{}", kind.ending()).into(),
            _ => names(id, kind),
        },
        other => names(other, kind),
    })
}

/// Logits of tokens as class scores.
fn token_classes(spec: &ModelSpec, tokens: ScoreTokens) -> Result<HeadSpec, LoadError> {
    let plain = |logits: &&LogitsSpec| !logits.unit_rows && !logits.bias && spec.embedding.width == spec.hidden_size;
    let Some(logits) = spec.head.logits().filter(plain) else {
        return Err(LoadError::NoClasses { architecture: spec.architecture.clone() });
    };
    let tokens = tokens.list();
    if let Some(token) = tokens.iter().find(|token| **token as usize >= spec.vocab_size) {
        let (what, value) = ("a token of classifier_from_token", *token as usize);
        return Err(LoadError::Option { what, value, reason: "it must be of the vocabulary" });
    }
    let (count, tokens) = (tokens.len(), Some(TokenClasses { tokens, tied: logits.tied }));
    Ok(HeadSpec::Classes(ClassesSpec { count, bias: false, dense: None, of: ScoredTokens::Last, tokens }))
}

/// A network that is being loaded.
struct Loading<'a> {
    dir: &'a Path,
    options: &'a LoadOptions,
    limits: Limits,
    description: Description,
}

impl Loading<'_> {
    fn network(self, device: &mut Device, progress: &mut dyn FnMut(Progress)) -> Result<Network, LoadError> {
        let Self { dir, options, limits, description: Description { spec, names, quantized } } = self;
        let shard = device.shard;
        shard.check(&spec)?;
        shapes::check(&spec, device.backend.limits(), || device.describe())?;
        if options.lora.is_some() && !device.backend.has_lora() {
            return Err(LoadError::NoAdapters { what: device.describe() });
        }
        let extra_vocab = options.lora.map_or(0, |lora| lora.extra_vocab);
        check_extra_vocab(&spec, shard, options.lora)?;
        let compute = options.dtype.unwrap_or_else(|| spec.dtype.unwrap_or(DType::F32));
        let kv = cache_type(options, compute, quantized.fp8_cache)?;
        let cache = CacheTypes { kv, states: StateTypes::new(options.states, compute, &*device.backend) };
        let (dtype, threads) = (spec.dtype.unwrap_or(compute), options.threads);
        let dummy = Dummy::new(options.seed, dtype, threads);
        let beside = files_beside(&spec.head);
        let Opened { weights, online } = open(dir, options, quantized, dummy, &beside)?;
        if let Some(online) = online
            && !device.backend.multiplies(online.format(spec.hidden_size), MatrixUse::Linear)
        {
            let (asked, device) = (options.quantization.clone().unwrap_or_default(), device.describe());
            return Err(LoadError::Online { asked, device });
        }
        // In a cache that holds what is computed, numbers need no scale.
        let scales = match kv {
            KvDType::E4m3 => cache_scales::read(&spec, &names, &*weights)?,
            KvDType::Float(_) => vec![LayerScales::default(); spec.layers.len()],
        };
        let layers = stage_layers(&options.placement.stage, &spec, &names, &*weights)?;
        let mut measure = Measure::new(&*weights).with_extra_vocab(extra_vocab);
        network::build(&spec, &names, shard, layers.clone(), &mut measure)?;
        let (bytes_total, as_stored) = (measure.bytes, !measure.mixed);
        let types = ComputeTypes { compute, cache };
        expect(device, options, spec.hidden_size, &spec.layers[layers.clone()], types)?;
        let mut report = |bytes_done| progress(Progress { bytes_done, bytes_total });
        report(0);
        let mut loader = Loader {
            weights: &*weights,
            backend: &mut *device.backend,
            compute,
            as_stored,
            progress: &mut report,
            read: 0,
            threads: options.threads,
            online,
            activations: options.activations,
            lora: options.lora,
            resident: Resident::default(),
            buffers: Buffers { pool: &mut device.buffers, max_rows: limits.max_rows, compute },
        };
        let modules = network::build(&spec, &names, shard, layers.clone(), &mut loader)?;
        let resident = loader.resident;
        let lora = options.lora;
        let adapted_elsewhere = match lora {
            Some(_) => adapted_elsewhere(&spec, &names, shard, &layers, &*weights)?,
            None => Vec::new(),
        };
        let parts = Parts { spec, limits, compute, layers, cache, scales, modules, resident, lora, adapted_elsewhere };
        Ok(Network::new(parts, device))
    }
}

/// Refuses tokens of adapters behind the model's own where there is no room for them.
fn check_extra_vocab(spec: &ModelSpec, shard: Shard, lora: Option<LoraOptions>) -> Result<(), LoadError> {
    let Some(LoraOptions { extra_vocab: extra, saved_modules, .. }) = lora.filter(|lora| lora.extra_vocab > 0) else {
        return Ok(());
    };
    let refused = |reason| Err(LoadError::Option { what: "--lora-extra-vocab-size", value: extra, reason });
    if !saved_modules {
        return refused(
            "it needs --enable-lora-modules-to-save, which gives each adapter room for an embedding and a head",
        );
    }
    let head = spec.head.logits();
    if head.is_some_and(|head| head.bias || head.unit_rows) {
        return refused("heads with a bias, or whose rows are divided by their length, take no tokens of adapters");
    }
    // Every rank has some of the model's own.
    match shard.vocabulary(spec.vocab_size, extra).entries.is_empty() {
        true => refused("it must be smaller: a rank of --tensor-parallel-size has none of the model's own tokens"),
        false => Ok(()),
    }
}

/// The layers of a stage. All ranks come to the same cuts: they measure whole layers.
fn stage_layers(
    stage: &Stage,
    spec: &ModelSpec,
    names: &Names,
    weights: &dyn Weights,
) -> Result<Range<usize>, LoadError> {
    let count = spec.layers.len();
    if stage.count == 1 || stage.layers.is_some() {
        return stage.layers_of(&vec![0; count]);
    }
    let bytes = |layer: usize| {
        let mut measure = Measure::new(weights);
        network::build(spec, names, Shard::new(0, 1)?, layer..layer + 1, &mut measure)?;
        Ok(measure.bytes)
    };
    stage.layers_of(&(0..count).map(bytes).collect::<Result<Vec<u64>, LoadError>>()?)
}

/// The projections that take adapters, but are of other layers than `layers`.
fn adapted_elsewhere(
    spec: &ModelSpec,
    names: &Names,
    shard: Shard,
    layers: &Range<usize>,
    weights: &dyn Weights,
) -> Result<Vec<(LoraForm, TensorLocation)>, LoadError> {
    let mut found = Vec::new();
    for others in [0..layers.start, layers.end..spec.layers.len()].into_iter().filter(|others| !others.is_empty()) {
        let built = network::build(spec, names, shard, others, &mut Measure::adapted(weights))?;
        for LoraLayer { form, projections, parameter, .. } in built.lora {
            found.extend(projections.into_iter().map(|projection| (form, projection.location)));
            found.extend(parameter.into_iter().flat_map(|one| one.locations()).map(|location| (form, location)));
        }
    }
    Ok(found)
}

/// Files beside the model's own that hold a part of its head.
fn files_beside(head: &HeadSpec) -> Vec<&str> {
    let (HeadSpec::Projected(projections) | HeadSpec::HiddenWith(projections)) = head else { return Vec::new() };
    projections.iter().filter_map(|projection| projection.file.as_deref()).collect()
}

/// Where weights come from.
struct Opened {
    weights: Box<dyn Weights>,
    /// What their numbers become.
    online: Option<Online>,
}

/// Opens where weights come from; fails where they are not stored as was asked for.
fn open(
    dir: &Path,
    options: &LoadOptions,
    quantized: Quantized,
    dummy: Dummy,
    beside: &[&str],
) -> Result<Opened, LoadError> {
    let only = match options.format {
        LoadFormat::Auto => None,
        LoadFormat::Safetensors => Some(Format::Safetensors),
        LoadFormat::Torch => Some(Format::Torch),
        LoadFormat::Gguf => Some(Format::Gguf),
        LoadFormat::Dummy => {
            let online = quant::check_asked(options.quantization.as_deref(), quantized.method)?;
            let dummy = Dummy { stored: quantized.dummy()?, ..dummy };
            return Ok(Opened { weights: Box::new(dummy), online });
        }
    };
    let checkpoint = Checkpoint::open(dir, only, options.threads)?.with(beside)?;
    let online = quant::check_asked(options.quantization.as_deref(), checkpoint.method().or(quantized.method))?;
    Ok(Opened { weights: Box::new(checkpoint.quantized(quantized.weights)), online })
}

/// Tells the device what attention will come, computed and kept in these types, before weights do.
fn expect(
    device: &mut Device,
    options: &LoadOptions,
    hidden: usize,
    layers: &[LayerSpec],
    types: ComputeTypes,
) -> Result<(), LoadError> {
    let shard = device.shard;
    for layer in layers {
        let (heads, shared, scores) = match &layer.mixer {
            MixerSpec::Attention(attention) => {
                let (q, kv) = (shard.part(attention.heads).len(), shard.kv_heads(attention.kv_heads).len());
                let scores = ScoreMods {
                    soft_cap: attention.soft_cap.is_some(),
                    alibi: matches!(attention.position, Position::Alibi(_)),
                    relative: matches!(attention.position, Position::Relative(_)),
                };
                let heads = Heads { q, kv, dim: attention.head_dim, v_dim: attention.v_head_dim };
                (heads, false, scores)
            }
            MixerSpec::Latent(latent) => {
                let (q, dim) = (shard.part(latent.heads).len(), latent.rope_dim + latent.kv_rank);
                (Heads { q, kv: 1, dim, v_dim: latent.kv_rank }, true, ScoreMods::default())
            }
            MixerSpec::Delta(delta) => {
                expect_delta_rule(device, options, delta, types);
                continue;
            }
            _ => continue,
        };
        let ComputeTypes { compute, cache: CacheTypes { kv: cache, .. } } = types;
        let block_size = options.block_size;
        let expected = ExpectedAttention { heads, hidden, compute, cache, block_size, shared, scores };
        let kernels = device.backend.expect_attention(expected).map_err(LoadError::Attention)?;
        device.attention.extend(kernels);
    }
    Ok(())
}

/// The same of linear attention.
fn expect_delta_rule(device: &mut Device, options: &LoadOptions, delta: &DeltaSpec, types: ComputeTypes) {
    let ComputeTypes { compute, cache } = types;
    let kept = cache.states.of(StateKind::Recurrent);
    let DeltaSpec { value_heads, key_dim, value_dim, .. } = *delta;
    let (value_heads, max_rows) = (device.shard.part(value_heads).len(), options.max_rows);
    device.backend.expect_delta_rule(ExpectedDeltaRule { value_heads, key_dim, value_dim, compute, kept, max_rows });
}

/// What rows are computed in, and what is kept of them.
#[derive(Clone, Copy)]
struct ComputeTypes {
    compute: DType,
    cache: CacheTypes,
}

/// Keys and values are kept as they are computed, or in 8-bit floats: where that is asked for, or `quantised`, unless
/// something else is asked for.
fn cache_type(options: &LoadOptions, compute: DType, quantised: bool) -> Result<KvDType, LoadError> {
    match options.kv_cache_dtype {
        None => Ok(if quantised { KvDType::E4m3 } else { compute.into() }),
        Some(asked) if asked == compute || asked == KvDType::E4m3 => Ok(asked),
        Some(asked) => Err(LoadError::CacheType { asked: asked.name(), compute: compute.name() }),
    }
}
