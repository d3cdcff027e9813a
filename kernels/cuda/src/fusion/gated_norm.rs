//! Rule: a gate and the norm of all that it gates are one kernel, which does not write what is normed.

use super::op::{ColumnGate, HeadNorm, Op};
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;

pub(super) fn rule(list: &mut Vec<Op>, _: Option<&SplitNorm>) -> Verdict {
    match *list.as_slice() {
        [Op::Gate(_)] => Verdict::Wait,
        [Op::Gate(gate), Op::HeadNorm(norm), ..] if is_all_of(&norm, &gate) => {
            rewrite(list, 2, Op::GatedNorm(gate, norm))
        }
        _ => Verdict::No,
    }
}

fn is_all_of(norm: &HeadNorm, gate: &ColumnGate) -> bool {
    norm.x.ptr == gate.x.ptr && norm.first_col == 0 && norm.heads * norm.dim == gate.x.width
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::pass::tests::{fused, unfused};
    use crate::fusion::samples::*;
    use kernels::ops::Activation;

    const COLUMNS: ColumnGate =
        ColumnGate { x: INNER, first: GATE_UP.ptr, width: GATE_UP.width, activation: Activation::Silu };

    fn norm(heads: usize) -> HeadNorm {
        HeadNorm { x: INNER, first_col: 0, heads, dim: INNER.width / 4, params: NORM, stride: 0 }
    }

    #[test]
    fn a_gate_and_the_norm_of_it_are_one() {
        let own = HeadNorm { stride: INNER.width / 4, ..norm(4) };
        for norm in [norm(4), own] {
            assert_eq!(fused(&[Op::Gate(COLUMNS), Op::HeadNorm(norm)]), [Op::GatedNorm(COLUMNS, norm)]);
        }
    }

    #[test]
    fn a_norm_of_some_of_it_or_of_something_else_is_its_own_kernel() {
        unfused(&[Op::Gate(COLUMNS), Op::HeadNorm(norm(3))]);
        unfused(&[Op::Gate(COLUMNS), Op::HeadNorm(HeadNorm { first_col: 1, ..norm(4) })]);
        unfused(&[Op::Gate(COLUMNS), Q_NORM]);
    }

    #[test]
    fn what_comes_between_keeps_them_apart() {
        unfused(&[Op::Gate(COLUMNS), Op::Opaque("scale"), Op::HeadNorm(norm(4))]);
        unfused(&[Op::Gate(COLUMNS), Op::Gate(COLUMNS)]);
    }
}
