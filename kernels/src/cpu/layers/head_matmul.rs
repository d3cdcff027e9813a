//! A product for each head: some columns of every row with the head's own matrix.

use crate::cpu::gemm::pack::Packed;
use crate::cpu::gemm::{Product, Rows};
use crate::cpu::runtime::activations::View;
use crate::cpu::runtime::memory::Shared;
use crate::ops::{Epilogue, HeadColumns};

/// Some columns of a buffer, head by head.
#[derive(Clone, Copy)]
pub(crate) struct HeadView {
    pub(crate) view: View,
    pub(crate) columns: HeadColumns,
}

/// One product `[n, k]` for each of `heads`, whose shapes are equal.
pub(crate) fn products<'a>(
    heads: impl ExactSizeIterator<Item = &'a Packed>,
    [n, k]: [usize; 2],
    HeadView { view: x, columns: from }: HeadView,
    HeadView { view: out, columns: to }: HeadView,
) -> impl Iterator<Item = Product<'a>> {
    from.check_inside(heads.len(), k, x.width);
    to.check_inside(heads.len(), n, out.width);
    to.check_apart(heads.len(), n);
    heads.enumerate().map(move |(head, w)| {
        // SAFETY: the columns are inside a row (checked).
        let (x_head, out_head) =
            unsafe { (x.data.at(from.first + head * from.stride), out.data.at(to.first + head * to.stride)) };
        Product {
            x: Rows::dense(Shared::new(x_head), x.width),
            rows: x.rows,
            w,
            bias: None,
            epilogue: Epilogue::Store,
            activation: None,
            out: Rows::dense(Shared::new(out_head), out.width),
        }
    })
}
