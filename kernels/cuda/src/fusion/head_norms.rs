//! Norms of heads that wait for the rotation that follows them, so that one kernel does both.

use crate::layers::norm;
use kernels::ops::{Act, Heads};

/// A norm of `heads` heads of `dim` columns, the first from `first_col` on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadNorm {
    pub(crate) x: Act,
    pub(crate) first_col: usize,
    pub(crate) heads: usize,
    pub(crate) dim: usize,
    pub(crate) params: norm::Params,
}

/// `struct HeadNorms` of kernels/cuda/csrc/attention/rope_and_cache.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct QkNorms {
    q: norm::Params,
    k: norm::Params,
}

/// Up to two norms in one buffer, which whoever next looks at a buffer must do first.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Waiting {
    first: Option<HeadNorm>,
    second: Option<HeadNorm>,
}

impl Waiting {
    /// Whether another norm can wait behind what does.
    pub(crate) fn has_room(&self, x: Act) -> bool {
        self.second.is_none() && self.first.is_none_or(|first| first.x == x)
    }

    pub(crate) fn push(&mut self, norm: HeadNorm) {
        debug_assert!(self.has_room(norm.x));
        let slot = if self.first.is_none() { &mut self.first } else { &mut self.second };
        *slot = Some(norm);
    }

    /// All, in order; none waits any more.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = HeadNorm> + use<> {
        let Self { first, second } = std::mem::take(self);
        first.into_iter().chain(second)
    }

    /// What waits, if it is a norm of all queries and one of all keys of a `qkv` with these heads.
    pub(crate) fn of(&self, qkv: Act, heads: Heads) -> Option<QkNorms> {
        let (q, k) = self.first.zip(self.second)?;
        let covers = |norm: &HeadNorm, first_col: usize, count: usize| {
            (norm.x, norm.first_col, norm.heads, norm.dim) == (qkv, first_col, count, heads.dim)
        };
        let both = covers(&q, 0, heads.q) && covers(&k, heads.q * heads.dim, heads.kv);
        both.then_some(QkNorms { q: q.params, k: k.params })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADS: Heads = Heads { q: 4, kv: 2, dim: 64, v_dim: 64 };
    const PARAMS: norm::Params = norm::Params { weight: 0, bias: 0, eps: 1e-6, subtract_mean: 0 };

    fn norm(x: u32, first_col: usize, heads: usize) -> HeadNorm {
        HeadNorm { x: Act(x), first_col, heads, dim: 64, params: PARAMS }
    }

    #[test]
    fn only_norms_of_all_queries_and_keys_are_done_with_the_rotation() {
        let waiting = |norms: &[HeadNorm]| {
            let mut waiting = Waiting::default();
            norms.iter().for_each(|norm| waiting.push(*norm));
            waiting
        };
        assert!(waiting(&[norm(1, 0, 4), norm(1, 256, 2)]).of(Act(1), HEADS).is_some());
        for norms in [&[norm(1, 0, 4)][..], &[norm(1, 256, 2), norm(1, 0, 4)], &[norm(1, 0, 4), norm(1, 256, 1)]] {
            assert!(waiting(norms).of(Act(1), HEADS).is_none(), "{norms:?}");
        }
        assert!(waiting(&[norm(1, 0, 4), norm(1, 256, 2)]).of(Act(2), HEADS).is_none());
    }

    #[test]
    fn two_norms_of_one_buffer_wait_and_are_taken_in_order() {
        let mut waiting = Waiting::default();
        waiting.push(norm(1, 0, 4));
        assert!(waiting.has_room(Act(1)) && !waiting.has_room(Act(2)));
        waiting.push(norm(1, 256, 2));
        assert!(!waiting.has_room(Act(1)));
        let taken: Vec<usize> = waiting.take().map(|norm| norm.first_col).collect();
        assert_eq!(taken, [0, 256]);
        assert_eq!(waiting.take().count(), 0);
    }
}
