//! Whole matrices that adapters have in place of the model's embedding and head.

use super::Tokens;
use super::rows::AdapterRows;
use crate::cpu::gemm::pack::Packed;
use crate::cpu::gemm::{Product, Rows};
use crate::cpu::layers::embed::Lookup;
use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::pool::Pool;
use crate::ops::{Epilogue, HostMatrix, PlainElements, SavedShape};

/// The matrices of all slots.
#[derive(Default)]
pub(crate) struct SavedMatrices(Vec<Site>);

/// Those in place of one matrix of the model.
struct Site {
    shape: SavedShape,
    /// By slot.
    slots: Vec<Option<SlotMatrix>>,
}

/// The matrix of a slot.
struct SlotMatrix {
    /// Padded with zeros to the site's rows.
    packed: Packed,
    /// Those that it has.
    rows: usize,
}

impl SavedMatrices {
    /// Empty slots.
    pub(crate) fn add(&mut self, shape: SavedShape) -> u32 {
        self.0.push(Site { shape, slots: (0..shape.slots).map(|_| None).collect() });
        u32::try_from(self.0.len() - 1).expect("far fewer matrices")
    }

    pub(crate) fn write(&mut self, pool: &mut Pool, site: u32, slot: u32, matrix: Option<PlainElements<'_>>) {
        let Site { shape, slots } = &mut self.0[site as usize];
        shape.check(slot, matrix);
        // Before the next one takes memory.
        slots[slot as usize] = None;
        let SavedShape { rows, cols, compute, .. } = *shape;
        slots[slot as usize] = matrix.map(|matrix| {
            let missing = rows - shape.rows_of(matrix);
            let PlainElements { dtype, bytes } = matrix;
            let zeros = vec![0; missing * cols * dtype.size()];
            let parts = [(rows - missing, bytes), (missing, &zeros)];
            let parts = parts.into_iter().filter(|(rows, _)| *rows > 0);
            let parts: Vec<_> = parts.map(|(rows, bytes)| HostMatrix::plain(dtype, rows, cols, bytes)).collect();
            SlotMatrix { packed: Packed::new(&parts, compute, pool), rows: rows - missing }
        });
    }

    /// A product for each slot that rows use.
    pub(crate) fn products<'a>(
        &'a self,
        rows: &'a AdapterRows,
        site: u32,
        x: View,
        out: View,
    ) -> impl Iterator<Item = Product<'a>> {
        let Site { shape, slots } = &self.0[site as usize];
        assert_eq!((x.rows, x.width, out.width), (out.rows, shape.cols, shape.rows), "shape of an adapter's product");
        rows.groups(out.rows).by_slot().filter_map(move |(slot, rows)| {
            Some(Product {
                x: Rows::picked(x.data, x.width, rows, 1),
                rows: rows.len(),
                w: &slots[slot].as_ref()?.packed,
                bias: None,
                epilogue: Epilogue::Store,
                activation: None,
                out: Rows::picked(out.data, out.width, rows, 1),
            })
        })
    }

    /// Replaces rows of the model's embedding.
    pub(crate) fn embed(&self, pool: &mut Pool, rows: &AdapterRows, site: u32, tokens: Tokens<'_>, out: View) {
        let Site { shape, slots } = &self.0[site as usize];
        assert_eq!(out.width, shape.cols, "width of an adapter's embedding");
        for (slot, rows) in rows.groups(out.rows).by_slot() {
            let Some(SlotMatrix { packed, rows: entries }) = &slots[slot] else { continue };
            let table = Lookup::of(packed);
            pool.run_sized(rows.len(), rows.len() * out.width, &|task, _| {
                // SAFETY: a row is one task's.
                let to = unsafe { out.row_mut(rows[task] as usize) };
                table.look_up(tokens.entry(rows[task], *entries), tokens.entries.scale, to);
            });
        }
    }
    /// Makes columns of logits -inf that a row's matrix lacks; `own`: columns of the model's.
    pub(crate) fn mask(&self, pool: &mut Pool, rows: &AdapterRows, site: u32, own: usize, out: View) {
        let Site { shape, slots } = &self.0[site as usize];
        assert!(out.width == shape.rows && own <= out.width, "columns of masked logits");
        pool.run_sized(out.rows, out.rows * (out.width - own), &|row, _| {
            let slot = rows.slot(row).and_then(|slot| slots[slot as usize].as_ref());
            // SAFETY: a row is one task's.
            let columns = unsafe { out.row_mut(row) };
            columns[slot.map_or(own, |matrix| matrix.rows)..].fill(f32::NEG_INFINITY);
        });
    }
}
