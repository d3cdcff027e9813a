//! Rule: a norm of all queries and one of all keys are done by the rotation that follows them.

use super::op::{HeadNorm, Op, Rope};
use super::pass::{Verdict, rewrite};
use super::split_norm::SplitNorm;
use crate::jit::layouts::twin;
use crate::layers::norm;

/// `struct HeadNorms` of kernels/cuda/csrc/include/rope.cuh.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct QkNorms {
    pub(crate) q: norm::Params,
    pub(crate) k: norm::Params,
}

twin!(QkNorms = "HeadNorms" { q, k });

pub(super) fn rule(list: &mut Vec<Op>, _: Option<&SplitNorm>) -> Verdict {
    match list.as_slice() {
        [Op::HeadNorm(_)] => Verdict::Wait,
        [Op::HeadNorm(q), Op::HeadNorm(k)] if q.x.ptr == k.x.ptr => Verdict::Wait,
        [Op::HeadNorm(q), Op::HeadNorm(k), Op::Rope(rope), ..] if rope.takes_norms && are_of(q, k, rope) => {
            let norms = Some(QkNorms { q: q.params, k: k.params });
            let fused = Op::Rope(Rope { norms, ..*rope });
            rewrite(list, 3, fused)
        }
        _ => Verdict::No,
    }
}

/// Whether these norm all queries and all keys of what is rotated.
fn are_of(q: &HeadNorm, k: &HeadNorm, rope: &Rope) -> bool {
    let heads = rope.heads;
    let covers = |norm: &HeadNorm, first_col: usize, count: usize| {
        let covered = (norm.x.ptr, norm.first_col, norm.heads, norm.dim) == (rope.qkv.ptr, first_col, count, heads.dim);
        covered && norm.stride == 0
    };
    covers(q, 0, heads.q) && covers(k, heads.q * heads.dim, heads.kv)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fusion::pass::tests::{fused, unfused};
    use crate::fusion::samples::*;

    fn changed(op: Op, change: impl Fn(&mut HeadNorm)) -> Op {
        let Op::HeadNorm(mut norm) = op else { unreachable!("a norm of heads") };
        change(&mut norm);
        Op::HeadNorm(norm)
    }

    #[test]
    fn norms_of_all_queries_and_keys_are_done_with_the_rotation() {
        assert_eq!(fused(&[Q_NORM, K_NORM, ROPE]), [normed_rope()]);
    }

    #[test]
    fn norms_of_some_heads_or_in_another_order_are_not() {
        unfused(&[Q_NORM, ROPE]);
        unfused(&[K_NORM, Q_NORM, ROPE]);
        unfused(&[Q_NORM, changed(K_NORM, |norm| norm.heads -= 1), ROPE]);
        unfused(&[Q_NORM, changed(K_NORM, |norm| norm.dim /= 2), ROPE]);
        unfused(&[Q_NORM, changed(K_NORM, |norm| norm.stride = norm.dim), ROPE]);
        unfused(&[Q_NORM, K_NORM, Q_NORM]);
    }

    #[test]
    fn norms_of_another_buffer_are_not() {
        unfused(&[changed(Q_NORM, |norm| norm.x = OTHER), changed(K_NORM, |norm| norm.x = OTHER), ROPE]);
        unfused(&[Q_NORM, changed(K_NORM, |norm| norm.x = OTHER), ROPE]);
    }

    #[test]
    fn what_comes_between_keeps_them_apart() {
        unfused(&[Q_NORM, K_NORM, Op::Opaque("scale"), ROPE]);
        unfused(&[Q_NORM, Op::Opaque("scale"), K_NORM, ROPE]);
        unfused(&[Q_NORM, K_NORM, ATTENTION, ROPE]);
    }

    #[test]
    fn a_rotation_whose_kernel_cannot_norm_does_not() {
        let Op::Rope(rope) = ROPE else { unreachable!("a rotation") };
        unfused(&[Q_NORM, K_NORM, Op::Rope(Rope { takes_norms: false, ..rope })]);
    }
}
