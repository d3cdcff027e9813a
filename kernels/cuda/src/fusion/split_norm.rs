//! Rule: a norm by the root of the mean square is done in halves by the GEMMs around it, so that no kernel of its own
//! stands between them (`kernels/cuda/csrc/fusion/split_norm.cuh`). The GEMM before it (`add_norm`) leaves rows of the
//! residual times the norm's weight, and sums of squares; a GEMM that reads them divides by the root. Before anything
//! else reads these rows, or writes what they are made of, the norm is done in full; before they are overwritten, it is
//! forgotten.

use cudarc::driver::sys::CUdeviceptr;

use super::op::{Access, AddNorm, Norm, NormBy, Op};
use super::prepared_rows::Maker;
use crate::gemm::product::Product;
use crate::jit::layouts::twin;
use crate::layers::norm;
use crate::runtime::activations::View;
use crate::runtime::context::Memory;
use crate::runtime::device::Device;
use kernels::ops::{DType, Epilogue};

/// Columns whose squares are added first, in one block. Rows have pairs of them.
pub(crate) const PIECE: usize = 16;
/// Sums of squares that there is memory for.
const MOST_SUMS: usize = 1 << 18;

/// `struct NormBefore` of the kernels: what is to be done to rows that a product reads. All zeros: nothing.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Before {
    squares: CUdeviceptr,
    pairs: u32,
    eps: f32,
}

twin!(Before = "NormBefore" { squares, pairs, eps });

/// `struct NormAfter` of the kernels: what a product leaves beside its sums. All zeros: nothing.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct After {
    scaled: CUdeviceptr,
    weight: CUdeviceptr,
    squares: CUdeviceptr,
}

twin!(After = "NormAfter" { scaled, weight, squares });

/// A norm whose first half is done: `out` holds rows of the residual times the norm's weight.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct SplitNorm {
    pub(crate) residual: View,
    pub(crate) params: norm::Params,
    pub(crate) out: View,
}

impl SplitNorm {
    pub(crate) fn of(norm: &AddNorm) -> Self {
        Self { residual: norm.residual, params: norm.params, out: norm.out }
    }

    /// Whether a norm can be done in halves, as far as it is concerned. Numbers times a weight, not divided yet, may be
    /// more than f16 holds.
    pub(super) fn fits(norm: &AddNorm) -> bool {
        norm.params.subtract_mean == 0 && norm.params.bias == 0 && norm.out.dtype == DType::Bf16
    }

    /// All of it at once.
    pub(crate) fn whole(&self) -> Norm {
        Norm { x: self.residual, params: self.params, out: self.out }
    }

    /// Whether an operation that writes there overwrites what it is made of or has written.
    pub(super) fn is_written_by(&self, written: CUdeviceptr) -> bool {
        [self.residual.ptr, self.out.ptr].contains(&written)
    }

    /// Whether it must be done in full before such an operation.
    pub(super) fn concerns(&self, read: CUdeviceptr, written: CUdeviceptr) -> bool {
        read == self.out.ptr || self.is_written_by(written)
    }

    /// Whether a norm overwrites its rows unread.
    pub(super) fn is_replaced_by(&self, norm: &AddNorm) -> bool {
        norm.out.ptr == self.out.ptr && norm.delta.ptr != self.out.ptr
    }
}

/// Before the first operation of the list: what it needs of the split norm.
pub(super) fn rewrite(list: &mut Vec<Op>, split: &mut Option<SplitNorm>) {
    let (Some(norm), Some(first)) = (*split, list.first_mut()) else { return };
    let goes_on = match first {
        Op::Gemm(gemm) if norm.is_written_by(gemm.out.ptr) => false,
        Op::Gemm(gemm) if gemm.x.ptr == norm.out.ptr => {
            gemm.before = gemm.fits.end_norm.then_some(norm);
            gemm.fits.end_norm
        }
        Op::AddNorm(next) => norm.is_replaced_by(next),
        other => match other.access() {
            Access::Any => false,
            Access::Only { read, written } => !norm.concerns(read, written),
        },
    };
    if !goes_on {
        *split = None;
        list.insert(0, Op::Norm(norm.whole()));
    }
}

/// After an operation has left the list.
pub(super) fn follow(op: &Op, split: &mut Option<SplitNorm>) {
    match op {
        Op::AddNormGemm(_, norm, NormBy::Gemms) => *split = Some(SplitNorm::of(norm)),
        Op::AddNormGemm(..) | Op::AddNorm(_) | Op::AllReduceAddNorm(..) | Op::Prepared(Maker::AddNorm(_), _) => {
            *split = None;
        }
        _ => {}
    }
}

/// Whether a product, of whole pieces a block, could do the first half of a norm.
pub(crate) fn may_precede(product: &Product<'_>) -> bool {
    let Product { x, w, epilogue, out, .. } = product;
    w.dtype == DType::Bf16
        && out.dtype == DType::F32
        && *epilogue == Epilogue::Store
        && x.rows > 0
        && w.rows.is_multiple_of(2 * PIECE)
        && x.rows * (w.rows / PIECE) <= MOST_SUMS
}

