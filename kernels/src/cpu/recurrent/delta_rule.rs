//! The gated delta rule: a row after the other, vectors along a value head.

use crate::cpu::recurrent::state::States;
use crate::cpu::runtime::activations::{Columns, View};
use crate::cpu::runtime::batch::{Batch, Sequence};
use crate::cpu::runtime::isa::Isa;
use crate::cpu::runtime::pool::Pool;
use crate::cpu::simd::{Kernel, Simd, math, vectorize};
use crate::ops;

/// Added to the square of a query's or key's length.
const EPS: f32 = 1e-6;
/// Vectors of a value head that are worked on side by side, to hide the latency of sums.
const SIDE_BY_SIDE: usize = 4;

/// A call with everything looked up.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    pub(crate) rule: ops::DeltaRule,
    pub(crate) qkv: View,
    pub(crate) beta: Columns,
    pub(crate) dt: Columns,
    pub(crate) rate: &'a [f32],
    pub(crate) dt_bias: &'a [f32],
    pub(crate) states: &'a States,
    pub(crate) batch: &'a Batch,
    pub(crate) out: View,
}

impl Call<'_> {
    fn check(&self) {
        let rows = self.batch.rows();
        self.rule.check(self.qkv.width, [self.rate.len(), self.dt_bias.len()], self.states.len);
        assert_eq!(self.qkv.rows, rows, "rows of the delta rule");
        self.beta.check(rows, self.rule.value_heads);
        self.dt.check(rows, self.rule.value_heads);
        self.states.check(self.batch);
    }
}

/// See [`crate::ops::DeltaRule`].
pub(crate) fn delta_rule(isa: Isa, pool: &mut Pool, call: Call<'_>) {
    call.check();
    let ops::DeltaRule { value_heads, key_dim, value_dim, .. } = call.rule;
    let work = call.batch.rows() * value_heads * key_dim * value_dim * 4;
    call.batch.each_part(pool, value_heads, work, |sequence, head| vectorize(isa, Head { call, sequence, head }));
}

/// A value head of one sequence.
struct Head<'a> {
    call: Call<'a>,
    sequence: &'a Sequence,
    head: usize,
}

/// What one row brings to a head.
struct Row {
    /// Times a query, so that its length is `1 / sqrt(key_dim)`; times a key, so that its length is 1.
    query_scale: f32,
    key_scale: f32,
    decay: f32,
    beta: f32,
    query: *const f32,
    key: *const f32,
    value: *const f32,
    out: *mut f32,
}

impl Kernel for Head<'_> {
    #[inline(always)]
    fn run<S: Simd>(self) {
        let ops::DeltaRule { key_dim, value_dim, .. } = self.call.rule;
        let size = key_dim * value_dim;
        let (states, first) = (self.call.states, self.head * size);
        let mut wide = Vec::new();
        // SAFETY: a task has this head of its sequence to itself.
        let state = unsafe { states.open(self.sequence, first, size, &mut wide) };
        self.walk::<S>(state);
        // SAFETY: as above.
        unsafe { states.close(self.sequence, first, state) };
    }
}

