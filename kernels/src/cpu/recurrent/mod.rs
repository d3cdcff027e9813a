//! Recurrent state: convolutions, scans and the delta rule.

pub(crate) mod causal_conv;
pub(crate) mod delta_rule;
pub(crate) mod selective_scan;
pub(crate) mod state;
