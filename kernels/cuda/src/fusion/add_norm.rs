//! Rule: a GEMM that is added to the residual stream next is added at once, and may do the first half of the norm of
//! the sum.

use super::op::{NormBy, Op};
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;
use kernels::ops::DType;

pub(super) fn rule(list: &mut Vec<Op>, split: Option<&SplitNorm>) -> Verdict {
    match list.as_slice() {
        [Op::Gemm(gemm)] if gemm.fits.add || gemm.fits.split_norm => Verdict::Wait,
        [Op::Gemm(gemm), Op::AddNorm(norm), ..] => {
            let same = norm.delta.ptr == gemm.out.ptr && gemm.out.dtype == DType::F32;
            let aliased = gemm.x.ptr == norm.residual.ptr;
            let waits = gemm.fits.add || gemm.fits.split_norm;
            if !waits || !same || aliased || split.is_some_and(|split| !split.is_replaced_by(norm)) {
                return Verdict::No;
            }
            let halves = gemm.fits.split_norm && !gemm.fits.add && gemm.x.ptr != norm.out.ptr;
            let by = if halves && SplitNorm::fits(norm) { NormBy::Gemms } else { NormBy::Kernel };
            let fused = Op::AddNormGemm(*gemm, *norm, by);
            rewrite(list, 2, fused)
        }
        _ => Verdict::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::op::{AddNorm, Fits, Gemm};
    use crate::fusion::pass::tests::{fused, unfused};
    use crate::fusion::samples::*;

    fn o_gemm(change: impl Fn(&mut Gemm)) -> Op {
        let Op::Gemm(mut gemm) = O_GEMM else { unreachable!("a GEMM") };
        change(&mut gemm);
        Op::Gemm(gemm)
    }

    fn add_norm(change: impl Fn(&mut AddNorm)) -> Op {
        let Op::AddNorm(mut norm) = ADD_NORM else { unreachable!("a norm") };
        change(&mut norm);
        Op::AddNorm(norm)
    }

    /// What becomes of two operations that are one, with a norm by a kernel of its own.
    fn by_kernel(gemm: Op, norm: Op) {
        let (Op::Gemm(inner), Op::AddNorm(sum)) = (gemm, norm) else { unreachable!("a GEMM and a norm") };
        assert_eq!(fused(&[gemm, norm]), [Op::AddNormGemm(inner, sum, NormBy::Kernel)]);
    }

    #[test]
    fn a_gemm_is_added_and_begins_the_norm() {
        assert_eq!(fused(&[O_GEMM, ADD_NORM]), [add_norm_gemm(O_GEMM)]);
    }

    #[test]
    fn norms_that_products_cannot_begin_are_kernels_of_their_own() {
        by_kernel(O_GEMM, add_norm(|norm| norm.params.subtract_mean = 1));
        by_kernel(O_GEMM, add_norm(|norm| norm.params.bias = 9));
        by_kernel(O_GEMM, add_norm(|norm| norm.out.dtype = DType::F16));
        // The norm would overwrite what the GEMM still reads.
        by_kernel(o_gemm(|gemm| gemm.x = NORMED), ADD_NORM);
    }

    #[test]
    fn gemms_of_many_rows_are_added_only() {
        let many = Fits { add: true, ..Fits::default() };
        by_kernel(o_gemm(|gemm| gemm.fits = many), ADD_NORM);
    }

    #[test]
    fn what_comes_between_or_is_another_sum_keeps_them_apart() {
        unfused(&[O_GEMM, Op::Opaque("sum_over_ranks"), ADD_NORM]);
        unfused(&[O_GEMM, QKV_GEMM, ADD_NORM]);
        unfused(&[O_GEMM, add_norm(|norm| norm.delta = OTHER)]);
        unfused(&[o_gemm(|gemm| gemm.out.dtype = DType::Bf16), ADD_NORM]);
        unfused(&[o_gemm(|gemm| gemm.x = X), ADD_NORM]);
        unfused(&[o_gemm(|gemm| gemm.fits = Fits::default()), ADD_NORM]);
    }

    #[test]
    fn a_norm_into_another_buffer_comes_after_all_of_the_split_one() {
        let elsewhere = add_norm(|norm| norm.out = ATTENDED);
        let down = DOWN_GEMM;
        let launched = fused(&[O_GEMM, ADD_NORM, down, elsewhere]);
        assert_eq!(launched, [add_norm_gemm(O_GEMM), down, Op::Norm(SPLIT.whole()), elsewhere]);
    }
}
