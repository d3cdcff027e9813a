//! Rule: a sum over ranks that is added to the residual stream next, and the norm of that, are one launch: rows are
//! added and normed where they come, while others still cross.

use super::op::Op;
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;

pub(super) fn rule(list: &mut Vec<Op>, _: Option<&SplitNorm>) -> Verdict {
    match list.as_slice() {
        [Op::AllReduce(..)] => Verdict::Wait,
        [Op::AllReduce(sum, wire), Op::AddNorm(norm), ..] if norm.delta == *sum => {
            let fused = Op::AllReduceAddNorm(*norm, *wire);
            rewrite(list, 2, fused)
        }
        _ => Verdict::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::op::AddNorm;
    use crate::fusion::pass::tests::{fused, unfused};
    use crate::fusion::samples::*;
    use crate::runtime::activations::View;
    use kernels::ops::DType;

    #[test]
    fn a_sum_is_added_and_normed_in_its_launch() {
        let Op::AddNorm(norm) = ADD_NORM else { unreachable!("a norm of a sum") };
        for wire in [DType::F32, DType::Bf16, DType::F16] {
            let launched = fused(&[Op::AllReduce(DELTA, wire), ADD_NORM, GATE_UP_GEMM]);
            assert_eq!(launched, [Op::AllReduceAddNorm(norm, wire), GATE_UP_GEMM]);
        }
    }

    #[test]
    fn other_sums_and_those_with_something_between_are_launched_by_themselves() {
        let sum = Op::AllReduce(DELTA, DType::Bf16);
        unfused(&[sum]);
        unfused(&[sum, Op::Opaque("scale"), ADD_NORM]);
        unfused(&[Op::AllReduce(OTHER, DType::Bf16), ADD_NORM]);
        let Op::AddNorm(norm) = ADD_NORM else { unreachable!("a norm of a sum") };
        let some_rows = View { rows: 2, ..DELTA };
        unfused(&[sum, Op::AddNorm(AddNorm { delta: some_rows, ..norm })]);
    }
}
