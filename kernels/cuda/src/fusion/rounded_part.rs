//! Rule: a GEMM whose outputs are summed over ranks in 16 bits, and then added to the residual stream, writes 16 bits:
//! a part is rounded where it is made instead of on its way, and half as many bytes are written and read.

use super::op::{AddNorm, Gemm, Op};
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;
use crate::runtime::activations::View;
use kernels::ops::DType;

pub(super) fn rule(list: &mut Vec<Op>, split: Option<&SplitNorm>) -> Verdict {
    match list.as_slice() {
        [Op::Gemm(gemm)] if is_part(gemm) => Verdict::Wait,
        [Op::Gemm(gemm), Op::AllReduce(sum, DType::Bf16), rest @ ..]
            if is_part(gemm) && sum.ptr == gemm.out.ptr && split.is_none() =>
        {
            match rest {
                [] => Verdict::Wait,
                [Op::AddNorm(norm), ..] if norm.delta.ptr == sum.ptr && norm.out.dtype != DType::F16 => {
                    // In the first half of the buffer's bytes.
                    let part = View { dtype: DType::Bf16, ..gemm.out };
                    let (gemm, norm) = (Gemm { out: part, ..*gemm }, AddNorm { delta: part, ..*norm });
                    list[1] = Op::AllReduce(part, DType::Bf16);
                    list[2] = Op::AddNorm(norm);
                    rewrite(list, 1, Op::Gemm(gemm))
                }
                _ => Verdict::No,
            }
        }
        _ => Verdict::No,
    }
}

/// Whether a GEMM may be a part that ranks add up, and is not rounded.
fn is_part(gemm: &Gemm) -> bool {
    gemm.fits.all_reduce && gemm.out.dtype == DType::F32
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
        assert_eq!(launched, [Op::Gemm(gemm), Op::AllReduceAddNorm(norm, DType::Bf16), GATE_UP_GEMM]);
    }

    #[test]
    fn sums_in_f32_of_others_or_that_are_not_added_are_kept() {
        let Op::AddNorm(norm) = ADD_NORM else { unreachable!("a norm of a sum") };
        let as_it_is = |gemm: Op, wire: DType| {
            let launched = fused(&[gemm, Op::AllReduce(DELTA, wire), ADD_NORM]);
            assert_eq!(launched, [gemm, Op::AllReduceAddNorm(norm, wire)]);
        };
        as_it_is(part(|_| ()), DType::F32);
        as_it_is(part(|gemm| gemm.fits.all_reduce = false), DType::Bf16);
        unfused(&[part(|_| ()), Op::AllReduce(OTHER, DType::Bf16), ADD_NORM]);
        unfused(&[part(|_| ()), SUM, Op::Opaque("scale"), ADD_NORM]);
        let launched = fused(&[part(|_| ()), Op::Opaque("scale"), SUM, ADD_NORM]);
        assert_eq!(launched[..2], [part(|_| ()), Op::Opaque("scale")]);
        unfused(&[part(|_| ()), SUM, Op::AddNorm(AddNorm { delta: OTHER, ..norm })]);
        unfused(&[part(|_| ()), SUM]);
    }
}
