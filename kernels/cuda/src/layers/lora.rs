//! Adapters of layers: fixed slots, which rows use which, and the launches of `lora.cu`, where rows and adapters are
//! not of one 16-bit type (see `lora_mma`).
//!
//! What a captured step names stays where it is: slots, their ranks, and the groups of the step's rows.

use cudarc::driver::sys::CUdeviceptr;

use super::adapter_groups::{AdapterGroups, MANY, NONE};
use super::expert_lora::{self, ExpertAdapters};
use super::lora_mma::{self, AdapterRows, GateAdapters, Half, Parts};
use super::saved::SavedMatrices;
use crate::gemm::table::Facts;
use crate::gemm::{matmul_skinny, matmul_split_k};
use crate::jit::specialization::Special;
use crate::moe::routing::Choices;
use crate::runtime::activations::View;
use crate::runtime::background::{BackgroundCopies, Extent};
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::runtime::upload::Upload;
use crate::weights::Staging;
use kernels::ops::{self, DType, Entries, LoraShape, LoraWeights, PlainElements, Taken, check_experts};

/// Rows from which on blocks of `lora.cu` take several.
const SEVERAL: usize = 128;
/// Rows of such a block, and outputs of a part that it shrinks to.
pub(super) const EACH: usize = 8;
pub(super) const DOTS: usize = 4;
/// Warps that share a dot.
pub(super) const WARPS: usize = 8;
/// Outputs of a block that expands.
const BLOCK: usize = 128;

/// What there was no memory for.
const SLOTS: &str = "adapters, of which --max-loras and --max-lora-rank say how much";
const ROWS: &str = "rows of adapters";

/// The adapters of all layers.
#[derive(Default)]
pub(crate) struct Adapters {
    sites: Vec<Site>,
    pub(crate) saved: SavedMatrices,
    /// Slots of a layer.
    slots: usize,
    /// Most numbers of a shrunk row, summed and in parts.
    width: usize,
    split_width: usize,
    /// Shrunk rows, `[splits][rows][parts][max_rank]` (of experts, of pairs of row and expert), and the groups of a
    /// step's rows.
    shrunk: Option<Memory>,
    grouped: Option<Memory>,
    most_rows: usize,
    /// Slots of the next step's sequences; empty: none has an adapter.
    sequences: Vec<u32>,
    /// The next step is a dummy run with adapters.
    is_expected: bool,
    /// The step has rows with adapters.
    is_active: bool,
    rows: Vec<u32>,
    sent: Upload,
    picked: Upload,
    /// What comes into slots.
    pub(crate) writes: BackgroundCopies,
    /// Groups of the rows that deltas are added to, and where they lie.
    layout: AdapterGroups,
    grouped_at: CUdeviceptr,
}

/// A layer's product that adapters add to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Lora {
    pub(crate) x: View,
    pub(crate) site: u32,
    pub(crate) out: View,
    /// Whether what it gives can be gated by SiLU at once.
    pub(crate) gates: bool,
}

/// One layer's.
struct Site {
    /// `[slots][parts][max_rank][inputs]`, `[slots][outputs * max_rank]`; of experts, each has its own parts and
    /// outputs: `[slots][experts]…`.
    a: Option<Memory>,
    b: Option<Memory>,
    /// `[slots][parts]`, or `[slots][experts][parts]`.
    ranks: Option<Memory>,
    /// Where the outputs of each part end.
    ends: Option<Memory>,
    slots: usize,
    inputs: usize,
    outputs: Vec<usize>,
    max_rank: usize,
    dtype: DType,
    experts: Option<usize>,
}

