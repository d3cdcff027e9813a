//! The pass: the end of the list that rules may still rewrite, and what leaves it.

use super::op::{Op, Selected};
use super::split_norm::{self, SplitNorm};
use super::{
    activated_gemm, adapted_gemm, add_norm, all_reduce_add_norm, gated_gemm, gated_norm, head_norms, norm_add_norm,
    prepared_rows, rounded_part, two_norms,
};
use cudarc::driver::sys::CUdeviceptr;

/// What a rule says of the head of the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// It is none of its business.
    No,
    /// What comes next decides.
    Wait,
    /// It is one operation now.
    Rewritten,
}

/// Puts one operation in the place of the first `count`.
pub(super) fn rewrite(list: &mut Vec<Op>, count: usize, to: Op) -> Verdict {
    list.drain(1..count);
    list[0] = to;
    Verdict::Rewritten
}

/// Looks at the head of the list, and at the norm that is split.
type Rule = fn(&mut Vec<Op>, Option<&SplitNorm>) -> Verdict;

/// All rules. The last one may go on with what another one has made.
const RULES: [Rule; 11] = [
    activated_gemm::rule,
    adapted_gemm::rule,
    add_norm::rule,
    all_reduce_add_norm::rule,
    gated_gemm::rule,
    gated_norm::rule,
    head_norms::rule,
    norm_add_norm::rule,
    rounded_part::rule,
    two_norms::rule,
    prepared_rows::rule,
];

/// Whether more operations may follow those in the list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lookahead {
    Open,
    /// Those in the list wait no longer.
    Closed,
}

#[derive(Debug, Default)]
pub(crate) struct Pass {
    /// Appended, and not launched yet: a few.
    list: Vec<Op>,
    /// The norm whose second half is still to be done.
    split: Option<SplitNorm>,
    /// Rows that operations of the list were given.
    rows: Vec<u32>,
    /// All operations of a step that is captured to become one kernel, as they were appended.
    step: Option<Vec<Op>>,
}

impl Pass {
    pub(crate) fn push(&mut self, op: Op) {
        if let Some(step) = &mut self.step {
            step.push(op);
        }
        self.list.push(op);
    }

    /// What is to be launched next; none where the list is empty, or waits for what follows.
    pub(crate) fn next(&mut self, lookahead: Lookahead) -> Option<Op> {
        split_norm::rewrite(&mut self.list, &mut self.split);
        let verdict = RULES.iter().map(|rule| rule(&mut self.list, self.split.as_ref()));
        let verdict = verdict.fold(Verdict::No, |all, one| if one == Verdict::No { all } else { one });
        if self.list.is_empty() || (verdict == Verdict::Wait && lookahead == Lookahead::Open) {
            return None;
        }
        let op = self.list.remove(0);
        split_norm::follow(&op, &mut self.split);
        Some(op)
    }

    /// The split norm, to be done in full where somebody is about to look at a buffer, or at any; the list is empty.
    pub(crate) fn end_split(&mut self, read: Option<CUdeviceptr>) -> Option<Op> {
        debug_assert!(self.list.is_empty(), "operations before the one that reads");
        let split = self.split.take_if(|split| read.is_none_or(|read| split.concerns(read, read)))?;
        Some(Op::Norm(split.whole()))
    }

    /// What was launched did the norm that was to be split as a whole.
    pub(crate) fn norm_is_whole(&mut self) {
        self.split = None;
    }

    /// Keeps rows until all operations of the list are launched.
    pub(crate) fn keep_rows(&mut self, rows: &[u32]) -> Selected {
        if self.list.is_empty() {
            self.rows.clear();
        }
        let first = self.rows.len();
        self.rows.extend_from_slice(rows);
        Selected { first, count: rows.len() }
    }

    pub(crate) fn rows(&self, selected: Selected) -> &[u32] {
        &self.rows[selected.first..][..selected.count]
    }

    /// A step begins; `kept`: its operations are kept for [`Self::take_step`].
    pub(crate) fn begin_step(&mut self, kept: Kept) {
        self.step = (kept == Kept::Step).then(Vec::new);
    }

    /// All operations of the step, if they were kept.
    pub(crate) fn take_step(&mut self) -> Option<Vec<Op>> {
        self.step.take()
    }
}

