//! The scheduler as a state machine: events in, step plans and terminal events out.
