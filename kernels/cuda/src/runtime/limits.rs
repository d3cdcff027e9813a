//! The largest shapes that there are kernels for. Whoever loads a model asks first (`ops::Device::limits`), so
//! launchers count on them.

use crate::attention;
use crate::attention::layer;
use crate::moe::routing;
use crate::recurrent;
use kernels::ops::ShapeLimits;

pub(crate) const LIMITS: ShapeLimits = ShapeLimits {
    head_dim: attention::MOST_DIM,
    v_head_dim: layer::MOST_V_DIM,
    state_dim: recurrent::selective_scan::STATE_DIM,
    key_dim: recurrent::KEY_DIM,
    experts: routing::MOST_EXPERTS,
    top_k: routing::MOST_TOP_K,
};