/// Where sums of squares lie. One norm at a time is split.
#[derive(Default)]
pub(crate) struct Squares {
    memory: Option<Memory>,
}

impl Squares {
    /// What is left to do of rows of a norm.
    pub(crate) fn before(&self, split: &SplitNorm) -> Before {
        let squares = self.memory.as_ref().map_or(0, |memory| memory.ptr);
        Before { squares, pairs: (split.residual.width / (2 * PIECE)) as u32, eps: split.params.eps }
    }

    /// What the GEMM before a norm leaves; none without memory.
    pub(crate) fn after(&mut self, device: &mut Device, split: &SplitNorm) -> Option<After> {
        if self.memory.is_none() {
            self.memory = device.allocate(MOST_SUMS * size_of::<f32>(), "sums of squares");
        }
        let squares = self.memory.as_ref()?.ptr;
        Some(After { scaled: split.out.ptr, weight: split.params.weight, squares })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::op::{Fits, Gemm};
    use crate::fusion::pass::tests::fused;
    use crate::fusion::pass::{Lookahead, Pass};
    use crate::fusion::samples::*;

    /// What follows a norm that was split.
    fn after_split(ops: &[Op]) -> Vec<Op> {
        let all: Vec<Op> = [O_GEMM, ADD_NORM].iter().chain(ops).copied().collect();
        let launched = fused(&all);
        assert_eq!(launched[0], add_norm_gemm(O_GEMM));
        launched[1..].to_vec()
    }

    fn gemm(change: impl Fn(&mut Gemm)) -> Op {
        let Op::Gemm(mut gemm) = QKV_GEMM else { unreachable!("a GEMM") };
        change(&mut gemm);
        Op::Gemm(gemm)
    }

    const WHOLE: Op = Op::Norm(Norm { x: X, params: NORM, out: NORMED });

    #[test]
    fn every_gemm_of_its_rows_ends_it() {
        let ended = before(QKV_GEMM, Some(SPLIT));
        assert_eq!(after_split(&[QKV_GEMM, QKV_GEMM]), [ended, ended]);
    }

    #[test]
    fn a_gemm_that_cannot_end_it_finds_it_done_in_full() {
        let plain = gemm(|gemm| gemm.fits = Fits::default());
        assert_eq!(after_split(&[plain, QKV_GEMM]), [WHOLE, plain, QKV_GEMM]);
    }

    #[test]
    fn who_writes_the_residual_or_its_rows_finds_it_done_in_full() {
        let onto_residual = gemm(|gemm| (gemm.out, gemm.epilogue) = (X, Epilogue::Accumulate));
        assert_eq!(after_split(&[onto_residual]), [WHOLE, onto_residual]);
        let onto_rows = gemm(|gemm| (gemm.x, gemm.out) = (ATTENDED, NORMED));
        assert_eq!(after_split(&[onto_rows]), [WHOLE, onto_rows]);
    }

    #[test]
    fn other_operations_on_other_buffers_leave_it() {
        assert_eq!(after_split(&[ROPE, ATTENTION, QKV_GEMM]), [ROPE, ATTENTION, before(QKV_GEMM, Some(SPLIT))]);
    }

    #[test]
    fn an_operation_that_no_rule_knows_finds_it_done_in_full() {
        let opaque = Op::Opaque("gather");
        assert_eq!(after_split(&[opaque, QKV_GEMM]), [WHOLE, opaque, QKV_GEMM]);
    }

    #[test]
    fn a_norm_into_the_same_rows_replaces_it() {
        assert_eq!(after_split(&[ADD_NORM]), [ADD_NORM]);
        assert_eq!(after_split(&[DOWN_GEMM, ADD_NORM]), [add_norm_gemm(DOWN_GEMM)]);
        // Not where it reads them.
        let Op::AddNorm(norm) = ADD_NORM else { unreachable!("a norm") };
        let of_rows = Op::AddNorm(AddNorm { delta: NORMED, ..norm });
        assert_eq!(after_split(&[of_rows]), [WHOLE, of_rows]);
    }

    #[test]
    fn the_host_finds_it_done_in_full_where_it_looks() {
        let mut pass = Pass::default();
        let split = |pass: &mut Pass| {
            [O_GEMM, ADD_NORM].iter().for_each(|op| pass.push(*op));
            while pass.next(Lookahead::Closed).is_some() {}
        };
        split(&mut pass);
        assert_eq!(pass.end_split(Some(QKV.ptr)), None);
        assert_eq!(pass.end_split(Some(NORMED.ptr)), Some(WHOLE));
        assert_eq!(pass.end_split(None), None);
        split(&mut pass);
        assert_eq!(pass.end_split(None), Some(WHOLE));
        // A launch that could not split it has done all of it.
        split(&mut pass);
        pass.norm_is_whole();
        assert_eq!(pass.end_split(None), None);
    }
}
