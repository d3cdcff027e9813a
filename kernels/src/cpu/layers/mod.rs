//! Operations on rows by themselves: norms, activations, sums, lookups, copies.

pub(crate) mod activate;
pub(crate) mod add;
pub(crate) mod clamp;
pub(crate) mod copy_columns;
pub(crate) mod embed;
pub(crate) mod gate_rows;
pub(crate) mod gated;
pub(crate) mod gather;
pub(crate) mod head_matmul;
pub(crate) mod norm;
pub(crate) mod scale;
pub(crate) mod soft_cap;