/// Whether the operations of a step are kept until its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    Step,
    Nothing,
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::fusion::op::{Fits, Gemm};
    use crate::fusion::samples::*;
    use kernels::ops::Epilogue;

    /// What is launched of a list that ends there.
    pub(crate) fn fused(ops: &[Op]) -> Vec<Op> {
        let mut pass = Pass::default();
        let mut launched = Vec::new();
        for op in ops {
            pass.push(*op);
            launched.extend(std::iter::from_fn(|| pass.next(Lookahead::Open)));
        }
        launched.extend(std::iter::from_fn(|| pass.next(Lookahead::Closed)));
        launched
    }

    /// Fails unless operations are launched as they are.
    pub(crate) fn unfused(ops: &[Op]) {
        assert_eq!(fused(ops), ops);
    }

    #[test]
    fn what_no_rule_knows_is_launched_at_once_after_all_before_it() {
        let mut pass = Pass::default();
        pass.push(GATE_UP_GEMM);
        assert_eq!(pass.next(Lookahead::Open), None);
        pass.push(Op::Opaque("scale"));
        assert_eq!(pass.next(Lookahead::Open), Some(GATE_UP_GEMM));
        assert_eq!(pass.next(Lookahead::Open), Some(Op::Opaque("scale")));
        assert_eq!(pass.next(Lookahead::Open), None);
    }

    #[test]
    fn a_gemm_that_nothing_can_join_waits_for_nothing() {
        let Op::Gemm(gemm) = GATE_UP_GEMM else { unreachable!("a GEMM") };
        let fits = Fits { end_norm: true, ..Fits::default() };
        for gemm in [Gemm { fits, ..gemm }, Gemm { epilogue: Epilogue::Accumulate, fits, ..gemm }] {
            let mut pass = Pass::default();
            pass.push(Op::Gemm(gemm));
            assert_eq!(pass.next(Lookahead::Open), Some(Op::Gemm(gemm)));
        }
    }

    #[test]
    fn the_end_of_a_list_lets_go_of_what_waits() {
        let mut pass = Pass::default();
        pass.push(Q_NORM);
        pass.push(K_NORM);
        assert_eq!(pass.next(Lookahead::Open), None);
        let rest: Vec<Op> = std::iter::from_fn(|| pass.next(Lookahead::Closed)).collect();
        assert_eq!(rest, [Q_NORM, K_NORM]);
    }

    #[test]
    fn a_kept_step_has_its_operations_as_they_were_appended() {
        let mut pass = Pass::default();
        pass.begin_step(Kept::Step);
        for op in [GATE_UP_GEMM, GATE] {
            pass.push(op);
            while pass.next(Lookahead::Open).is_some() {}
        }
        assert_eq!(pass.take_step().expect("kept"), [GATE_UP_GEMM, GATE]);
        pass.begin_step(Kept::Nothing);
        pass.push(GATE);
        assert_eq!(pass.take_step(), None);
    }

    #[test]
    fn rows_are_kept_as_long_as_operations_wait() {
        let mut pass = Pass::default();
        let first = pass.keep_rows(&[3, 5]);
        pass.push(GATE_UP_GEMM);
        let second = pass.keep_rows(&[7]);
        assert_eq!((pass.rows(first), pass.rows(second)), (&[3, 5][..], &[7][..]));
        while pass.next(Lookahead::Closed).is_some() {}
        assert_eq!(pass.keep_rows(&[1]).first, 0);
    }

    /// A layer of a transformer with q/k norms, as it is appended and as it is launched.
    #[test]
    fn a_layer_is_six_launches() {
        let layer =
            [QKV_GEMM, Q_NORM, K_NORM, ROPE, ATTENTION, O_GEMM, ADD_NORM, GATE_UP_GEMM, GATE, DOWN_GEMM, ADD_NORM];
        let ended = Some(SPLIT);
        let launched = [
            QKV_GEMM,
            normed_rope(),
            ATTENTION,
            add_norm_gemm(O_GEMM),
            gated_gemm(before(GATE_UP_GEMM, ended)),
            add_norm_gemm(DOWN_GEMM),
        ];
        assert_eq!(fused(&layer), launched);
        // The next layer's first GEMM ends the norm of the last.
        let second: Vec<Op> = std::iter::once(before(QKV_GEMM, ended)).chain(launched[1..].iter().copied()).collect();
        assert_eq!(fused(&layer.repeat(2))[6..], second);
    }
}
