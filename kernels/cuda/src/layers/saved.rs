//! Whole matrices that adapters have in place of the model's embedding and head, and the launches of `saved.cu`.
//!
//! What a captured step names stays where it is: slots, and how many rows their matrices have.

use cudarc::driver::sys::CUdeviceptr;

use super::lora::{DOTS, EACH, LoraTarget, WARPS, bytes, ptr};
use crate::runtime::activations::View;
use crate::runtime::background::Extent;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use kernels::ops::{Entries, PlainElements, SavedShape};

/// The matrices of all slots.
#[derive(Default)]
pub(crate) struct SavedMatrices(Vec<Site>);

/// Those in place of one matrix of the model.
struct Site {
    shape: SavedShape,
    /// `[slots][rows][cols]`.
    matrices: Option<Memory>,
    /// `[slots]`: 0 without a matrix, else one more than its rows.
    counts: Option<Memory>,
}

impl SavedMatrices {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Empty slots.
    pub(crate) fn add(&mut self, device: &mut Device, shape: SavedShape) -> u32 {
        let SavedShape { slots, rows, cols, dtype, .. } = shape;
        let matrices = device.allocate(slots * rows * cols * dtype.size(), "matrices of adapters");
        let counts = device.allocate(slots * size_of::<u32>(), "adapters");
        counts.iter().for_each(|counts| device.clear(counts));
        self.0.push(Site { shape, matrices, counts });
        u32::try_from(self.0.len() - 1).expect("far fewer matrices")
    }

    /// What replaces a matrix, and where it belongs.
    pub(crate) fn extents<'a>(
        &self,
        LoraTarget { site, slot }: LoraTarget,
        matrix: Option<PlainElements<'a>>,
    ) -> impl Iterator<Item = Extent<'a>> {
        let Site { shape, matrices, counts } = &self.0[site as usize];
        shape.check(slot, matrix);
        let place = |memory: &Option<Memory>, bytes: usize| ptr(memory.as_ref()) + u64::from(slot) * bytes as u64;
        let count = bytes(std::iter::once(matrix.map_or(0, |matrix| 1 + shape.rows_of(matrix) as u32)));
        let to = place(counts, count.len());
        let room = shape.rows * shape.cols * shape.dtype.size();
        let has_rows = matrix.filter(|matrix| !matrix.bytes.is_empty());
        let numbers = has_rows.map(|matrix| Extent { bytes: matrix.bytes.into(), to: place(matrices, room) });
        numbers.into_iter().chain([Extent { bytes: count.into(), to }])
    }

    /// Replaces products of rows; `slots` are the rows'.
    pub(crate) fn matmul(&self, device: &mut Device, slots: CUdeviceptr, site: u32, [x, out]: [View; 2]) {
        let Site { shape: SavedShape { rows: outputs, cols, dtype, .. }, matrices, counts } = &self.0[site as usize];
        assert_eq!((x.width, out.rows, out.width), (*cols, x.rows, *outputs), "shapes of an adapter's product");
        let [matrices, counts] = [matrices, counts].map(|memory| ptr(memory.as_ref()));
        let grid = [outputs.div_ceil(DOTS), x.rows.div_ceil(EACH)];
        let [rows, inputs, outputs] = [x.rows, *cols, *outputs].map(|size| size as u32);
        device.launch(
            Name::in_file("saved", "saved_matmul", &[x.dtype, *dtype]),
            Shape { grid, block: 32 * WARPS, shared: 0 },
            args![x.ptr, matrices, slots, counts, out.ptr, rows, inputs, outputs],
        );
    }

    /// Masks what rows of logits lack; `slots` are the rows', absent where none has an adapter.
    pub(crate) fn mask(&self, device: &mut Device, slots: Option<CUdeviceptr>, site: u32, own: usize, out: View) {
        let Site { shape, counts, .. } = &self.0[site as usize];
        assert!(out.width == shape.rows && own <= out.width, "columns of masked logits");
        let (slots, counts) = (slots.unwrap_or(0), ptr(counts.as_ref()));
        let [own, columns] = [own, out.width].map(|size| size as u32);
        device.launch(
            Name::in_file("saved", "mask_saved", &[]),
            Shape::rows(out.rows, out.width),
            args![slots, counts, out.ptr, own, columns],
        );
    }

    /// Replaces rows of the model's embedding; `slots` and `tokens` are the rows'.
    pub(crate) fn embed(
        &self,
        device: &mut Device,
        [slots, tokens]: [CUdeviceptr; 2],
        site: u32,
        entries: Entries,
        out: View,
    ) {
        let Site { shape: SavedShape { rows, cols, dtype, .. }, matrices, counts } = &self.0[site as usize];
        assert_eq!(out.width, *cols, "width of an adapter's embedding");
        let [matrices, counts] = [matrices, counts].map(|memory| ptr(memory.as_ref()));
        let [count, width] = [*rows, *cols].map(|size| size as u32);
        device.launch(
            Name::in_file("saved", "saved_embed", &[*dtype]),
            Shape::rows(out.rows, out.width),
            args![matrices, slots, counts, tokens, out.ptr, entries.first, count, width, entries.scale],
        );
    }
}
