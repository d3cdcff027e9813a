//! Low-rank adapters (LoRA): small matrices whose product is added to a linear layer's, for each row its own
//! adapter's; and whole matrices that adapters have in place of the model's.

use super::{Act, Backend, DType, ExpertRouting, PlainElements, RowSelection};

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
    /// Output features of a linear layer; entries of an embedding. A slot's matrix may have fewer.
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
            let row = self.cols * dtype.size();
            assert!(
                bytes.len().is_multiple_of(row) && bytes.len() <= self.rows * row,
                "{} bytes of an adapter's matrix of at most {} rows of {row}",
                bytes.len(),
                self.rows
            );
        }
    }

    /// Rows that a matrix has, which may be fewer than there is room for.
    pub fn rows_of(&self, PlainElements { dtype, bytes }: PlainElements<'_>) -> usize {
        bytes.len() / (self.cols * dtype.size())
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
    /// Output features of each projection that the layer stacks, in order; of experts, of each that an expert stacks.
    pub outputs: &'a [usize],
    /// What adapters are kept in.
    pub dtype: DType,
    /// Of a layer of experts, all of one shape, how many there are: each has an adapter of its own.
    pub experts: Option<usize>,
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
    /// Projections that a slot has room for, expert after expert.
    pub fn parts(&self) -> usize {
        self.members() * self.outputs.len()
    }

    /// Adapters of a slot, each of all projections: as many as experts.
    pub fn members(&self) -> usize {
        self.experts.unwrap_or(1)
    }

    /// `parts` are adapters of this layer's projections.
    pub fn check(&self, slot: usize, parts: &[Option<LoraWeights<'_>>]) {
        assert!(slot < self.slots, "adapter slot {slot} of {}", self.slots);
        assert_eq!(parts.len(), self.parts(), "adapters of projections, and projections");
        for (part, outputs) in parts.iter().zip(self.outputs.iter().cycle()) {
            let Some(LoraWeights { rank, a, b }) = part else { continue };
            assert!(*rank > 0 && *rank <= self.max_rank, "an adapter of rank {rank} of {}", self.max_rank);
            assert_eq!([a.dtype, b.dtype], [self.dtype; 2], "types of an adapter");
            let [a, b] = [a, b].map(|matrix| matrix.bytes.len() / self.dtype.size());
            assert_eq!([a, b], [rank * self.inputs, outputs * rank], "elements of an adapter");
        }
    }
}

/// How much a device has taken of what is written to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Taken {
    /// Nothing: it would have had to wait for copies that are under way.
    Nothing,
    /// Some more of it.
    Part,
    /// All of it.
    All,
}

/// Writes what `write` does, whose last argument is how much was taken so far, and waits until it has arrived: for
/// those who have nothing else to do meanwhile.
pub fn write_and_wait(backend: &mut dyn Backend, mut write: impl FnMut(&mut dyn Backend, &mut usize) -> Taken) {
    let mut taken = 0;
    backend.begin_writes();
    while write(backend, &mut taken) != Taken::All {
        std::thread::yield_now();
    }
    while !backend.has_written() {
        std::thread::yield_now();
    }
}

/// Adapters on a device: fixed slots that are filled again and again, and the deltas of a step's rows. A device without
/// them keeps the defaults.
///
/// Slots are written beside the steps that run, a piece at a time: [`Lora::begin_writes`], then [`Lora::write_lora`]
/// and [`Lora::write_saved`] until each has taken all, then [`Lora::has_written`] until it is so. None of them waits
/// for the device. No step that begins after the first and before the last may use the slot.
pub trait Lora {
    /// Whether [`Lora::new_lora_site`] may be called.
    fn has_lora(&self) -> bool {
        false
    }

    /// Allocates the slots of a layer, empty.
    fn new_lora_site(&mut self, shape: LoraShape<'_>) -> LoraSite {
        unreachable!("{shape:?} on a device without adapters");
    }

    /// Whether what is written comes to the device beside steps, a piece at a time. Else writing takes the host's time
    /// alone, and nothing is won by taking turns.
    fn writes_beside_steps(&self) -> bool {
        false
    }

    /// What is written from here on comes to the device when the steps that have begun are over.
    fn begin_writes(&mut self) {}

    /// Replaces what a slot holds: an adapter for each projection of the layer, expert after expert; absent: none.
    /// Takes as many bytes as are soon copied (a GPU a MiB, a CPU all) and counts them in `taken`, 0 at first; to be
    /// called until it has taken all. A device that has failed takes all at once.
    fn write_lora(&mut self, site: LoraSite, slot: u32, parts: &[Option<LoraWeights<'_>>], taken: &mut usize) -> Taken {
        let _ = (slot, parts, taken);
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

    /// Whether the step has rows with adapters, or is a dummy run of one that has: where it has none, what adds deltas
    /// may be left out.
    fn adds_deltas(&self) -> bool {
        false
    }

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

    /// The same of a layer of experts, called after [`super::Ops::expert_matmul`]: with `k` choices a row and `e` the
    /// row's expert at `slot`, the adapter of `e` adds to `out[row * k + slot]`, of `x[row]` or, where `x` has a row
    /// for every (row, slot), of that.
    fn expert_lora(&mut self, x: Act, site: LoraSite, routing: ExpertRouting, out: Act) {
        let _ = (x, site, routing, out);
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

    /// Replaces what a slot holds, as [`Lora::write_lora`] does; absent: the model's matrix counts.
    fn write_saved(
        &mut self,
        site: SavedSite,
        slot: u32,
        matrix: Option<PlainElements<'_>>,
        taken: &mut usize,
    ) -> Taken {
        let _ = (slot, matrix, taken);
        unreachable!("{site:?} of a device without adapters");
    }

    /// Whether all that was taken has arrived: steps that begin from here on may use it.
    fn has_written(&mut self) -> bool {
        true
    }

    /// `out[row] = x[row] w^T` with the matrix of the row's slot, anything in columns that it lacks; rows whose slot
    /// has none stay as they are. Called after the product with the model's matrix.
    ///
    /// A row's result depends on the row and the matrix alone.
    fn saved_matmul(&mut self, x: Act, site: SavedSite, out: Act) {
        let _ = (x, site, out);
    }

    /// Makes columns of logits -inf: those that the matrix of the row's slot lacks; of rows whose slot has none, those
    /// from `own` on, which the model's matrix lacks. Called in every step, also in one without adapters.
    fn mask_saved(&mut self, site: SavedSite, own: usize, out: Act) {
        let _ = (own, out);
        unreachable!("{site:?} of a device without adapters");
    }

    /// `out[row] = scale * w[token(row) - first]` with the matrix of the row's slot, zero for tokens that it lacks;
    /// rows whose slot has none stay as they are. Called after [`super::Ops::embed`].
    fn saved_embed(&mut self, site: SavedSite, entries: Entries, out: Act) {
        let _ = (site, entries, out);
    }
}
