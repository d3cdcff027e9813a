//! Rule: a GEMM and an activation of its outputs are one kernel, which writes them once.

use super::op::Op;
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;

pub(super) fn rule(list: &mut Vec<Op>, _: Option<&SplitNorm>) -> Verdict {
    match list.as_slice() {
        [Op::Gemm(gemm)] if gemm.fits.activate => Verdict::Wait,
        [Op::Gemm(gemm), Op::Activate(x, activation), ..] if gemm.fits.activate && *x == gemm.out => {
            let fused = Op::ActivatedGemm(*gemm, *activation);
            rewrite(list, 2, fused)
        }
        _ => Verdict::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::op::{Fits, Gemm};
    use crate::fusion::pass::tests::{fused, unfused};
    use crate::fusion::samples::*;
    use crate::runtime::activations::View;
    use kernels::ops::Activation;

    const ACTIVATE: Op = Op::Activate(INNER, Activation::Gelu);

    fn up(change: impl Fn(&mut Gemm)) -> Gemm {
        let Op::Gemm(mut up) = gemm(NORMED, 64, INNER) else { unreachable!("a GEMM") };
        change(&mut up);
        up
    }

    #[test]
    fn a_gemm_and_an_activation_of_its_outputs_are_one() {
        let gemm = up(|_| ());
        assert_eq!(fused(&[Op::Gemm(gemm), ACTIVATE]), [Op::ActivatedGemm(gemm, Activation::Gelu)]);
    }

    #[test]
    fn what_comes_between_or_is_of_other_rows_keeps_them_apart() {
        let gemm = Op::Gemm(up(|_| ()));
        unfused(&[gemm, Op::Opaque("clamp"), ACTIVATE]);
        unfused(&[gemm, QKV_GEMM, ACTIVATE]);
        unfused(&[gemm, Op::Activate(ATTENDED, Activation::Gelu)]);
        unfused(&[gemm, Op::Activate(View { rows: 0, ..INNER }, Activation::Gelu)]);
        unfused(&[ACTIVATE]);
    }

    #[test]
    fn a_gemm_whose_kernels_cannot_is_launched_at_once() {
        unfused(&[Op::Gemm(up(|gemm| gemm.fits = Fits::default())), ACTIVATE]);
    }

    #[test]
    fn the_norm_before_it_may_be_ended_by_it() {
        let gemm = up(|_| ());
        let Op::Gemm(ended) = before(Op::Gemm(gemm), Some(SPLIT)) else { unreachable!("a GEMM") };
        let launched = fused(&[O_GEMM, ADD_NORM, Op::Gemm(gemm), ACTIVATE]);
        assert_eq!(launched[..2], [add_norm_gemm(O_GEMM), Op::ActivatedGemm(ended, Activation::Gelu)]);
    }
}
