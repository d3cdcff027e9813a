//! Adapters of linear layers: fixed slots, which rows use which, and the launches of `lora.cu`.
//!
//! What a captured step names stays where it is: slots, their ranks, and the slots of the step's rows.

use cudarc::driver::sys::CUdeviceptr;

use crate::runtime::activations::View;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::runtime::upload::Upload;
use crate::weights::Staging;
use kernels::ops::{self, DType, LoraShape, LoraWeights};

/// Slot of a row without an adapter.
const NONE: u32 = u32::MAX;
/// Rows from which on blocks take several.
const MANY: usize = 128;
/// Rows of such a block, and outputs of a part that it shrinks to.
const EACH: usize = 8;
const DOTS: usize = 4;
/// Warps that share a dot.
const WARPS: usize = 8;
/// Outputs of a block that expands.
const BLOCK: usize = 128;

/// The adapters of all linear layers.
#[derive(Default)]
pub(crate) struct Adapters {
    sites: Vec<Site>,
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

/// One linear layer's.
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

fn ptr(memory: Option<&Memory>) -> CUdeviceptr {
    memory.map_or(0, |memory| memory.ptr)
}

fn bytes(numbers: impl Iterator<Item = u32>) -> Vec<u8> {
    numbers.flat_map(u32::to_ne_bytes).collect()
}

impl Adapters {
    /// A linear layer with empty slots.
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
        if self.sites.is_empty() || self.most_rows >= rows {
            return;
        }
        self.most_rows = rows;
        self.shrunk = device.allocate(rows * self.width * size_of::<f32>(), "rows of adapters");
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
                staging.fill(device, &[&narrow(a, dtype)], to);
                let to = ptr(site.b.as_ref()) + ((slot * all + first) * max_rank * size) as u64;
                staging.fill(device, &[&narrow(b, dtype)], to);
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

    /// Adds the deltas of all rows.
    pub(crate) fn add_deltas(&self, device: &mut Device, x: View, site: u32, out: View) {
        let Site { a, b, ranks, ends, inputs, outputs, max_rank, dtype, .. } = &self.sites[site as usize];
        let (parts, all) = (outputs.len(), outputs.iter().sum::<usize>());
        assert_eq!((x.width, out.rows, out.width), (*inputs, x.rows, all), "shapes of an adapter's rows");
        let [a, b, ranks, ends] = [a, b, ranks, ends].map(|memory| ptr(memory.as_ref()));
        let (slots, shrunk) = (self.slots_at, ptr(self.shrunk.as_ref()));
        let [rows, inputs, all, parts, max_rank] = [x.rows, *inputs, all, parts, *max_rank].map(|size| size as u32);
        let (shrink, expand, each, together) = match x.rows >= MANY {
            true => ("lora_shrink_many", "lora_expand", EACH, DOTS),
            false => ("lora_shrink", "lora_expand_few", 1, 1),
        };
        let blocks = x.rows.div_ceil(each);
        let dots = parts as usize * (max_rank as usize).div_ceil(together);
        let shape = Shape { grid: [blocks, dots], block: 32 * WARPS, shared: 0 };
        device.launch(
            Name::in_file("lora", shrink, &[x.dtype, *dtype]),
            shape,
            args![x.ptr, a, slots, ranks, shrunk, rows, inputs, parts, max_rank],
        );
        let shape = Shape { grid: [blocks, (all as usize).div_ceil(BLOCK)], block: BLOCK, shared: 0 };
        device.launch(
            Name::in_file("lora", expand, &[*dtype, out.dtype]),
            shape,
            args![shrunk, b, slots, ranks, ends, out.ptr, rows, all, parts, max_rank],
        );
    }
}

/// Numbers as bytes of their type on the device, rounded to nearest.
fn narrow(values: &[f32], dtype: DType) -> Vec<u8> {
    match dtype {
        DType::F32 => values.iter().flat_map(|value| value.to_ne_bytes()).collect(),
        DType::Bf16 => values.iter().flat_map(|value| half::bf16::from_f32(*value).to_ne_bytes()).collect(),
        DType::F16 => values.iter().flat_map(|value| half::f16::from_f32(*value).to_ne_bytes()).collect(),
    }
}
