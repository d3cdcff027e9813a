//! Rule: a GEMM and the gate of its outputs are one kernel, which does not write what is gated.

use super::op::Op;
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;

pub(super) fn rule(list: &mut Vec<Op>, split: Option<&SplitNorm>) -> Verdict {
    match list.as_slice() {
        [Op::Gemm(gemm)] if gemm.fits.gate => Verdict::Wait,
        [Op::Gemm(gemm), Op::Gated(gated), ..] => {
            let same = gated.gate_up.ptr == gemm.out.ptr;
            // Blocks write what others still read, or a norm is yet to read or write.
            let aliased = gated.out.ptr == gemm.x.ptr || split.is_some_and(|split| split.is_written_by(gated.out.ptr));
            if gemm.fits.gate && same && !aliased {
                let fused = Op::GatedGemm(*gemm, *gated);
                rewrite(list, 2, fused)
            } else {
                Verdict::No
            }
        }
        _ => Verdict::No,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::op::{Fits, Gated, Gemm};
    use crate::fusion::pass::tests::{fused, unfused};
    use crate::fusion::samples::*;
    use kernels::ops::Activation;

    fn gate(gate_up: crate::runtime::activations::View, out: crate::runtime::activations::View) -> Op {
        Op::Gated(Gated { gate_up, activation: Activation::Silu, out })
    }

    #[test]
    fn a_gemm_and_its_gate_are_one() {
        assert_eq!(fused(&[GATE_UP_GEMM, GATE]), [gated_gemm(GATE_UP_GEMM)]);
    }

    #[test]
    fn what_comes_between_keeps_them_apart() {
        unfused(&[GATE_UP_GEMM, Op::Opaque("clamp"), GATE]);
        unfused(&[GATE_UP_GEMM, QKV_GEMM, GATE]);
        unfused(&[GATE_UP_GEMM, ATTENTION, GATE]);
    }

    #[test]
    fn a_gate_of_something_else_is_its_own_kernel() {
        unfused(&[GATE_UP_GEMM, gate(QKV, INNER)]);
        unfused(&[GATE]);
    }

    #[test]
    fn a_gate_that_overwrites_the_gemms_input_is_its_own_kernel() {
        unfused(&[GATE_UP_GEMM, gate(GATE_UP, NORMED)]);
    }

    #[test]
    fn a_gate_that_overwrites_what_a_split_norm_is_made_of_comes_after_all_of_it() {
        let Op::Gemm(gemm) = GATE_UP_GEMM else { unreachable!("a GEMM") };
        let of_inner = Op::Gemm(Gemm { x: INNER, ..gemm });
        let launched = fused(&[O_GEMM, ADD_NORM, of_inner, gate(GATE_UP, NORMED)]);
        assert_eq!(launched, [add_norm_gemm(O_GEMM), of_inner, Op::Norm(SPLIT.whole()), gate(GATE_UP, NORMED)]);
    }

    #[test]
    fn a_gemm_whose_kernels_cannot_gate_is_launched_at_once() {
        let Op::Gemm(gemm) = GATE_UP_GEMM else { unreachable!("a GEMM") };
        unfused(&[Op::Gemm(Gemm { fits: Fits::default(), ..gemm }), GATE]);
    }
}
