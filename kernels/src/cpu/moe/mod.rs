//! Mixture of experts: routing rows to experts, and their GEMMs.

pub(crate) mod combine;
pub(crate) mod expert_matmul;
pub(crate) mod route;
