//! The largest shapes that there are kernels for. Whoever loads a model asks first (`ops::Backend::limits`), so launchers count on them.

use super::{attention, attention_layer, recurrent, routing};
use kernels::ops::ShapeLimits;

pub(crate) const LIMITS: ShapeLimits = ShapeLimits {
    head_dim: attention::MOST_DIM,
    v_head_dim: attention_layer::MOST_V_DIM,
    state_dim: recurrent::STATE_DIM,
    key_dim: recurrent::KEY_DIM,
    experts: routing::MOST_EXPERTS,
    top_k: routing::MOST_TOP_K,
};
