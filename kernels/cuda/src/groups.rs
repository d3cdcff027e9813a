//! Launches what works on groups of matrices and columns: `route.cu`, `expert_matmul.cu`, `combine.cu`, `gate_rows.cu`,
//! `head_matmul.cu`, `copy_columns.cu`.

use cudarc::driver::sys::CUdeviceptr;

use super::acts::View;
use super::context::Memory;
use super::device::{Device, Name, Shape, args};
use super::weights::Weights;
use kernels::ops::{Epilogue, HeadColumns, RouterScore, Routing};

/// Outputs of a block of a grouped product: a warp each.
const OUTPUTS: usize = 8;

/// Matrices of one shape, and where they are, on the device.
pub(crate) struct Group {
    pointers: Option<Memory>,
    pub(crate) count: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    dtype: kernels::ops::DType,
}

impl Group {
    /// `pointers` has the address of each member.
    pub(crate) fn new(members: &[&Weights], pointers: Option<Memory>) -> Self {
        let shape = |matrix: &Weights| (matrix.rows, matrix.cols, matrix.dtype, matrix.compute);
        assert!(!members.is_empty(), "a group of no matrices");
        let first = members[0];
        assert!(members.iter().all(|matrix| shape(matrix) == shape(first)), "matrices of a group differ in shape");
        Self { pointers, count: members.len(), n: first.rows, k: first.cols, dtype: first.dtype }
    }

    fn ptr(&self) -> CUdeviceptr {
        self.pointers.as_ref().map_or(0, |memory| memory.ptr)
    }
}

/// Which experts rows chose: `[rows][top_k]` numbers and weights.
pub(crate) struct Choices {
    experts: Option<Memory>,
    weights: Option<Memory>,
    max_rows: usize,
    pub(crate) top_k: usize,
    /// Rows of the newest choice, and the experts it was made among.
    pub(crate) rows: usize,
    pub(crate) among: usize,
}

impl Choices {
    pub(crate) fn new(device: &mut Device, max_rows: usize, top_k: usize) -> Self {
        let mut numbers = || device.allocate(max_rows * top_k * size_of::<u32>(), "choices of experts");
        Self { experts: numbers(), weights: numbers(), max_rows, top_k, rows: 0, among: 0 }
    }

    fn pointers(&self) -> (CUdeviceptr, CUdeviceptr) {
        let start = |memory: &Option<Memory>| memory.as_ref().map_or(0, |memory| memory.ptr);
        (start(&self.experts), start(&self.weights))
    }
}

/// `struct Routing` of route.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Router {
    correction: CUdeviceptr,
    sigmoid: u32,
    groups: u32,
    groups_kept: u32,
    group_best: u32,
    top_k: u32,
    renormalise: u32,
    scale: f32,
}

/// `struct Columns` of head_matmul.cu and copy_columns.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Columns {
    first: u32,
    stride: u32,
    width: u32,
}

impl Columns {
    fn of(columns: HeadColumns, view: View) -> Self {
        Self { first: columns.first as u32, stride: columns.stride as u32, width: view.width as u32 }
    }
}

/// `correction` is where the corrections are: null for none.
pub(crate) fn route(
    device: &mut Device,
    logits: View,
    routing: Routing,
    correction: CUdeviceptr,
    choices: &mut Choices,
) {
    let (experts, top_k) = (logits.width, routing.top_k);
    assert_eq!(top_k, choices.top_k, "experts a row, and room for them");
    assert!(logits.rows <= choices.max_rows, "{} rows in choices for {}", logits.rows, choices.max_rows);
    let eligible = routing.groups.map_or(experts, |groups| {
        let (count, best) = (groups.count, groups.best);
        assert!(
            count > 0 && groups.kept <= count && experts.is_multiple_of(count) && best <= experts / count,
            "{groups:?}"
        );
        experts / count * groups.kept
    });
    assert!(top_k <= eligible, "{top_k} experts a row of {eligible}");
    (choices.rows, choices.among) = (logits.rows, experts);
    let groups = routing.groups.map_or((0, 0, 0), |groups| (groups.count, groups.kept, groups.best));
    let router = Router {
        correction,
        sigmoid: u32::from(routing.score == RouterScore::Sigmoid),
        groups: groups.0 as u32,
        groups_kept: groups.1 as u32,
        group_best: groups.2 as u32,
        top_k: top_k as u32,
        renormalise: u32::from(routing.renormalise),
        scale: routing.scale,
    };
    let (chosen, weights) = choices.pointers();
    let shape = Shape { grid: [logits.rows, 1], block: 32, shared: (2 * experts + groups.0) * size_of::<f32>() };
    device.launch(
        Name::of("route", &[logits.dtype]),
        shape,
        args![logits.ptr, router, chosen, weights, experts as u32],
    );
}

