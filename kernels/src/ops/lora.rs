//! Low-rank adapters (LoRA): small matrices whose product is added to a linear layer's, for each row its own
//! adapter's; and whole matrices that adapters have in place of the model's.

use super::{Act, DType, PlainElements, RowSelection};

/// Where a layer's adapters lie on the device: one after the other, in slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoraSite(pub u32);

/// Where the matrices lie that adapters have in place of one of the model's: one after the other, in slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedSite(pub u32);

/// Which tokens the entries of an embedding stand for.
#[derive(Clone, Copy, Debug)]
pub struct Entries {
    /// The token of the first entry.
    pub first: u32,
    /// What rows are multiplied by.
    pub scale: f32,
}

/// Shape of the matrices that adapters have in place of one of the model's, on this rank.
#[derive(Clone, Copy, Debug)]
pub struct SavedShape {
    /// Adapters that the device holds at a time.
    pub slots: usize,
    /// Output features of a linear layer; entries of an embedding.
    pub rows: usize,
    /// Input features of a linear layer; width of an embedding.
    pub cols: usize,
    /// What matrices are kept in.
    pub dtype: DType,
    /// What products are computed in.
    pub compute: DType,
}

impl SavedShape {
    /// `matrix` may be put into a slot.
    pub fn check(&self, slot: u32, matrix: Option<PlainElements<'_>>) {
        assert!((slot as usize) < self.slots, "adapter slot {slot} of {}", self.slots);
        if let Some(PlainElements { dtype, bytes }) = matrix {
            assert_eq!(dtype, self.dtype, "type of an adapter's matrix");
            assert_eq!(bytes.len(), self.rows * self.cols * dtype.size(), "bytes of an adapter's matrix");
        }
    }
}

/// Shape of a layer's adapters on this rank.
#[derive(Clone, Copy, Debug)]
pub struct LoraShape<'a> {
    /// Adapters that the device holds at a time.
    pub slots: usize,
    /// Largest rank of an adapter.
    pub max_rank: usize,
    /// Input features of the layer; of an embedding, the entries of its table.
    pub inputs: usize,
    /// Output features of each projection that the layer stacks, in order.
    pub outputs: &'a [usize],
    /// What adapters are kept in.
    pub dtype: DType,
}

/// One projection's adapter: `delta = x a^T b^T`.
#[derive(Clone, Copy)]
pub struct LoraWeights<'a> {
    /// At most [`LoraShape::max_rank`].
    pub rank: usize,
    /// `[rank, inputs]`.
    pub a: PlainElements<'a>,
    /// `[outputs, rank]`, times the adapter's scale.
    pub b: PlainElements<'a>,
}

impl LoraShape<'_> {
    /// `parts` are adapters of this layer's projections.
    pub fn check(&self, slot: usize, parts: &[Option<LoraWeights<'_>>]) {
        assert!(slot < self.slots, "adapter slot {slot} of {}", self.slots);
        assert_eq!(parts.len(), self.outputs.len(), "adapters of projections, and projections");
        for (part, outputs) in parts.iter().zip(self.outputs) {
            let Some(LoraWeights { rank, a, b }) = part else { continue };
            assert!(*rank > 0 && *rank <= self.max_rank, "an adapter of rank {rank} of {}", self.max_rank);
            assert_eq!([a.dtype, b.dtype], [self.dtype; 2], "types of an adapter");
            let [a, b] = [a, b].map(|matrix| matrix.bytes.len() / self.dtype.size());
            assert_eq!([a, b], [rank * self.inputs, outputs * rank], "elements of an adapter");
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

    /// Allocates the slots of a layer, empty.
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

    /// The same of an embedding, whose inputs are its entries, called after [`super::Ops::embed`]: `out[row] += scale *
    /// b a[.][token(row) - first]`; nothing for tokens that it lacks.
    fn lora_embed(&mut self, site: LoraSite, entries: Entries, out: Act) {
        let _ = (site, entries, out);
    }

    /// Allocates slots for matrices in place of one of the model's, empty.
    fn new_saved_site(&mut self, shape: SavedShape) -> SavedSite {
        unreachable!("{shape:?} on a device without adapters");
    }

    /// Replaces what a slot holds, for steps that begin from here on; absent: the model's matrix counts.
    fn write_saved(&mut self, site: SavedSite, slot: u32, matrix: Option<PlainElements<'_>>) {
        let _ = (slot, matrix);
        unreachable!("{site:?} of a device without adapters");
    }

    /// `out[row] = x[row] w^T` with the matrix of the row's slot; rows whose slot has none stay as they are. Called
    /// after the product with the model's matrix.
    ///
    /// A row's result depends on the row and the matrix alone.
    fn saved_matmul(&mut self, x: Act, site: SavedSite, out: Act) {
        let _ = (x, site, out);
    }

    /// `out[row] = scale * w[token(row) - first]` with the matrix of the row's slot, zero for tokens that it lacks;
    /// rows whose slot has none stay as they are. Called after [`super::Ops::embed`].
    fn saved_embed(&mut self, site: SavedSite, entries: Entries, out: Act) {
        let _ = (site, entries, out);
    }
}
