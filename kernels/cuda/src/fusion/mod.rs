//! What several operations become as one kernel.

pub(crate) mod head_norms;
pub(crate) mod split_norm;
pub(crate) mod ungated;
