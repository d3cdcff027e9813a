//! The selective scan of state-space models: a row after the other, vectors along what a channel remembers.

use crate::cpu::recurrent::state::States;
use crate::cpu::runtime::activations::{Columns, View};
use crate::cpu::runtime::batch::{Batch, Sequence};
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::{Kernel, Simd, math, vectorize};
use crate::ops;

/// Channels a task: its states stay in the first-level cache.
const CHANNELS: usize = 64;

/// A call with everything looked up.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) scan: ops::Scan,
    pub(crate) x: Columns,
    pub(crate) dt: Columns,
    pub(crate) b: Columns,
    pub(crate) c: Columns,
    pub(crate) decay: &'a [f32],
    pub(crate) skip: &'a [f32],
    pub(crate) dt_bias: Option<&'a [f32]>,
    pub(crate) states: &'a States,
    pub(crate) batch: &'a Batch,
    pub(crate) out: View,
}

impl Call<'_> {
    fn check(&self) {
        let ops::Scan { heads, head_dim, groups, state_dim, .. } = self.scan;
        let rows = self.batch.rows();
        let lengths = [self.decay.len(), self.skip.len()];
        self.scan.check(lengths, self.dt_bias.map(<[f32]>::len), self.states.len);
        self.x.check(rows, heads * head_dim);
        self.dt.check(rows, heads);
        self.b.check(rows, groups * state_dim);
        self.c.check(rows, groups * state_dim);
        self.states.check(self.batch);
    }
}

/// See [`crate::ops::Scan`].
pub(crate) fn selective_scan(isa: Isa, pool: &mut Pool, call: Call<'_>) {
    call.check();
    let ops::Scan { heads, head_dim, state_dim, .. } = call.scan;
    let each = (CHANNELS / head_dim.max(1)).max(1);
    let work = call.batch.rows() * heads * head_dim * state_dim * 4;
    call.batch.each_part(pool, heads.div_ceil(each), work, |sequence, block| {
        let first = block * each;
        vectorize(isa, Heads { call, sequence, first, count: each.min(heads - first) });
    });
}

/// Some heads of one sequence.
struct Heads<'a> {
    call: Call<'a>,
    sequence: &'a Sequence,
    first: usize,
    count: usize,
}

impl Kernel for Heads<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let ops::Scan { head_dim, state_dim, .. } = self.call.scan;
        let size = head_dim * state_dim;
        let (states, first, count) = (self.call.states, self.first * size, self.count * size);
        let mut wide = Vec::new();
        // SAFETY: a task has these heads of its sequence to itself.
        let part = unsafe { states.open(self.sequence, first, count, &mut wide) };
        self.walk::<S>(part, size);
        // SAFETY: as above.
        unsafe { states.close(self.sequence, first, part) };
    }
}

impl Heads<'_> {
    /// All rows in order; a head's state has `size` values.
    #[inline(always)]
    fn walk<S: Simd>(&self, states: &mut [f32], size: usize) {
        let mut steps = [0.0_f32; CHANNELS];
        for row in self.sequence.rows() {
            self.steps::<S>(row, &mut steps);
            for (offset, state) in states.chunks_exact_mut(size).enumerate() {
                self.head::<S>(row, self.first + offset, steps[offset], state);
            }
        }
    }

    /// `dt` of the heads in one row.
    #[inline(always)]
    fn steps<S: Simd>(&self, row: usize, steps: &mut [f32; CHANNELS]) {
        let (low, high) = self.call.scan.dt_limit;
        let mut at = 0;
        while at < self.count {
            let lanes = S::N.min(self.count - at);
            // SAFETY: `lanes` heads are left in the row, the bias and the array (at most CHANNELS heads a task).
            unsafe {
                let mut dt = S::load_up_to(self.call.dt.at(row, self.first + at), lanes);
                if let Some(bias) = self.call.dt_bias {
                    dt = dt.add(S::load_up_to(bias.as_ptr().add(self.first + at), lanes));
                }
                let dt = S::splat(low).max(S::splat(high).min(math::softplus(dt)));
                dt.store_up_to(steps.as_mut_ptr().add(at), lanes);
            }
            at += lanes;
        }
    }

    /// One head in one row.
    #[inline(always)]
    fn head<S: Simd>(&self, row: usize, head: usize, dt: f32, state: &mut [f32]) {
        let Call { scan, x, b, c, decay, skip, out, .. } = self.call;
        let ops::Scan { heads, head_dim, groups, state_dim, .. } = scan;
        let first = head / (heads / groups) * state_dim;
        let each_value = decay.len() != heads;
        let shared = if each_value { S::splat(0.0) } else { math::exp(S::splat(dt * decay[head])) };
        for channel in 0..head_dim {
            // SAFETY: the columns were checked; the state holds `head_dim * state_dim` values, `decay` as many rows of
            // `state_dim` as there are heads where it is read; a task has its heads' outputs to itself.
            unsafe {
                let (b, c) = (b.at(row, first), c.at(row, first));
                let x = *x.at(row, head * head_dim + channel);
                let input = S::splat(dt * x);
                let state = state.as_mut_ptr().add(channel * state_dim);
                let mut sum = S::splat(0.0);
                let mut at = 0;
                while at < state_dim {
                    let lanes = S::N.min(state_dim - at);
                    let factor = if each_value {
                        let rate = S::load_up_to(decay.as_ptr().add(head * state_dim + at), lanes);
                        math::exp(rate.mul(S::splat(dt)))
                    } else {
                        shared
                    };
                    let fed = input.mul(S::load_up_to(b.add(at), lanes));
                    let now = S::load_up_to(state.add(at).cast_const(), lanes).fma(factor, fed);
                    now.store_up_to(state.add(at), lanes);
                    sum = now.fma(S::load_up_to(c.add(at), lanes), sum);
                    at += lanes;
                }
                *out.data.at(row * out.width + head * head_dim + channel) = sum.sum() + skip[head] * x;
            }
        }
    }
}
