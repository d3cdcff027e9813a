//! Low-rank adapters (LoRA) of a model's linear layers, as PEFT stores them.
//!
//! A network that was loaded with [`LoraOptions`] has slots for adapters on its device. Its [`AdapterLayout`] reads an
//! adapter's folder, on any thread, into an [`Adapter`]: this rank's slices of it, checked against the model. The
//! network copies that into a slot, and steps say which sequence uses which slot.

mod config;
mod dummy;
mod error;
mod numbers;
mod read;

use std::borrow::Cow;
use std::ops::Range;

use kernels::ops::{DType, LoraSite, LoraWeights};

pub use self::error::AdapterError;
use self::numbers::Numbers;
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
}

/// Which linear layers of a network take adapters, and what a rank needs of an adapter.
#[derive(Clone, Debug)]
pub struct AdapterLayout {
    pub(crate) layers: Vec<LoraLayer>,
    /// Where the matrices of layers lie that other stages have. These check what adapters have for them.
    pub(crate) elsewhere: Vec<TensorLocation>,
    pub(crate) max_rank: usize,
    /// What adapters are kept in, on the host as on the device.
    pub(crate) dtype: DType,
}

/// A linear layer that takes adapters.
#[derive(Clone, Debug)]
pub(crate) struct LoraLayer {
    pub site: LoraSite,
    /// The projections that it stacks, in order.
    pub projections: Vec<Projection>,
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
}

/// An adapter on the host: this rank's slices, ready to be copied into a slot.
#[derive(Debug)]
pub struct Adapter {
    /// By layer of the layout; a layer that the adapter leaves alone is empty.
    layers: Vec<Vec<Option<Delta>>>,
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

/// A projection's matrices as a device takes them.
struct Widened<'a> {
    rank: usize,
    a: Cow<'a, [f32]>,
    b: Cow<'a, [f32]>,
}

impl Delta {
    fn widened(&self) -> Widened<'_> {
        Widened { rank: self.rank, a: self.a.widened(), b: self.b.widened() }
    }
}

impl Widened<'_> {
    fn weights(&self) -> LoraWeights<'_> {
        LoraWeights { rank: self.rank, a: &self.a, b: &self.b }
    }
}

impl Adapter {
    /// A hash of the files that it was read from, the same on every rank.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Bytes that it takes on the host.
    pub fn bytes(&self) -> u64 {
        let deltas = self.layers.iter().flatten().flatten();
        deltas.map(|delta| delta.a.bytes() + delta.b.bytes()).sum()
    }

    /// What a slot of each layer is to hold.
    pub(crate) fn write(&self, layout: &AdapterLayout, mut write: impl FnMut(LoraSite, &[Option<LoraWeights<'_>>])) {
        for (layer, deltas) in layout.layers.iter().zip(&self.layers) {
            let each = |index: usize| deltas.get(index).and_then(Option::as_ref).map(Delta::widened);
            let widened: Vec<Option<Widened<'_>>> = (0..layer.projections.len()).map(each).collect();
            let parts: Vec<_> = widened.iter().map(|part| part.as_ref().map(Widened::weights)).collect();
            write(layer.site, &parts);
        }
    }
}
