//! Adapters of linear layers: `out += x a^T b^T` for each row with its own `a` and `b`.
//!
//! A row's sums are added in an order of their own, the same on every instruction set, so that neither the rows beside
//! it nor the slot of its adapter change a bit.

use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::batch::Batch;
use crate::cpu::runtime::pool::Pool;
use crate::ops::{LoraShape, LoraWeights};

/// Partial sums of a dot product; they are added pairwise at the end.
const LANES: usize = 16;
/// Slot of a row without an adapter.
const NONE: u32 = u32::MAX;

/// The adapters of all linear layers, and which rows use which.
#[derive(Default)]
pub(crate) struct Adapters {
    sites: Vec<Site>,
    /// Slots of the next step's sequences.
    sequences: Vec<u32>,
    /// Slots of the step's rows; empty: none has an adapter.
    rows: Vec<u32>,
    /// Those of the rows that deltas are added to.
    selected: Vec<u32>,
    is_narrow: bool,
}

/// One linear layer's.
struct Site {
    inputs: usize,
    outputs: Vec<usize>,
    max_rank: usize,
    /// By slot: an adapter for each projection.
    slots: Vec<Vec<Option<Weights>>>,
}

struct Weights {
    rank: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Adapters {
    /// A linear layer with empty slots.
    pub(crate) fn add_site(&mut self, shape: LoraShape<'_>) -> u32 {
        let LoraShape { slots, max_rank, inputs, outputs, dtype: _ } = shape;
        let empty = (0..slots).map(|_| Vec::new()).collect();
        self.sites.push(Site { inputs, outputs: outputs.to_vec(), max_rank, slots: empty });
        u32::try_from(self.sites.len() - 1).expect("far fewer layers")
    }

    pub(crate) fn write(&mut self, site: u32, slot: u32, parts: &[Option<LoraWeights<'_>>]) {
        let Site { inputs, outputs, max_rank, slots } = &mut self.sites[site as usize];
        let dtype = crate::ops::DType::F32;
        let shape = LoraShape { slots: slots.len(), max_rank: *max_rank, inputs: *inputs, outputs, dtype };
        shape.check(slot as usize, parts);
        let owned = |part: &Option<LoraWeights<'_>>| {
            part.map(|LoraWeights { rank, a, b }| Weights { rank, a: a.to_vec(), b: b.to_vec() })
        };
        slots[slot as usize] = parts.iter().map(owned).collect();
    }

    /// Slots of the sequences of the step that begins next.
    pub(crate) fn set(&mut self, slots: &[Option<u32>]) {
        self.sequences.clear();
        if slots.iter().any(Option::is_some) {
            self.sequences.extend(slots.iter().map(|slot| slot.unwrap_or(NONE)));
        }
    }

    /// A step begins.
    pub(crate) fn begin(&mut self, batch: &Batch) {
        self.rows.clear();
        self.is_narrow = false;
        if self.sequences.is_empty() {
            return;
        }
        assert_eq!(self.sequences.len(), batch.sequences.len(), "adapters of sequences, and sequences");
        self.rows.resize(batch.rows(), NONE);
        for (sequence, slot) in batch.sequences.iter().zip(&self.sequences) {
            self.rows[sequence.rows()].fill(*slot);
        }
        self.sequences.clear();
    }

    /// From here on, deltas are of these rows.
    pub(crate) fn select(&mut self, rows: &[u32]) {
        self.selected.clear();
        if !self.rows.is_empty() {
            self.selected.extend(rows.iter().map(|row| self.rows[*row as usize]));
        }
        self.is_narrow = true;
    }

    /// Adds the deltas of all rows.
    pub(crate) fn add_deltas(&self, pool: &mut Pool, x: View, site: u32, out: View) {
        let rows = if self.is_narrow { &self.selected } else { &self.rows };
        if rows.iter().all(|slot| *slot == NONE) {
            return;
        }
        let site = &self.sites[site as usize];
        let width: usize = site.outputs.iter().sum();
        assert_eq!((x.rows, x.width), (rows.len(), site.inputs), "shape of an adapter's input");
        assert_eq!((out.rows, out.width), (rows.len(), width), "shape of what deltas are added to");
        let cost = site.max_rank * site.outputs.len();
        x.for_each_row(pool, cost, &|row| {
            if rows[row] == NONE {
                return;
            }
            // SAFETY: a row is one task's, and the buffers differ (checked by the caller).
            let (x, out) = unsafe { (x.row(row), out.row_mut(row)) };
            let mut first = 0;
            for (part, outputs) in site.slots[rows[row] as usize].iter().zip(&site.outputs) {
                if let Some(weights) = part {
                    weights.add_delta(x, &mut out[first..first + outputs]);
                }
                first += outputs;
            }
        });
    }
}

impl Weights {
    fn add_delta(&self, x: &[f32], out: &mut [f32]) {
        let shrunk: Vec<f32> = self.a.chunks_exact(x.len()).map(|a| dot(x, a)).collect();
        for (out, b) in out.iter_mut().zip(self.b.chunks_exact(self.rank)) {
            *out += dot(&shrunk, b);
        }
    }
}

/// The sum of products, in an order that depends on the length alone.
fn dot(x: &[f32], y: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (x_lanes, x_rest) = x.as_chunks::<LANES>();
    let (y_lanes, y_rest) = y.as_chunks::<LANES>();
    for (x, y) in x_lanes.iter().zip(y_lanes) {
        for lane in 0..LANES {
            sums[lane] += x[lane] * y[lane];
        }
    }
    for (lane, (x, y)) in x_rest.iter().zip(y_rest).enumerate() {
        sums[lane] += x * y;
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            sums[lane] += sums[lane + width];
        }
        width /= 2;
    }
    sums[0]
}
