//! Idle tasks: what the compute thread does between steps and while no plan is in flight.

pub(crate) mod graph_capture;
pub(crate) mod warm_up;
