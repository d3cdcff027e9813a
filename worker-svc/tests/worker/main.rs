//! A real worker with a fake scheduler at the other end of a ring: tokens against the references, groups, faults, lost
//! links.

mod adapters;
mod groups;
mod plans;
mod reference;
mod scheduler;
mod tokens;
mod worker;