impl Head<'_> {
    /// All rows in order.
    #[inline(always)]
    fn walk<S: Simd>(&self, state: &mut [f32]) {
        let ops::DeltaRule { value_dim, .. } = self.call.rule;
        for row in self.sequence.rows() {
            let row = self.row::<S>(row);
            let mut col = 0;
            while col < value_dim {
                // SAFETY: `cols` columns are left in the head's values, outputs and every row of its state.
                unsafe {
                    if col + SIDE_BY_SIDE * S::N <= value_dim {
                        self.columns::<S, SIDE_BY_SIDE>(&row, state.as_mut_ptr().add(col), col, S::N);
                        col += SIDE_BY_SIDE * S::N;
                    } else {
                        let lanes = S::N.min(value_dim - col);
                        self.columns::<S, 1>(&row, state.as_mut_ptr().add(col), col, lanes);
                        col += lanes;
                    }
                }
            }
        }
    }

    #[inline(always)]
    fn row<S: Simd>(&self, row: usize) -> Row {
        let Call { rule, qkv, beta, dt, rate, dt_bias, out, .. } = self.call;
        let ops::DeltaRule { key_heads, value_heads, key_dim, value_dim, .. } = rule;
        let key_head = self.head / (value_heads / key_heads);
        // SAFETY: shapes were checked, and a task has its head's outputs to itself.
        unsafe {
            let query = qkv.data.at(row * qkv.width + key_head * key_dim).cast_const();
            let key = query.add(key_heads * key_dim);
            let value = qkv.data.at(row * qkv.width + 2 * key_heads * key_dim + self.head * value_dim).cast_const();
            let step = math::softplus(S::splat(*dt.at(row, self.head) + dt_bias[self.head]));
            let decay = math::exp(step.mul(S::splat(rate[self.head])));
            let beta = math::sigmoid(S::splat(*beta.at(row, self.head)));
            Row {
                query_scale: 1.0 / ((square::<S>(query, key_dim) + EPS).sqrt() * (key_dim as f32).sqrt()),
                key_scale: 1.0 / (square::<S>(key, key_dim) + EPS).sqrt(),
                decay: decay.largest(),
                beta: beta.largest(),
                query,
                key,
                value,
                out: out.data.at(row * out.width + self.head * value_dim),
            }
        }
    }

    /// `V` vectors of the head's columns from `col` on, `lanes` of each; `state` points to the first row's.
    ///
    /// # Safety
    /// So many columns are left in the values, the outputs and each row of the state.
    #[inline(always)]
    unsafe fn columns<S: Simd, const V: usize>(&self, row: &Row, state: *mut f32, col: usize, lanes: usize) {
        let ops::DeltaRule { key_dim, value_dim, .. } = self.call.rule;
        let decay = S::splat(row.decay);
        let mut recalled = [S::splat(0.0); V];
        // SAFETY: the caller's promise; keys and queries have `key_dim` elements.
        unsafe {
            for k in 0..key_dim {
                let key = S::splat(*row.key.add(k) * row.key_scale);
                for (v, recalled) in recalled.iter_mut().enumerate() {
                    let at = state.add(k * value_dim + v * S::N);
                    let faded = S::load_up_to(at.cast_const(), lanes).mul(decay);
                    faded.store_up_to(at, lanes);
                    *recalled = faded.fma(key, *recalled);
                }
            }
            let mut change = recalled;
            for (v, change) in change.iter_mut().enumerate() {
                let value = S::load_up_to(row.value.add(col + v * S::N), lanes);
                *change = value.sub(*change).mul(S::splat(row.beta));
            }
            let mut sums = [S::splat(0.0); V];
            for k in 0..key_dim {
                let key = S::splat(*row.key.add(k) * row.key_scale);
                let query = S::splat(*row.query.add(k) * row.query_scale);
                for (v, sum) in sums.iter_mut().enumerate() {
                    let at = state.add(k * value_dim + v * S::N);
                    let now = change[v].fma(key, S::load_up_to(at.cast_const(), lanes));
                    now.store_up_to(at, lanes);
                    *sum = now.fma(query, *sum);
                }
            }
            for (v, sum) in sums.into_iter().enumerate() {
                sum.store_up_to(row.out.add(col + v * S::N), lanes);
            }
        }
    }
}

/// Sum of squares.
///
/// # Safety
/// `len` elements are readable.
#[inline(always)]
unsafe fn square<S: Simd>(x: *const f32, len: usize) -> f32 {
    let mut sum = S::splat(0.0);
    let mut at = 0;
    while at < len {
        let lanes = S::N.min(len - at);
        // SAFETY: `lanes` elements are left.
        let x = unsafe { S::load_up_to(x.add(at), lanes) };
        sum = x.fma(x, sum);
        at += lanes;
    }
    sum.sum()
}
