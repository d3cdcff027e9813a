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
    slots: Vec<Option<Packed>>,
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
        slots[slot as usize] = matrix.map(|PlainElements { dtype, bytes }| {
            Packed::new(&[HostMatrix::plain(dtype, rows, cols, bytes)], compute, pool)
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
                w: slots[slot].as_ref()?,
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
            let Some(table) = slots[slot].as_ref().map(Lookup::of) else { continue };
            pool.run_sized(rows.len(), rows.len() * out.width, &|task, _| {
                // SAFETY: a row is one task's.
                let to = unsafe { out.row_mut(rows[task] as usize) };
                table.look_up(tokens.entry(rows[task], shape.rows), tokens.entries.scale, to);
            });
        }
    }
}
