//! Models that are divided over stages and machines.

mod drain;
mod nodes;
mod replicas;
mod stages;
mod strangers;
