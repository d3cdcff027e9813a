//! Low-rank adapters (LoRA) of a model's linear layers and its embedding, as PEFT stores them, with the embeddings and
//! heads that were trained beside them.
//!
//! A network that was loaded with [`LoraOptions`] has slots for adapters on its device. Its [`AdapterLayout`] reads an
//! adapter's folder, on any thread, into an [`Adapter`]: this rank's slices of it, checked against the model. An
//! [`AdapterWrite`] brings that into a slot, piece by piece between the steps of others, and later steps say which
//! sequence uses which slot.

mod config;
mod dummy;
mod error;
mod modules;
mod numbers;
mod parameters;
mod places;
mod read;
mod source;
mod vocabulary;

use std::ops::Range;
use std::sync::Arc;

use kernels::ops::{Backend, DType, LoraSite, LoraWeights, SavedSite, Taken};

pub use self::error::AdapterError;
use self::numbers::Numbers;
pub(crate) use self::parameters::ExpertParameter;
use crate::weights::TensorLocation;

/// Room for adapters on a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoraOptions {
    /// Adapters that the device holds at a time.
    pub slots: usize,
    /// Largest rank of an adapter.
    pub max_rank: usize,
    /// What the device keeps them in; absent: what is computed in.
    pub dtype: Option<DType>,
    /// Whether each slot has room for the experts of mixtures.
    pub experts: bool,
    /// Whether each slot has room for a whole embedding and a whole head, in place of the model's.
    pub saved_modules: bool,
    /// Tokens that these may have behind the model's own. Needs `saved_modules`.
    pub extra_vocab: usize,
}

/// Tokens that adapters may know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Vocabulary {
    /// The model's.
    pub own: usize,
    /// Those that adapters may have behind them.
    pub extra: usize,
}

/// Which layers of a network take adapters, and what a rank needs of an adapter.
#[derive(Clone, Debug)]
pub struct AdapterLayout {
    pub(crate) layers: Vec<LoraLayer>,
    /// The modules that adapters may have in place of the model's; none without room for that.
    pub(crate) saved: Vec<SavedLayer>,
    /// Projections that other stages have, and parameters of experts. These stages check what adapters have for them.
    pub(crate) elsewhere: Vec<(LoraForm, TensorLocation)>,
    pub(crate) max_rank: usize,
    /// Whether slots have room for experts.
    pub(crate) experts: bool,
    /// Whether slots have room for saved modules, here or in other stages.
    pub(crate) saves: bool,
    pub(crate) vocab: Vocabulary,
    /// What adapters are kept in, on the host as on the device.
    pub(crate) dtype: DType,
}

/// What a slot of the device has room for, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotBytes {
    /// In all.
    pub all: u64,
    /// Of that, experts.
    pub experts: u64,
}

impl AdapterLayout {
    /// Tokens that adapters may have behind the model's own.
    pub fn extra_vocab(&self) -> usize {
        self.vocab.extra
    }

    /// The room that a slot has.
    pub fn slot_bytes(&self) -> SlotBytes {
        let numbers = |layer: &LoraLayer| -> usize {
            let outputs = |one: &Projection| one.rows.len() + one.pad_rows;
            layer.projections.iter().map(|one| self.max_rank * (one.cols.len() + outputs(one))).sum()
        };
        let bytes = |numbers: usize| (numbers * self.dtype.size()) as u64;
        let sum = |of_experts: bool| {
            bytes(self.layers.iter().filter(|layer| layer.of_experts == of_experts).map(numbers).sum())
        };
        let saved =
            self.saved.iter().map(|layer| (layer.matrix.rows.len() + layer.matrix.pad_rows) * layer.matrix.cols.len());
        let experts = sum(true);
        SlotBytes { all: sum(false) + experts + bytes(saved.sum()), experts }
    }
}

/// What a layer that takes adapters is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LoraForm {
    /// A linear layer inside the model's layers.
    Linear,
    /// The linear layer that gives logits.
    Head,
    /// The table of tokens: a linear layer of one-hot inputs.
    Embedding,
}

/// A layer that takes adapters.
#[derive(Clone, Debug)]
pub(crate) struct LoraLayer {
    pub form: LoraForm,
    pub site: LoraSite,
    /// The projections that it stacks, in order; of experts, expert after expert.
    pub projections: Vec<Projection>,
    /// Whether it is one of experts.
    pub of_experts: bool,
    /// Of experts, what has all of these for PEFT, which may adapt it as a whole.
    pub parameter: Option<ExpertParameter>,
}

