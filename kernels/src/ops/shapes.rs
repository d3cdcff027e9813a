//! Which shapes belong together: what every backend checks before an operation, so that all refuse the same. A mismatch
//! is a bug above the backend and panics with both shapes.

use super::{Attention, Conv, DeltaRule, Epilogue, HeadColumns, Heads, KvShape, Rope, Routing, Scan};

/// A product of rows of `width` elements with a matrix `[outputs, inputs]` and a bias of `bias` elements.
pub fn check_product(width: usize, [outputs, inputs]: [usize; 2], bias: Option<usize>) {
    assert_eq!(width, inputs, "width of x, and input features of a [{outputs}, {inputs}] matrix");
    assert!(bias.is_none_or(|len| len == outputs), "bias of {bias:?} for {outputs} outputs");
}

/// Products of `rows` rows of `width` elements with the experts `[experts, outputs, inputs]` that `choices` (rows,
/// experts of each) name.
pub fn check_experts(
    [rows, width]: [usize; 2],
    [experts, outputs, inputs]: [usize; 3],
    bias: Option<usize>,
    [choosing, top_k]: [usize; 2],
) {
    assert_eq!(width, inputs, "width of x, and input features of experts");
    let pairs = choosing * top_k;
    assert!(rows == pairs || rows == choosing, "{rows} rows for {pairs} choices");
    assert!(bias.is_none_or(|len| len == experts * outputs), "biases of {experts} experts");
}

impl Epilogue {
    /// Only what is added to must have its rows already: a buffer for few rows may be stored to in a step of many.
    pub fn check_rows(self, rows: usize, before: impl FnOnce() -> usize) {
        if self == Self::Accumulate {
            assert_eq!(before(), rows, "rows added to, and rows to add");
        }
    }
}

impl HeadColumns {
    /// `heads` heads of `width` columns are inside rows of `row_width`.
    pub fn check_inside(self, heads: usize, width: usize, row_width: usize) {
        let end = self.first + heads.saturating_sub(1) * self.stride + width;
        assert!(end <= row_width, "{heads} heads of {width} columns, {self:?}, in rows of {row_width}");
    }

    /// Heads of `width` columns that are written do not overlap.
    pub fn check_apart(self, heads: usize, width: usize) {
        assert!(heads <= 1 || self.stride >= width, "heads of an output that overlap: {self:?}");
    }
}

impl KvShape {
    /// A cache that can be made.
    pub fn check(&self) {
        let Self { block_size, kv_heads, head_dim, v_head_dim, shared, .. } = *self;
        assert!(block_size > 0 && kv_heads > 0 && head_dim > 0 && v_head_dim > 0, "an empty cache: {self:?}");
        assert!(!shared || v_head_dim <= head_dim, "values as a part of keys: {self:?}");
    }

    /// Columns of a row `[q | k | v]` that goes into this cache, queries aside.
    pub fn row_width(&self) -> usize {
        self.kv_heads * (self.head_dim + if self.shared { 0 } else { self.v_head_dim })
    }

    /// `qkv` has a row `[q | k | v]` of these heads for each of the batch's rows.
    pub fn check_rows(&self, heads: Heads, [rows, width]: [usize; 2], batch_rows: usize) {
        let Heads { q, kv, dim, v_dim } = heads;
        assert!(kv > 0 && q.is_multiple_of(kv), "{q} query heads over {kv} kv heads");
        assert_eq!((self.kv_heads, self.head_dim, self.v_head_dim), (kv, dim, v_dim), "cache of {heads:?}");
        assert_eq!((rows, width), (batch_rows, q * dim + self.row_width()), "shape of qkv for {heads:?}");
    }

    /// A sequence's first `end` tokens have their blocks.
    pub fn check_blocks(&self, end: usize, blocks: usize) {
        assert!(end <= blocks * self.block_size, "{end} tokens in {blocks} blocks of {}", self.block_size);
    }

    /// Blocks to be copied are the pool's.
    pub fn check_copies(&self, from: &[u32], to: &[u32]) {
        assert_eq!(from.len(), to.len(), "blocks to copy from and to");
        let known = from.iter().chain(to).all(|&block| (block as usize) < self.num_blocks);
        assert!(known, "{from:?} to {to:?} of {}", self.num_blocks);
    }
}