impl Site {
    fn shape(&self) -> LoraShape<'_> {
        let Site { slots, inputs, outputs, max_rank, dtype, experts, .. } = self;
        LoraShape { slots: *slots, max_rank: *max_rank, inputs: *inputs, outputs, dtype: *dtype, experts: *experts }
    }

    /// What replaces an adapter, and where it belongs.
    fn extents<'a>(&'a self, slot: usize, parts: &'a [Option<LoraWeights<'a>>]) -> impl Iterator<Item = Extent<'a>> {
        let (size, max_rank, count) = (self.dtype.size(), self.max_rank, parts.len());
        let all = self.shape().members() * self.outputs.iter().sum::<usize>();
        let place = move |memory: &Option<Memory>, numbers: usize| ptr(memory.as_ref()) + (numbers * size) as u64;
        let firsts = self.outputs.iter().cycle().scan(0, |end, outputs| {
            let first = *end;
            *end += outputs;
            Some(first)
        });
        let of_part = move |((index, part), first): ((usize, &'a Option<LoraWeights<'a>>), usize)| {
            let weights = part.as_ref()?;
            let a = place(&self.a, (slot * count + index) * max_rank * self.inputs);
            let b = place(&self.b, (slot * all + first) * max_rank);
            Some([(weights.a, a), (weights.b, b)].map(|(matrix, to)| Extent { bytes: matrix.bytes.into(), to }))
        };
        let ranks = move || {
            let ranks = bytes(parts.iter().map(|part| part.map_or(0, |weights| weights.rank as u32)));
            let to = ptr(self.ranks.as_ref()) + (slot * ranks.len()) as u64;
            Extent { bytes: ranks.into(), to }
        };
        parts.iter().enumerate().zip(firsts).filter_map(of_part).flatten().chain(std::iter::once_with(ranks))
    }
}

/// Which slot of which layer is written.
#[derive(Clone, Copy)]
pub(crate) struct LoraTarget {
    pub(crate) site: u32,
    pub(crate) slot: u32,
}

pub(super) fn ptr(memory: Option<&Memory>) -> CUdeviceptr {
    memory.map_or(0, |memory| memory.ptr)
}

pub(super) fn bytes(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_ne_bytes).collect()
}

/// Kernels for products of `[gate | up]` that add adapters' deltas themselves.
fn gated_specials(device: &Device, shape: [usize; 2], dtype: DType) -> impl Iterator<Item = Special> {
    let facts = Facts::of(device);
    let skinny = matmul_skinny::adapted_specials(facts.arch, shape, dtype);
    skinny.into_iter().chain(matmul_split_k::adapted_specials(facts, shape, dtype))
}

impl Adapters {
    /// A layer with empty slots.
    pub(crate) fn add_site(&mut self, device: &mut Device, staging: &mut Staging, shape: LoraShape<'_>) -> u32 {
        let LoraShape { slots, max_rank, inputs, outputs, dtype, experts } = shape;
        let (parts, all) = (shape.parts(), shape.members() * outputs.iter().sum::<usize>());
        let ends = outputs.iter().scan(0, |end, outputs| {
            *end += *outputs as u32;
            Some(*end)
        });
        let site = Site {
            a: device.allocate(slots * parts * max_rank * inputs * dtype.size(), SLOTS),
            b: device.allocate(slots * all * max_rank * dtype.size(), SLOTS),
            ranks: device.allocate(slots * parts * size_of::<u32>(), SLOTS),
            ends: staging.load(device, &bytes(ends)),
            slots,
            inputs,
            outputs: outputs.to_vec(),
            max_rank,
            dtype,
            experts,
        };
        site.ranks.iter().for_each(|ranks| device.clear(ranks));
        self.writes.prepare(device);
        self.slots = self.slots.max(slots);
        let width = outputs.len() * max_rank;
        self.width = self.width.max(width);
        if experts.is_none() {
            self.split_width = self.split_width.max(width * lora_mma::splits(inputs));
            if lora_mma::expands(device, dtype, max_rank) {
                lora_mma::specials(dtype).into_iter().for_each(|special| device.order(special));
                if let [gate, up] = *outputs
                    && gate == up
                {
                    gated_specials(device, [gate + up, inputs], dtype).for_each(|special| device.order(special));
                }
            }
        }
        self.sites.push(site);
        u32::try_from(self.sites.len() - 1).expect("far fewer layers")
    }

    /// Makes room for steps of `rows` rows of all layers that there are, at addresses that stay until either grows.
    pub(crate) fn prepare(&mut self, device: &mut Device, rows: usize) {
        if self.sites.is_empty() && self.saved.is_empty() {
            return;
        }
        self.most_rows = self.most_rows.max(rows);
        let rows = self.most_rows;
        let (whole, parts) = (rows * self.width, rows.min(MANY - 1) * self.split_width);
        let words = AdapterGroups::most_words(rows, self.slots);
        device.reserve(&mut self.shrunk, whole.max(parts).max(1) * size_of::<f32>(), ROWS);
        device.reserve(&mut self.grouped, words * size_of::<u32>(), ROWS);
        self.sent.reserve(device, words);
        self.picked.reserve(device, words);
    }