/// An embedding or a head that adapters may have in place of the model's.
#[derive(Clone, Debug)]
pub(crate) struct SavedLayer {
    pub form: LoraForm,
    pub site: SavedSite,
    /// The model's own matrix, a row for each token.
    pub matrix: Projection,
}

/// One projection of a layer, as far as this rank has it.
#[derive(Clone, Debug)]
pub(crate) struct Projection {
    /// Where its matrix lies in the model's files, whose names adapters use.
    pub location: TensorLocation,
    /// `[out_features, in_features]` of the whole projection.
    pub shape: [usize; 2],
    pub rows: Range<usize>,
    pub cols: Range<usize>,
    /// Rows of zeros after those of this rank.
    pub pad_rows: usize,
}

/// An adapter on the host: this rank's slices, ready to be copied into a slot.
#[derive(Debug)]
pub struct Adapter {
    /// By layer of the layout; a layer that the adapter leaves alone is empty.
    layers: Vec<Vec<Option<Delta>>>,
    /// By module of the layout: a matrix in place of the model's.
    saved: Vec<Option<Numbers>>,
    /// Tokens that it knows, where it has an embedding or a head of its own.
    vocab_size: Option<usize>,
    fingerprint: String,
}

/// One projection's matrices.
#[derive(Debug)]
struct Delta {
    rank: usize,
    /// `[rank, in_features]`.
    a: Numbers,
    /// `[out_features, rank]`, scaled.
    b: Numbers,
}

impl Delta {
    fn weights(&self) -> LoraWeights<'_> {
        LoraWeights { rank: self.rank, a: self.a.elements(), b: self.b.elements() }
    }
}

impl Adapter {
    /// A hash of the files that it was read from, the same on every rank.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Tokens that it knows, where it has an embedding or a head of its own; else it knows the model's.
    pub fn vocab_size(&self) -> Option<usize> {
        self.vocab_size
    }

    /// Bytes that it takes on the host.
    pub fn bytes(&self) -> u64 {
        let deltas = self.layers.iter().flatten().flatten().flat_map(|delta| [&delta.a, &delta.b]);
        deltas.chain(self.saved.iter().flatten()).map(Numbers::bytes).sum()
    }

    /// Goes on filling a slot of one of the layout's sites, linear layers and embeddings before whole matrices; absent:
    /// there are not so many.
    fn write_to(&self, site: usize, layout: &AdapterLayout, to: Target<'_>) -> Option<Taken> {
        let Target { slot, taken, backend } = to;
        if let (Some(layer), Some(deltas)) = (layout.layers.get(site), self.layers.get(site)) {
            let part = |index: usize| deltas.get(index).and_then(Option::as_ref).map(Delta::weights);
            let parts: Vec<Option<LoraWeights<'_>>> = (0..layer.projections.len()).map(part).collect();
            return Some(backend.write_lora(layer.site, slot, &parts, taken));
        }
        let at = site.checked_sub(layout.layers.len())?;
        let (layer, matrix) = (layout.saved.get(at)?, self.saved.get(at)?);
        Some(backend.write_saved(layer.site, slot, matrix.as_ref().map(Numbers::elements), taken))
    }
}

/// Where an adapter goes, and how much of what goes there has been taken.
struct Target<'a> {
    slot: u32,
    taken: &'a mut usize,
    backend: &'a mut dyn Backend,
}

/// An adapter on its way into a slot of the device.
#[derive(Debug)]
pub struct AdapterWrite {
    adapter: Arc<Adapter>,
    slot: u32,
    /// Sites that are done, and bytes taken of the next.
    site: usize,
    taken: usize,
}

impl AdapterWrite {
    /// The beginning of the way.
    pub fn new(adapter: Arc<Adapter>, slot: u32) -> Self {
        Self { adapter, slot, site: 0, taken: 0 }
    }

    /// Where it goes.
    pub fn slot(&self) -> u32 {
        self.slot
    }

    /// Goes on by a piece, without waiting for the device. All: it has arrived there.
    pub(crate) fn advance(&mut self, layout: &AdapterLayout, backend: &mut dyn Backend) -> Taken {
        loop {
            let to = Target { slot: self.slot, taken: &mut self.taken, backend: &mut *backend };
            match self.adapter.write_to(self.site, layout, to) {
                Some(Taken::All) => {
                    (self.site, self.taken) = (self.site + 1, 0);
                    if backend.writes_beside_steps() {
                        return Taken::Part;
                    }
                }
                Some(taken) => return taken,
                None => return if backend.has_written() { Taken::All } else { Taken::Nothing },
            }
        }
    }
}
