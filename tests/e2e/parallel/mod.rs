//! Models that are divided over stages and machines.

mod drain;
mod nodes;
pub(crate) mod replicas;
mod stages;
pub(crate) mod strangers;
