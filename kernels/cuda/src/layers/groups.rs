//! Groups of matrices, and launches of what works on heads and columns: `head_matmul.cu`, `copy_columns.cu`,
//! `gate_rows.cu`.

use cudarc::driver::sys::CUdeviceptr;

use crate::jit::layouts::twin;
use crate::latent::head_matmul_mma;
use crate::moe::experts_packed::PackedExperts;
use crate::runtime::activations::View;
use crate::runtime::context::Memory;
use crate::runtime::device::{Device, Name, Shape, args};
use crate::weights::Weights;
use kernels::ops::{DType, HeadColumns};

/// Outputs of a block of a grouped product: a warp each.
pub(crate) const OUTPUTS: usize = 8;
/// What a thread copies at once, where columns begin at multiples of it.
const PIECE_BYTES: u32 = 16;

/// Matrices of one shape, and where they are, on the device.
pub(crate) struct Group {
    pointers: Option<Memory>,
    pub(crate) count: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) dtype: DType,
    /// What inputs may be rounded to.
    pub(crate) compute: DType,
    /// Descriptions of the members for the copy engine, where it can be used.
    pub(crate) maps: Option<Memory>,
    /// The members where they are packed.
    pub(crate) packed: Option<PackedExperts>,
}

impl Group {
    /// `pointers` has the address of each member; see [`Group::maps`] and [`Group::packed`].
    pub(crate) fn new(
        members: &[&Weights],
        pointers: Option<Memory>,
        maps: Option<Memory>,
        packed: Option<PackedExperts>,
    ) -> Self {
        let shape = |matrix: &Weights| (matrix.rows, matrix.cols, matrix.dtype, matrix.compute);
        assert!(!members.is_empty(), "a group of no matrices");
        let first = members[0];
        assert!(members.iter().all(|matrix| shape(matrix) == shape(first)), "matrices of a group differ in shape");
        let (n, k, dtype, compute) = (first.rows, first.cols, first.dtype, first.compute);
        Self { pointers, count: members.len(), n, k, dtype, compute, maps, packed }
    }

    pub(crate) fn ptr(&self) -> CUdeviceptr {
        self.pointers.as_ref().map_or(0, |memory| memory.ptr)
    }
}

/// `struct Columns` of head_matmul.cu and copy_columns.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Columns {
    first: u32,
    stride: u32,
    width: u32,
}

twin!(Columns = "HeadColumns" { first, stride, width });

impl Columns {
    fn of(columns: HeadColumns, view: View) -> Self {
        Self { first: columns.first as u32, stride: columns.stride as u32, width: view.width as u32 }
    }

    /// The same counted in pieces of `columns` columns.
    fn in_pieces(self, columns: u32) -> Self {
        let Self { first, stride, width } = self;
        Self { first: first / columns, stride: stride / columns, width: width / columns }
    }

    /// Whether heads, and rows, begin at such columns.
    pub(crate) fn are_multiples_of(&self, columns: u32) -> bool {
        [self.first, self.stride, self.width].iter().all(|number| number.is_multiple_of(columns))
    }
}

pub(crate) fn gate_rows(device: &mut Device, x: View, gate: View) {
    assert_eq!((gate.rows, gate.width), (x.rows, 1), "gates of {} rows", x.rows);
    let name = Name::of("gate_rows", &[x.dtype, gate.dtype]);
    device.launch(name, Shape::rows(x.rows, x.width), args![x.ptr, gate.ptr, x.width as u32]);
}

/// Some columns of a buffer, head by head.
#[derive(Clone, Copy)]
pub(crate) struct HeadView {
    pub(crate) view: View,
    pub(crate) columns: HeadColumns,
}

/// The same as kernels are told of them.
#[derive(Clone, Copy)]
pub(crate) struct HeadPieces {
    pub(crate) view: View,
    pub(crate) columns: Columns,
}

pub(crate) fn head_matmul(device: &mut Device, from: HeadView, group: &Group, to: HeadView) {
    let (HeadView { view: x, columns: from }, HeadView { view: out, columns: to }) = (from, to);
    from.check_inside(group.count, group.k, x.width);
    to.check_inside(group.count, group.n, out.width);
    to.check_apart(group.count, group.n);
    let (from, to) = (Columns::of(from, x), Columns::of(to, out));
    if head_matmul_mma::run(device, HeadPieces { view: x, columns: from }, group, HeadPieces { view: out, columns: to })
    {
        return;
    }
    let [heads, n, k] = [group.count, group.n, group.k].map(|number| number as u32);
    let shape = Shape { grid: [x.rows * group.count, group.n.div_ceil(OUTPUTS)], block: 32 * OUTPUTS, shared: 0 };
    let name = Name::of("head_matmul", &[x.dtype, group.dtype, out.dtype]);
    device.launch(name, shape, args![x.ptr, from, group.ptr(), out.ptr, to, heads, n, k]);
}

/// `heads` pieces of `width` columns.
pub(crate) fn copy_columns(device: &mut Device, from: HeadView, to: HeadView, heads: usize, width: usize) {
    let (HeadView { view: x, columns: from }, HeadView { view: out, columns: to }) = (from, to);
    from.check_inside(heads, width, x.width);
    to.check_inside(heads, width, out.width);
    let (from, to) = (Columns::of(from, x), Columns::of(to, out));
    let piece = PIECE_BYTES / x.dtype.size() as u32;
    let wide = from.are_multiples_of(piece) && to.are_multiples_of(piece) && (width as u32).is_multiple_of(piece);
    if x.dtype == out.dtype && wide {
        let (from, to, width) = (from.in_pieces(piece), to.in_pieces(piece), width / piece as usize);
        let name = Name::in_file("copy_columns", "copy_columns_wide", &[]);
        let shape = Shape::rows(x.rows, heads * width);
        return device.launch_early(name, shape, args![x.ptr, from, out.ptr, to, heads as u32, width as u32]);
    }
    let name = Name::of("copy_columns", &[x.dtype, out.dtype]);
    let shape = Shape::rows(x.rows, heads * width);
    device.launch_early(name, shape, args![x.ptr, from, out.ptr, to, heads as u32, width as u32]);
}
