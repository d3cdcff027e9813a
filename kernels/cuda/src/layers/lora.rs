//! Adapters of layers: fixed slots, which rows use which, and the launches of `lora.cu`.
//!
//! What a captured step names stays where it is: slots, their ranks, and the slots of the step's rows.

use cudarc::driver::sys::CUdeviceptr;

use super::saved::SavedMatrices;
use crate::runtime::activations::View;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::runtime::upload::Upload;
use crate::weights::Staging;
use kernels::ops::{self, DType, Entries, LoraShape, LoraWeights};

/// Slot of a row without an adapter.
const NONE: u32 = u32::MAX;
/// Rows from which on blocks take several.
const MANY: usize = 128;
/// Rows of such a block, and outputs of a part that it shrinks to.
pub(super) const EACH: usize = 8;
pub(super) const DOTS: usize = 4;
/// Warps that share a dot.
pub(super) const WARPS: usize = 8;
/// Outputs of a block that expands.
const BLOCK: usize = 128;

/// The adapters of all layers.
#[derive(Default)]
pub(crate) struct Adapters {
    sites: Vec<Site>,
    pub(crate) saved: SavedMatrices,
    /// Most numbers of a shrunk row.
    width: usize,
    /// Shrunk rows, `[rows][parts][max_rank]`, and the slots of a step's rows.
    shrunk: Option<Memory>,
    row_slots: Option<Memory>,
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
    /// Slots of the rows that deltas are added to.
    slots_at: CUdeviceptr,
}

/// One layer's.
struct Site {
    /// `[slots][parts][max_rank][inputs]`, `[slots][outputs * max_rank]`.
    a: Option<Memory>,
    b: Option<Memory>,
    /// `[slots][parts]`.
    ranks: Option<Memory>,
    /// Where the outputs of each part end.
    ends: Option<Memory>,
    slots: usize,
    inputs: usize,
    outputs: Vec<usize>,
    max_rank: usize,
    dtype: DType,
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

impl Adapters {
    /// A layer with empty slots.
    pub(crate) fn add_site(&mut self, device: &mut Device, staging: &mut Staging, shape: LoraShape<'_>) -> u32 {
        let LoraShape { slots, max_rank, inputs, outputs, dtype } = shape;
        let (parts, all) = (outputs.len(), outputs.iter().sum::<usize>());
        let ends = outputs.iter().scan(0, |end, outputs| {
            *end += *outputs as u32;
            Some(*end)
        });
        let site = Site {
            a: device.allocate(slots * parts * max_rank * inputs * dtype.size(), "adapters"),
            b: device.allocate(slots * all * max_rank * dtype.size(), "adapters"),
            ranks: device.allocate(slots * parts * size_of::<u32>(), "adapters"),
            ends: staging.load(device, &bytes(ends)),
            slots,
            inputs,
            outputs: outputs.to_vec(),
            max_rank,
            dtype,
        };
        site.ranks.iter().for_each(|ranks| device.clear(ranks));
        self.width = self.width.max(parts * max_rank);
        self.sites.push(site);
        u32::try_from(self.sites.len() - 1).expect("far fewer layers")
    }

    /// Makes room for steps of `rows` rows, at addresses that stay.
    pub(crate) fn prepare(&mut self, device: &mut Device, rows: usize) {
        if (self.sites.is_empty() && self.saved.is_empty()) || self.most_rows >= rows {
            return;
        }
        self.most_rows = rows;
        self.shrunk = device.allocate(rows * self.width.max(1) * size_of::<f32>(), "rows of adapters");
        self.row_slots = device.allocate(rows * size_of::<u32>(), "rows of adapters");
        self.sent.reserve(device, rows);
        self.picked.reserve(device, rows);
    }

