//! CUDA graphs: decode steps captured once and replayed.

pub(crate) mod captures;
pub(crate) mod cuda_graph;
pub(crate) mod steps;
