//! Activation buffers: who has how many rows, and pointers that one operation may use side by side.

use std::ops::Range;

use crate::cpu::runtime::memory::{Region, Shared};
use crate::cpu::runtime::pool::Pool;
use crate::ops::{Act, Cols};

/// All activation buffers of a backend.
#[derive(Default)]
pub(crate) struct ActivationBuffers(Vec<Buffer>);

struct Buffer {
    region: Region,
    max_rows: usize,
    width: usize,
    rows: usize,
}

/// A buffer as one operation sees it: `rows * width` elements at `data`.
#[derive(Clone, Copy)]
pub(crate) struct View {
    pub(crate) data: Shared<f32>,
    pub(crate) rows: usize,
    pub(crate) width: usize,
}

/// Columns of a view.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    pub(crate) view: View,
    pub(crate) first: usize,
}

impl Columns {
    pub(crate) fn check(&self, rows: usize, cols: usize) {
        let View { rows: has, width, .. } = self.view;
        assert!(has == rows && self.first + cols <= width, "{cols} columns from {} of {has} x {width}", self.first);
    }

    /// # Safety
    /// Row and column are inside (see [`Self::check`]).
    #[inline(always)]
    pub(crate) unsafe fn at(&self, row: usize, col: usize) -> *const f32 {
        // SAFETY: the caller's promise.
        unsafe { self.view.data.at(row * self.view.width + self.first + col).cast_const() }
    }
}

impl ActivationBuffers {
    pub(crate) fn add(&mut self, max_rows: usize, width: usize) -> Act {
        // Sixteen elements of slack keep whole-vector reads at the end inside the mapping.
        let bytes = (max_rows * width + 16) * size_of::<f32>();
        self.0.push(Buffer { region: Region::new(bytes), max_rows, width, rows: 0 });
        Act(u32::try_from(self.0.len() - 1).expect("far fewer buffers"))
    }

    /// A step of `rows` rows begins.
    pub(crate) fn begin(&mut self, rows: usize) {
        self.0.iter_mut().for_each(|buffer| buffer.rows = rows);
    }

    /// The current rows of a buffer.
    pub(crate) fn view(&self, act: Act) -> View {
        let buffer = &self.0[act.0 as usize];
        assert!(buffer.rows <= buffer.max_rows, "{} rows in a buffer for {}", buffer.rows, buffer.max_rows);
        View { data: Shared::new(buffer.region.ptr().cast()), rows: buffer.rows, width: buffer.width }
    }

    /// Columns of the current rows of a buffer.
    pub(crate) fn columns(&self, cols: Cols) -> Columns {
        Columns { view: self.view(cols.act), first: cols.first }
    }

    /// Columns of a buffer, which may have room for fewer rows than the step has.
    pub(crate) fn width(&self, act: Act) -> usize {
        self.0[act.0 as usize].width
    }

    /// A buffer about to receive `rows` rows of `width`.
    pub(crate) fn target(&mut self, act: Act, rows: usize, width: usize) -> View {
        let buffer = &mut self.0[act.0 as usize];
        assert_eq!(buffer.width, width, "width of the output buffer, and of what is written");
        buffer.rows = rows;
        self.view(act)
    }

    /// The current rows as a slice.
    pub(crate) fn slice(&self, act: Act) -> &[f32] {
        let view = self.view(act);
        // SAFETY: the view is inside its region, and writers need `&mut self` of the backend.
        unsafe { std::slice::from_raw_parts(view.data.at(0), view.rows * view.width) }
    }

    /// The current rows for writing.
    pub(crate) fn slice_mut(&mut self, act: Act) -> &mut [f32] {
        let view = self.view(act);
        // SAFETY: as above, and `&mut self` makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(view.data.at(0), view.rows * view.width) }
    }
}

impl View {
    /// One row.
    ///
    /// # Safety
    /// Nobody writes the row meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn row(&self, row: usize) -> &[f32] {
        debug_assert!(row < self.rows);
        // SAFETY: the row is inside the buffer; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts(self.data.at(row * self.width), self.width) }
    }

    /// One row for writing.
    ///
    /// # Safety
    /// Nobody else uses the row meanwhile.
    #[allow(clippy::mut_from_ref, reason = "tasks own disjoint rows of a shared view")]
    #[inline(always)]
    pub(crate) unsafe fn row_mut(&self, row: usize) -> &mut [f32] {
        debug_assert!(row < self.rows);
        // SAFETY: the row is inside the buffer; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.data.at(row * self.width), self.width) }
    }

    /// Runs `body` for every row, in tasks of a few rows; `cost` is the work of one element in multiplications.
    pub(crate) fn for_each_row(&self, pool: &mut Pool, cost: usize, body: &(dyn Fn(usize) + Sync)) {
        self.for_rows(pool, cost, 1, &|rows| rows.for_each(body));
    }

    /// The same with some rows at a time: multiples of `block` where that leaves some to each thread.
    pub(crate) fn for_rows(&self, pool: &mut Pool, cost: usize, block: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        const TASK_WORK: usize = 1 << 16;
        let row_work = (self.width * cost).max(1);
        let most = self.rows.div_ceil(pool.threads()).max(1);
        let rows = (TASK_WORK / row_work).clamp(1, most);
        let rows = if block <= most { rows.next_multiple_of(block) } else { rows };
        pool.run_sized(self.rows.div_ceil(rows), self.rows * row_work, &|task, _| {
            body(task * rows..self.rows.min((task + 1) * rows));
        });
    }
}
