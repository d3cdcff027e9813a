//! Rule: two norms of the same rows, as those of parallel branches, are one pass over them.

use super::op::{Norm, Op};
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;
use kernels::ops::DType;

pub(super) fn rule(list: &mut Vec<Op>, _: Option<&SplitNorm>) -> Verdict {
    match list.as_slice() {
        [Op::Norm(norm)] if may_be_first(norm) => Verdict::Wait,
        [Op::Norm(first), Op::Norm(second), ..] if may_be_first(first) && are_alike(first, second) => {
            let fused = Op::TwoNorms(*first, *second);
            rewrite(list, 2, fused)
        }
        _ => Verdict::No,
    }
}

/// Whether a norm leaves its rows as they are.
fn may_be_first(norm: &Norm) -> bool {
    norm.x.dtype == DType::F32 && norm.out.ptr != norm.x.ptr
}

/// Whether norms differ in weights, biases and where they go alone.
fn are_alike(first: &Norm, second: &Norm) -> bool {
    let (one, other) = (&first.params, &second.params);
    first.x == second.x
        && first.out.dtype == second.out.dtype
        && ![first.out.ptr, first.x.ptr].contains(&second.out.ptr)
        && (one.eps, one.subtract_mean) == (other.eps, other.subtract_mean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::pass::tests::{fused, unfused};
    use crate::fusion::samples::*;
    use crate::layers::norm::Params;
    use crate::runtime::activations::View;

    const FIRST: Norm = Norm { x: X, params: NORM, out: NORMED };
    const SECOND: Norm = Norm { params: Params { weight: 8, bias: 9, ..NORM }, out: ATTENDED, ..FIRST };

    #[test]
    fn norms_of_parallel_branches_are_one_pass() {
        assert_eq!(fused(&[Op::Norm(FIRST), Op::Norm(SECOND), QKV_GEMM]), [Op::TwoNorms(FIRST, SECOND), QKV_GEMM]);
    }

    #[test]
    fn norms_of_other_rows_or_kinds_or_in_place_are_kernels_of_their_own() {
        let apart = |first: Norm, second: Norm| unfused(&[Op::Norm(first), Op::Norm(second)]);
        apart(FIRST, Norm { x: OTHER, ..SECOND });
        apart(FIRST, Norm { x: View { rows: 2, ..X }, ..SECOND });
        apart(FIRST, Norm { out: NORMED, ..SECOND });
        apart(FIRST, Norm { out: X, ..SECOND });
        apart(FIRST, Norm { out: View { dtype: DType::F16, ..ATTENDED }, ..SECOND });
        apart(FIRST, Norm { params: Params { eps: 1e-5, ..NORM }, ..SECOND });
        apart(FIRST, Norm { params: Params { subtract_mean: 1, ..NORM }, ..SECOND });
        apart(Norm { out: X, ..FIRST }, SECOND);
        unfused(&[Op::Norm(FIRST), Op::Opaque("scale"), Op::Norm(SECOND)]);
    }
}
