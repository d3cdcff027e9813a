//! Models that are divided over stages and machines.

mod nodes;
mod replicas;
mod stages;
mod strangers;
