//! Low-rank adapters (LoRA): small matrices whose product is added to a linear layer's, for each row its own
//! adapter's.

use super::{Act, DType, RowSelection};

/// Where a linear layer's adapters lie on the device: one after the other, in slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoraSite(pub u32);

/// Shape of a linear layer's adapters on this rank.
#[derive(Clone, Copy, Debug)]
pub struct LoraShape<'a> {
    /// Adapters that the device holds at a time.
    pub slots: usize,
    /// Largest rank of an adapter.
    pub max_rank: usize,
    /// Input features of the layer.
    pub inputs: usize,
    /// Output features of each projection that the layer stacks, in order.
    pub outputs: &'a [usize],
    /// What adapters are kept in.
    pub dtype: DType,
}

/// One projection's adapter: `delta = x a^T b^T`.
#[derive(Clone, Copy, Debug)]
pub struct LoraWeights<'a> {
    /// At most [`LoraShape::max_rank`].
    pub rank: usize,
    /// `[rank, inputs]`.
    pub a: &'a [f32],
    /// `[outputs, rank]`, times the adapter's scale.
    pub b: &'a [f32],
}

impl LoraShape<'_> {
    /// `parts` are adapters of this layer's projections.
    pub fn check(&self, slot: usize, parts: &[Option<LoraWeights<'_>>]) {
        assert!(slot < self.slots, "adapter slot {slot} of {}", self.slots);
        assert_eq!(parts.len(), self.outputs.len(), "adapters of projections, and projections");
        for (part, outputs) in parts.iter().zip(self.outputs) {
            let Some(LoraWeights { rank, a, b }) = part else { continue };
            assert!(*rank > 0 && *rank <= self.max_rank, "an adapter of rank {rank} of {}", self.max_rank);
            assert_eq!((a.len(), b.len()), (rank * self.inputs, outputs * rank), "elements of an adapter");
        }
    }
}

/// Adapters on a device: fixed slots that are filled again and again, and the deltas of a step's rows. A device without
/// them keeps the defaults.
pub trait Lora {
    /// Whether [`Lora::new_lora_site`] may be called.
    fn has_lora(&self) -> bool {
        false
    }

    /// Allocates the slots of a linear layer, empty.
    fn new_lora_site(&mut self, shape: LoraShape<'_>) -> LoraSite {
        unreachable!("{shape:?} on a device without adapters");
    }

    /// Replaces what a slot holds, for steps that begin from here on: an adapter for each projection of the layer;
    /// absent: none.
    fn write_lora(&mut self, site: LoraSite, slot: u32, parts: &[Option<LoraWeights<'_>>]) {
        let _ = (slot, parts);
        unreachable!("{site:?} of a device without adapters");
    }

    /// Says which slots the sequences of the next step use, in the order of its batch; absent: none. Empty: no sequence
    /// has an adapter. It counts for one step.
    fn set_adapters(&mut self, slots: &[Option<u32>]) {
        let _ = slots;
    }

    /// The next step is a dummy run of a step with adapters: its rows have none, but what adds deltas is launched, so
    /// that it can be captured.
    fn expect_adapters(&mut self) {}

    /// The rows of later deltas of the step are these of its batch.
    fn select_adapters(&mut self, selection: RowSelection<'_>) {
        let _ = selection;
    }

    /// `out[row] += x[row] a^T b^T` with the adapter of the row's slot, projection after projection; nothing for rows
    /// without an adapter. Called after the layer's own product.
    ///
    /// A row's result depends on the row and its adapter alone.
    fn lora(&mut self, x: Act, site: LoraSite, out: Act) {
        let _ = (x, site, out);
    }
}
