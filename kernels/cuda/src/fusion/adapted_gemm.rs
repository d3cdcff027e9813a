//! Rule: a GEMM, what adapters add to it, and the gate of both are launched together, so that adapters' first halves
//! come before the GEMM and their second halves gate.

use super::op::{Gated, Gemm, Op};
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;
use crate::layers::lora::Lora;
use kernels::ops::{Activation, Epilogue};

pub(super) fn rule(list: &mut Vec<Op>, split: Option<&SplitNorm>) -> Verdict {
    match *list.as_slice() {
        [Op::Gemm(gemm)] if gemm.adapted => Verdict::Wait,
        [Op::Gemm(gemm), Op::Lora(lora)] if is_of(&lora, &gemm) && lora.gates => Verdict::Wait,
        [Op::Gemm(gemm), Op::Lora(lora), Op::Gated(gated), ..]
            if is_of(&lora, &gemm) && lora.gates && fits(&gated, &gemm, split) =>
        {
            rewrite(list, 3, Op::AdaptedGatedGemm(gemm, lora, gated))
        }
        [Op::Gemm(gemm), Op::Lora(lora), ..] if is_of(&lora, &gemm) => rewrite(list, 2, Op::AdaptedGemm(gemm, lora)),
        _ => Verdict::No,
    }
}

/// Whether adapters of the GEMM's input add to its output.
fn is_of(lora: &Lora, gemm: &Gemm) -> bool {
    (lora.x, lora.out) == (gemm.x, gemm.out)
}

/// Whether a gate of the GEMM's outputs can be that of its adapters' kernel.
fn fits(gated: &Gated, gemm: &Gemm, split: Option<&SplitNorm>) -> bool {
    gated.gate_up == gemm.out
        && gated.activation == Activation::Silu
        && gated.out.dtype == gemm.out.dtype
        && gemm.epilogue == Epilogue::Store
        // A norm is yet to read or write there.
        && !split.is_some_and(|split| split.is_written_by(gated.out.ptr))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::pass::tests::{fused, unfused};
    use crate::fusion::samples::*;
    use crate::runtime::activations::View;

    fn adapted(op: Op) -> Gemm {
        let Op::Gemm(gemm) = op else { unreachable!("a GEMM") };
        Gemm { adapted: true, ..gemm }
    }

    fn lora(x: View, out: View, gates: bool) -> Lora {
        Lora { x, site: 0, out, gates }
    }

    #[test]
    fn a_gemm_and_its_adapters_are_one() {
        let (qkv, lora) = (adapted(QKV_GEMM), lora(NORMED, QKV, false));
        assert_eq!(fused(&[Op::Gemm(qkv), Op::Lora(lora), ROPE]), [Op::AdaptedGemm(qkv, lora), ROPE]);
        assert_eq!(fused(&[Op::Gemm(qkv), Op::Lora(lora)]), [Op::AdaptedGemm(qkv, lora)]);
    }

    #[test]
    fn their_gate_joins_them() {
        let (gemm, lora) = (adapted(GATE_UP_GEMM), lora(NORMED, GATE_UP, true));
        let Op::Gated(gated) = GATE else { unreachable!("a gate") };
        let ops = [Op::Gemm(gemm), Op::Lora(lora), GATE];
        assert_eq!(fused(&ops), [Op::AdaptedGatedGemm(gemm, lora, gated)]);
        let apart = Lora { gates: false, ..lora };
        assert_eq!(fused(&[ops[0], Op::Lora(apart), GATE]), [Op::AdaptedGemm(gemm, apart), GATE]);
        let gelu = Op::Gated(Gated { activation: Activation::Gelu, ..gated });
        assert_eq!(fused(&[ops[0], ops[1], gelu]), [Op::AdaptedGemm(gemm, lora), gelu]);
        // Where the list ends, nothing is to be gated.
        unfused(&ops[..2]);
    }

    #[test]
    fn adapters_of_something_else_stay_apart() {
        let gemm = Op::Gemm(adapted(QKV_GEMM));
        unfused(&[gemm, Op::Lora(lora(NORMED, GATE_UP, false))]);
        unfused(&[gemm, Op::Opaque("saved_matmul"), Op::Lora(lora(NORMED, QKV, false))]);
    }
}
