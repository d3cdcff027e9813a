//! What the compute thread does for steps to come: before the first one, between two of them, and while no plan is in
//! flight.

pub(crate) mod graph_capture;
pub(crate) mod rehearsal;
pub(crate) mod warm_up;