/// `out` has a row for every choice; `x` one for every choice or for every row.
pub(crate) fn expert_matmul(
    device: &mut Device,
    x: View,
    group: &Group,
    bias: CUdeviceptr,
    choices: &Choices,
    out: View,
) {
    let pairs_a_row = out.rows / x.rows.max(1);
    let (experts, _) = choices.pointers();
    let [pairs_a_row, n, k] = [pairs_a_row, group.n, group.k].map(|number| number as u32);
    let shape = Shape { grid: [out.rows, group.n.div_ceil(OUTPUTS)], block: 32 * OUTPUTS, shared: 0 };
    let name = Name::of("expert_matmul", &[x.dtype, group.dtype, out.dtype]);
    device.launch(name, shape, args![x.ptr, group.ptr(), bias, experts, out.ptr, pairs_a_row, n, k]);
}

pub(crate) fn combine(device: &mut Device, x: View, choices: &Choices, epilogue: Epilogue, out: View) {
    assert_eq!((x.rows, x.width), (out.rows * choices.top_k, out.width), "what experts gave, and its sums");
    let (_, weights) = choices.pointers();
    let [top_k, width] = [choices.top_k, out.width].map(|number| number as u32);
    let accumulate = u32::from(epilogue == Epilogue::Accumulate);
    let name = Name::of("combine", &[x.dtype, out.dtype]);
    device.launch(name, Shape::rows(out.rows, out.width), args![x.ptr, weights, out.ptr, top_k, width, accumulate]);
}

pub(crate) fn gate_rows(device: &mut Device, x: View, gate: View) {
    assert_eq!((gate.rows, gate.width), (x.rows, 1), "gates of {} rows", x.rows);
    let name = Name::of("gate_rows", &[x.dtype, gate.dtype]);
    device.launch(name, Shape::rows(x.rows, x.width), args![x.ptr, gate.ptr, x.width as u32]);
}

pub(crate) fn head_matmul(
    device: &mut Device,
    (x, from): (View, HeadColumns),
    group: &Group,
    (out, to): (View, HeadColumns),
) {
    let end = |columns: HeadColumns, width: usize| columns.first + (group.count - 1) * columns.stride + width;
    assert!(end(from, group.k) <= x.width && end(to, group.n) <= out.width, "heads inside rows");
    assert!(group.count == 1 || to.stride >= group.n, "heads of an output that overlap");
    let (from, to) = (Columns::of(from, x), Columns::of(to, out));
    let [heads, n, k] = [group.count, group.n, group.k].map(|number| number as u32);
    let shape = Shape { grid: [x.rows * group.count, group.n.div_ceil(OUTPUTS)], block: 32 * OUTPUTS, shared: 0 };
    let name = Name::of("head_matmul", &[x.dtype, group.dtype, out.dtype]);
    device.launch(name, shape, args![x.ptr, from, group.ptr(), out.ptr, to, heads, n, k]);
}

/// `heads` pieces of `width` columns.
pub(crate) fn copy_columns(
    device: &mut Device,
    (x, from): (View, HeadColumns),
    (out, to): (View, HeadColumns),
    heads: usize,
    width: usize,
) {
    let end = |columns: HeadColumns| columns.first + heads.saturating_sub(1) * columns.stride + width;
    assert!(end(from) <= x.width && end(to) <= out.width, "columns inside rows");
    let (from, to) = (Columns::of(from, x), Columns::of(to, out));
    let name = Name::of("copy_columns", &[x.dtype, out.dtype]);
    let shape = Shape::rows(x.rows, heads * width);
    device.launch(name, shape, args![x.ptr, from, out.ptr, to, heads as u32, width as u32]);
}