    /// Replaces an adapter, for what is queued from here on.
    pub(crate) fn write(
        &mut self,
        device: &mut Device,
        staging: &mut Staging,
        target: LoraTarget,
        parts: &[Option<LoraWeights<'_>>],
    ) {
        let site = &self.sites[target.site as usize];
        let (slot, size) = (target.slot as usize, site.dtype.size());
        let Site { slots, inputs, ref outputs, max_rank, dtype, .. } = *site;
        LoraShape { slots, max_rank, inputs, outputs, dtype }.check(slot, parts);
        let (count, all) = (outputs.len(), outputs.iter().sum::<usize>());
        let mut first = 0;
        for (index, (part, outputs)) in parts.iter().zip(outputs).enumerate() {
            if let Some(LoraWeights { a, b, .. }) = part {
                let to = ptr(site.a.as_ref()) + ((slot * count + index) * max_rank * inputs * size) as u64;
                staging.fill(device, &[a.bytes], to);
                let to = ptr(site.b.as_ref()) + ((slot * all + first) * max_rank * size) as u64;
                staging.fill(device, &[b.bytes], to);
            }
            first += outputs;
        }
        let ranks = parts.iter().map(|part| part.map_or(0, |weights| weights.rank as u32));
        let to = ptr(site.ranks.as_ref()) + (slot * count * size_of::<u32>()) as u64;
        staging.fill(device, &[&bytes(ranks)], to);
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
        self.slots_at
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
        self.slots_at = ptr(self.row_slots.as_ref());
        assert!(rows <= self.most_rows, "{rows} rows with adapters of {}", self.most_rows);
        if !device.is_capturing() {
            let from = self.sent.send(device, rows, |numbers| numbers.copy_from_slice(&self.rows));
            device.copy(from, self.slots_at, rows * size_of::<u32>());
        }
    }

    /// From here on, deltas are of these rows.
    pub(crate) fn select(&mut self, device: &mut Device, rows: &[u32]) {
        if !self.is_active {
            return;
        }
        let slots = &self.rows;
        self.slots_at = self.picked.send(device, rows.len(), |numbers| {
            numbers.iter_mut().zip(rows).for_each(|(number, row)| *number = slots[*row as usize]);
        });
    }

    /// Adds the deltas of a linear layer to all rows.
    pub(crate) fn add_deltas(&self, device: &mut Device, x: View, site: u32, out: View) {
        let Site { a, ranks, inputs, outputs, max_rank, dtype, .. } = &self.sites[site as usize];
        assert_eq!((x.width, out.rows), (*inputs, x.rows), "shapes of an adapter's rows");
        let (a, ranks, slots, shrunk) =
            (ptr(a.as_ref()), ptr(ranks.as_ref()), self.slots_at, ptr(self.shrunk.as_ref()));
        let (shrink, each, together) = match x.rows >= MANY {
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
        self.expand(device, site, out);
    }

    /// Adds the deltas of an embedding to all rows; `tokens` are the rows'.
    pub(crate) fn add_entries(&self, device: &mut Device, tokens: CUdeviceptr, site: u32, entries: Entries, out: View) {
        let Site { a, ranks, inputs, max_rank, dtype, .. } = &self.sites[site as usize];
        let (a, ranks, slots, shrunk) =
            (ptr(a.as_ref()), ptr(ranks.as_ref()), self.slots_at, ptr(self.shrunk.as_ref()));
        let [count, rank] = [*inputs, *max_rank].map(|size| size as u32);
        device.launch(
            Name::in_file("lora", "lora_pick", &[*dtype]),
            Shape { grid: [out.rows, 1], block: max_rank.next_multiple_of(32).min(1024), shared: 0 },
            args![a, slots, ranks, tokens, shrunk, entries.first, count, rank, entries.scale],
        );
        self.expand(device, site, out);
    }

    /// Expands all shrunk rows, and adds them.
    fn expand(&self, device: &mut Device, site: u32, out: View) {
        let Site { b, ranks, ends, outputs, max_rank, dtype, .. } = &self.sites[site as usize];
        let (parts, all) = (outputs.len(), outputs.iter().sum::<usize>());
        assert_eq!(out.width, all, "width of what deltas are added to");
        let [b, ranks, ends] = [b, ranks, ends].map(|memory| ptr(memory.as_ref()));
        let (slots, shrunk) = (self.slots_at, ptr(self.shrunk.as_ref()));
        let (expand, each) = if out.rows >= MANY { ("lora_expand", EACH) } else { ("lora_expand_few", 1) };
        let shape = Shape { grid: [out.rows.div_ceil(each), all.div_ceil(BLOCK)], block: BLOCK, shared: 0 };
        let [rows, all, parts, max_rank] = [out.rows, all, parts, *max_rank].map(|size| size as u32);
        device.launch(
            Name::in_file("lora", expand, &[*dtype, out.dtype]),
            shape,
            args![shrunk, b, slots, ranks, ends, out.ptr, rows, all, parts, max_rank],
        );
    }
}
