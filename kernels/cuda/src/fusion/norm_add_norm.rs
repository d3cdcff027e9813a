//! Rule: a norm in place of what is added to the residual stream next, and the norm of that sum, are one pass over the
//! rows. Gemma 2 and 3 norm what attention and the MLP give before it is added.

use super::op::Op;
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;
use kernels::ops::DType;

pub(super) fn rule(list: &mut Vec<Op>, _: Option<&SplitNorm>) -> Verdict {
    match list.as_slice() {
        [Op::Norm(norm), rest @ ..] if norm.x.ptr == norm.out.ptr && norm.out.dtype == DType::F32 => match rest {
            [] => Verdict::Wait,
            [Op::AddNorm(sum), ..] if sum.delta.ptr == norm.out.ptr => {
                let fused = Op::NormAddNorm(*norm, *sum);
                rewrite(list, 2, fused)
            }
            _ => Verdict::No,
        },
        _ => Verdict::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::op::{AddNorm, Norm};
    use crate::fusion::pass::tests::{fused, unfused};
    use crate::fusion::samples::*;

    const DELTA_NORM: Norm = Norm { x: DELTA, params: NORM, out: DELTA };

    #[test]
    fn what_is_normed_in_place_is_added_in_the_same_pass() {
        let Op::AddNorm(sum) = ADD_NORM else { unreachable!("a norm of a sum") };
        assert_eq!(fused(&[Op::Norm(DELTA_NORM), ADD_NORM]), [Op::NormAddNorm(DELTA_NORM, sum)]);
        // The product before it is neither added nor does it begin a norm.
        let launched = fused(&[O_GEMM, Op::Norm(DELTA_NORM), ADD_NORM, GATE_UP_GEMM]);
        assert_eq!(launched, [O_GEMM, Op::NormAddNorm(DELTA_NORM, sum), GATE_UP_GEMM]);
    }

    #[test]
    fn norms_elsewhere_of_other_rows_or_with_something_between_are_kernels_of_their_own() {
        unfused(&[Op::Norm(Norm { out: OTHER, ..DELTA_NORM }), ADD_NORM]);
        unfused(&[Op::Norm(Norm { x: OTHER, out: OTHER, ..DELTA_NORM }), ADD_NORM]);
        unfused(&[Op::Norm(DELTA_NORM), Op::Opaque("scale"), ADD_NORM]);
        let Op::AddNorm(sum) = ADD_NORM else { unreachable!("a norm of a sum") };
        unfused(&[Op::Norm(DELTA_NORM), Op::AddNorm(AddNorm { delta: OTHER, ..sum })]);
    }
}