impl Rope {
    /// `frequencies` is the length of [`Self::inv_freq`].
    pub fn check(&self, frequencies: usize, heads: Heads) {
        assert_eq!(frequencies * 2, self.rotary_dim, "twice the frequencies, and the rotary dimension");
        assert!(self.rotary_dim <= heads.dim, "rotary dimension {} of a head of {}", self.rotary_dim, heads.dim);
    }
}

impl Attention {
    /// The lengths of [`Self::sinks`] and [`Self::alibi`].
    pub fn check(&self, sinks: Option<usize>, alibi: Option<usize>) {
        let q = self.heads.q;
        assert!([sinks, alibi].into_iter().flatten().all(|len| len == q), "sinks or slopes of {q} heads");
    }

    /// The length of the table of [`Self::relative`].
    pub fn check_relative(&self, table: Option<usize>) {
        let expected = self.relative.map(|bias| self.heads.q * (2 * bias.reach + 1));
        assert_eq!(table, expected, "biases by distance of {} heads", self.heads.q);
    }
}

impl Routing {
    /// A choice among `experts`, into room for `top_k` of them a row.
    pub fn check(&self, experts: usize, top_k: usize, correction: Option<usize>) {
        assert_eq!(self.top_k, top_k, "experts a row, and room for them");
        assert!(correction.is_none_or(|len| len == experts), "corrections of {experts} experts");
        let eligible = self.groups.map_or(experts, |groups| {
            let (count, kept, best) = (groups.count, groups.kept, groups.best);
            let whole = count > 0 && kept <= count && experts.is_multiple_of(count);
            assert!(whole && best <= experts / count, "{groups:?} of {experts} experts");
            experts / count * kept
        });
        assert!(top_k <= eligible, "{top_k} experts a row of {eligible}");
    }
}

impl Conv {
    /// Most rows that a row sees.
    pub const MAX_KERNEL: usize = 8;

    /// The lengths of taps, bias and a slot's state.
    pub fn check(&self, taps: usize, bias: Option<usize>, state: usize) {
        let Self { channels, kernel, .. } = *self;
        assert!((2..=Self::MAX_KERNEL).contains(&kernel), "a convolution over {kernel} rows");
        assert_eq!(taps, kernel * channels, "taps of {channels} channels, {kernel} rows");
        assert!(bias.is_none_or(|len| len == channels), "bias of {channels} channels");
        assert_eq!(state, (kernel - 1) * channels, "state of {self:?}");
    }
}

impl Scan {
    /// The lengths of decay, skip, bias and a slot's state.
    pub fn check(&self, [decay, skip]: [usize; 2], dt_bias: Option<usize>, state: usize) {
        let Self { heads, head_dim, groups, state_dim, .. } = *self;
        assert!(groups > 0 && heads.is_multiple_of(groups), "{heads} heads in {groups} groups");
        assert!(decay == heads || decay == heads * state_dim, "decay of {heads} heads");
        assert_eq!(skip, heads, "skip of {heads} heads");
        assert!(dt_bias.is_none_or(|len| len == heads), "dt_bias of {heads} heads");
        assert_eq!(state, heads * head_dim * state_dim, "state of {self:?}");
    }
}

impl DeltaRule {
    /// Columns of a row `[q | k | v]`.
    pub fn row_width(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// The width of `[q | k | v]`, and the lengths of rate, bias and a slot's state.
    pub fn check(&self, width: usize, [rate, dt_bias]: [usize; 2], state: usize) {
        let Self { key_heads, value_heads, key_dim, value_dim, .. } = *self;
        let whole = key_heads > 0 && value_heads.is_multiple_of(key_heads);
        assert!(whole, "{value_heads} value heads, {key_heads} key heads");
        assert_eq!(width, self.row_width(), "width of [q | k | v]");
        assert_eq!((rate, dt_bias), (value_heads, value_heads), "rate and dt_bias");
        assert_eq!(state, value_heads * key_dim * value_dim, "state of {self:?}");
    }
}
