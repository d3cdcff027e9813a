//! Rule: a GEMM whose outputs are summed over ranks in 16 bits, and then added to the residual stream, writes 16 bits:
//! a part is rounded where it is made instead of on its way, and half as many bytes are written and read.

use super::op::{AddNorm, Gemm, Op};
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;
use crate::runtime::activations::View;
use kernels::ops::DType;

pub(super) fn rule(list: &mut Vec<Op>, split: Option<&SplitNorm>) -> Verdict {
    match list.as_slice() {
        [Op::Gemm(gemm)] if gemm.fits.all_reduce => Verdict::Wait,
        [Op::Gemm(gemm), Op::AllReduce(sum, DType::Bf16), rest @ ..]
            if gemm.fits.all_reduce && sum.ptr == gemm.out.ptr && split.is_none() =>
        {
            match rest {
                [] => Verdict::Wait,
                [Op::AddNorm(norm), ..] if norm.delta.ptr == sum.ptr && norm.out.dtype != DType::F16 => {
                    // In the first half of the buffer's bytes.
                    let part = View { dtype: DType::Bf16, ..gemm.out };
                    let fused = Op::AllReducedGemm(Gemm { out: part, ..*gemm });
                    list[2] = Op::AddNorm(AddNorm { delta: part, ..*norm });
                    rewrite(list, 2, fused)
                }
                _ => Verdict::No,
            }
        }
        _ => Verdict::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::op::Fits;
    use crate::fusion::pass::tests::{fused, unfused};
    use crate::fusion::samples::*;

    const SUM: Op = Op::AllReduce(DELTA, DType::Bf16);

    /// A part that ranks add up.
    fn part(change: impl Fn(&mut Gemm)) -> Op {
        let Op::Gemm(mut gemm) = O_GEMM else { unreachable!("a GEMM") };
        gemm.fits = Fits { all_reduce: true, ..Fits::default() };
        change(&mut gemm);
        Op::Gemm(gemm)
    }

    #[test]
    fn a_part_that_is_summed_and_added_is_rounded_at_once() {
        let (Op::Gemm(gemm), Op::AddNorm(norm)) = (part(|_| ()), ADD_NORM) else { unreachable!("these") };
        let launched = fused(&[part(|_| ()), SUM, ADD_NORM, GATE_UP_GEMM]);
        let part = View { dtype: DType::Bf16, ..DELTA };
        let (gemm, norm) = (Gemm { out: part, ..gemm }, AddNorm { delta: part, ..norm });
        assert_eq!(launched, [Op::AllReducedGemm(gemm), Op::AddNorm(norm), GATE_UP_GEMM]);
    }

    #[test]
    fn sums_in_f32_of_others_or_that_are_not_added_are_kept() {
        unfused(&[part(|_| ()), Op::AllReduce(DELTA, DType::F32), ADD_NORM]);
        unfused(&[part(|_| ()), Op::AllReduce(OTHER, DType::Bf16), ADD_NORM]);
        unfused(&[part(|gemm| gemm.fits.all_reduce = false), SUM, ADD_NORM]);
        unfused(&[part(|_| ()), SUM, Op::Opaque("scale"), ADD_NORM]);
        unfused(&[part(|_| ()), Op::Opaque("scale"), SUM, ADD_NORM]);
        let Op::AddNorm(norm) = ADD_NORM else { unreachable!("a norm of a sum") };
        unfused(&[part(|_| ()), SUM, Op::AddNorm(AddNorm { delta: OTHER, ..norm })]);
        unfused(&[part(|_| ()), SUM]);
    }
}