    /// Takes a piece of what replaces an adapter.
    pub(crate) fn write(
        &mut self,
        device: &mut Device,
        LoraTarget { site, slot }: LoraTarget,
        parts: &[Option<LoraWeights<'_>>],
        taken: &mut usize,
    ) -> Taken {
        let site = &self.sites[site as usize];
        if *taken == 0 {
            site.shape().check(slot as usize, parts);
        }
        self.writes.copy(device, site.extents(slot as usize, parts), taken)
    }

    /// The same of a matrix in place of the model's.
    pub(crate) fn write_saved(
        &mut self,
        device: &mut Device,
        to: LoraTarget,
        matrix: Option<PlainElements<'_>>,
        taken: &mut usize,
    ) -> Taken {
        self.writes.copy(device, self.saved.extents(to, matrix), taken)
    }

    /// Slots of the sequences of the step that begins next.
    pub(crate) fn set(&mut self, slots: &[Option<u32>]) {
        self.is_expected = false;
        self.sequences.clear();
        if slots.iter().any(Option::is_some) {
            self.sequences.extend(slots.iter().map(|slot| slot.unwrap_or(NONE)));
        }
    }

    /// The next step is a dummy run, with the launches of one with adapters.
    pub(crate) fn expect(&mut self) {
        self.is_expected = true;
    }

    /// Whether the step has rows with adapters.
    pub(crate) fn is_active(&self) -> bool {
        self.is_active
    }

    /// Where the slots of the step's rows are, or of those that were selected.
    pub(crate) fn slots(&self) -> CUdeviceptr {
        self.word(self.layout.slots().start)
    }

    fn word(&self, index: usize) -> CUdeviceptr {
        self.grouped_at + (index * size_of::<u32>()) as u64
    }

    /// A step of `rows` rows begins, padding included.
    pub(crate) fn begin(&mut self, device: &mut Device, batch: ops::Batch<'_>, rows: usize) {
        self.is_active = !self.sequences.is_empty() || self.is_expected;
        self.is_expected = false;
        if !self.is_active {
            return;
        }
        self.rows.clear();
        self.rows.resize(rows, NONE);
        if !self.sequences.is_empty() {
            assert_eq!(self.sequences.len(), batch.sequences.len(), "adapters of sequences, and sequences");
            for (sequence, slot) in batch.sequences.iter().zip(&self.sequences) {
                self.rows[sequence.first_row..][..sequence.num_rows].fill(*slot);
            }
            self.sequences.clear();
        }
        self.grouped_at = ptr(self.grouped.as_ref());
        self.layout = AdapterGroups::new(rows, self.slots);
        assert!(rows <= self.most_rows, "{rows} rows with adapters of {}", self.most_rows);
        if !device.is_capturing() {
            let (layout, slots) = (self.layout, self.slots);
            let from = self.sent.send(device, layout.words(), |words| layout.fill(&self.rows, slots, words));
            device.copy(from, self.grouped_at, layout.words() * size_of::<u32>());
        }
    }

    /// From here on, deltas are of these rows.
    pub(crate) fn select(&mut self, device: &mut Device, rows: &[u32]) {
        if !self.is_active {
            return;
        }
        let picked: Vec<u32> = rows.iter().map(|row| self.rows[*row as usize]).collect();
        let (layout, slots) = (AdapterGroups::new(picked.len(), self.slots), self.slots);
        self.layout = layout;
        self.grouped_at = self.picked.send(device, layout.words(), |words| layout.fill(&picked, slots, words));
    }

    /// Whether deltas of `[gate | up]` can be added as they are gated.
    pub(crate) fn gates(&self, device: &Device, site: u32, x: View, out: View) -> bool {
        let Site { outputs, max_rank, dtype, .. } = &self.sites[site as usize];
        let halves = matches!(outputs[..], [gate, up] if gate == up);
        halves && out.dtype == *dtype && lora_mma::shrinks(device, x, *dtype, *max_rank)
    }

    /// One half of a layer's adapters on tensor cores.
    fn half(&self, Site { ranks, outputs, max_rank, dtype, .. }: &Site, weights: Option<&Memory>) -> Half {
        let layout = self.layout;
        let sizes = [layout.groups, layout.rows, outputs.len(), *max_rank];
        let [count, rows, parts, max_rank] = sizes.map(|size| size as u32);
        let [groups, order] = [self.word(0), self.word(layout.order().start)];
        let rows = AdapterRows { groups, order, ranks: ptr(ranks.as_ref()), count, rows, parts, max_rank };
        Half { layout, rows, weights: ptr(weights), dtype: *dtype, shrunk: ptr(self.shrunk.as_ref()) }
    }

    /// Shrinks all rows of a linear layer's input; in how many parts their sums are left.
    pub(crate) fn shrink(&self, device: &mut Device, Lora { x, site, out, .. }: Lora) -> usize {
        let site = &self.sites[site as usize];
        let Site { a, ranks, inputs, outputs, max_rank, dtype, .. } = site;
        assert_eq!((x.width, out.rows, x.rows), (*inputs, x.rows, self.layout.rows), "shapes of an adapter's rows");
        if lora_mma::shrinks(device, x, *dtype, *max_rank)
            && let Some(splits) = self.half(site, a.as_ref()).shrink(device, x)
        {
            return splits;
        }
        let (a, ranks, slots, shrunk) = (ptr(a.as_ref()), ptr(ranks.as_ref()), self.slots(), ptr(self.shrunk.as_ref()));
        let (shrink, each, together) = match x.rows >= SEVERAL {
            true => ("lora_shrink_many", EACH, DOTS),
            false => ("lora_shrink", 1, 1),
        };
        let dots = outputs.len() * max_rank.div_ceil(together);
        let [rows, inputs, parts, max_rank] = [x.rows, *inputs, outputs.len(), *max_rank].map(|size| size as u32);
        device.launch(
            Name::in_file("lora", shrink, &[x.dtype, *dtype]),
            Shape { grid: [x.rows.div_ceil(each), dots], block: 32 * WARPS, shared: 0 },
            args![x.ptr, a, slots, ranks, shrunk, rows, inputs, parts, max_rank],
        );
        1
    }

    /// Expands shrunk rows of `[gate | up]`, and gates what that and `gate_up` give together; false, and nothing
    /// happens, where that cannot be.
    pub(crate) fn gate(&self, device: &mut Device, lora: Lora, splits: usize, out: View) -> bool {
        let site = &self.sites[lora.site as usize];
        lora.gates && self.half(site, site.b.as_ref()).gate(device, splits, lora.out, out)
    }

    /// Second halves for a product that gates what they add to; none where their types differ.
    pub(crate) fn of_gate(&self, device: &Device, Lora { x, site, .. }: Lora, splits: usize) -> Option<GateAdapters> {
        let site = &self.sites[site as usize];
        let adapters = GateAdapters { half: self.half(site, site.b.as_ref()), splits, slots: self.slots() };
        lora_mma::shrinks(device, x, site.dtype, site.max_rank).then_some(adapters)
    }

    /// Adds the deltas of a layer of experts to all pairs of row and expert; `x` has a row for each row, or for each
    /// pair.
    pub(crate) fn add_expert_deltas(&self, device: &mut Device, site: u32, choices: &Choices, [x, out]: [View; 2]) {
        let Site { a, b, ranks, ends, inputs, outputs, max_rank, dtype, experts, .. } = &self.sites[site as usize];
        assert_eq!(*experts, Some(choices.among), "experts with adapters, and what rows chose among");
        assert_eq!(out.width, outputs.iter().sum::<usize>(), "width of what deltas are added to");
        assert_eq!((choices.rows, choices.pairs()), (self.layout.rows, out.rows), "rows with adapters and experts");
        assert!(out.rows <= self.most_rows, "{} pairs of rows and experts of {}", out.rows, self.most_rows);
        check_experts([x.rows, x.width], [choices.among, out.width, *inputs], None, [choices.rows, choices.top_k]);
        let [a, b, ranks, ends] = [a, b, ranks, ends].map(|memory| ptr(memory.as_ref()));
        let sizes = [choices.among, choices.top_k, outputs.len(), *inputs, out.width, *max_rank, out.rows];
        let [experts, top_k, parts, inputs, outputs, max_rank, pairs] = sizes.map(|size| size as u32);
        let (slots, shrunk) = (self.slots(), ptr(self.shrunk.as_ref()));
        let pairs_a_row = pairs / (x.rows as u32).max(1);
        let adapters = ExpertAdapters {
            slots,
            ranks,
            ends,
            shrunk,
            experts,
            top_k,
            parts,
            inputs,
            outputs,
            max_rank,
            pairs,
            pairs_a_row,
            pieces: 1,
        };
        expert_lora::add(device, expert_lora::Call { adapters, weights: [a, b], dtype: *dtype, choices, x, out });
    }

    /// Adds the deltas of an embedding to all rows; `tokens` are the rows'.
    pub(crate) fn add_entries(&self, device: &mut Device, tokens: CUdeviceptr, site: u32, entries: Entries, out: View) {
        let Site { a, ranks, inputs, max_rank, dtype, .. } = &self.sites[site as usize];
        let (a, ranks, slots, shrunk) = (ptr(a.as_ref()), ptr(ranks.as_ref()), self.slots(), ptr(self.shrunk.as_ref()));
        let [count, rank] = [*inputs, *max_rank].map(|size| size as u32);
        device.launch(
            Name::in_file("lora", "lora_pick", &[*dtype]),
            Shape { grid: [out.rows, 1], block: max_rank.next_multiple_of(32).min(1024), shared: 0 },
            args![a, slots, ranks, tokens, shrunk, entries.first, count, rank, entries.scale],
        );
        self.expand(device, site, 1, out);
    }

    /// Expands all shrunk rows, whose sums are in parts, and adds them.
    pub(crate) fn expand(&self, device: &mut Device, site: u32, splits: usize, out: View) {
        let site = &self.sites[site as usize];
        let Site { b, ranks, ends, outputs, max_rank, dtype, .. } = site;
        let (parts, all) = (outputs.len(), outputs.iter().sum::<usize>());
        assert_eq!(out.width, all, "width of what deltas are added to");
        let [b_at, ranks, ends] = [b, ranks, ends].map(|memory| ptr(memory.as_ref()));
        if lora_mma::expands(device, *dtype, *max_rank)
            && self.half(site, b.as_ref()).expand(device, splits, Parts { outputs, ends }, out)
        {
            return;
        }
        if splits > 1 {
            return device.fail("lora_expand cannot be compiled, although lora_shrink was".to_owned());
        }
        let (slots, shrunk) = (self.slots(), ptr(self.shrunk.as_ref()));
        let (expand, each) = if out.rows >= SEVERAL { ("lora_expand", EACH) } else { ("lora_expand_few", 1) };
        let shape = Shape { grid: [out.rows.div_ceil(each), all.div_ceil(BLOCK)], block: BLOCK, shared: 0 };
        let [rows, all, parts, max_rank] = [out.rows, all, parts, *max_rank].map(|size| size as u32);
        device.launch(
            Name::in_file("lora", expand, &[*dtype, out.dtype]),
            shape,
            args![shrunk, b_at, slots, ranks, ends, out.ptr, rows, all, parts, max_rank],
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expert_s_adapter_lies_behind_those_before_it() {
        let (a, b, ranks, ends) = (None, None, None, None);
        let (slots, inputs, outputs, max_rank, dtype) = (2, 4, vec![3, 5], 2, DType::F32);
        let site = Site { a, b, ranks, ends, slots, inputs, outputs, max_rank, dtype, experts: Some(2) };
        let [down, up] = [vec![1; 4 * 4], vec![2; 5 * 4]];
        let [a, b] = [&down, &up].map(|bytes| PlainElements { dtype, bytes });
        let parts = [None, None, None, Some(LoraWeights { rank: 1, a, b })];
        site.shape().check(1, &parts);
        let ranks = bytes([0, 0, 0, 1].into_iter());
        // Slot 1 of four parts and of twice eight outputs; the last part has eleven outputs before it.
        let places = [(&down, 4 * 2 * 4 * (4 + 3)), (&up, 4 * 2 * (16 + 11)), (&ranks, 4 * 4)];
        let expected = places.map(|(bytes, to)| Extent { bytes: bytes.into(), to });
        assert_eq!(site.extents(1, &parts).collect::<Vec<_>>(), expected);
    }
}
