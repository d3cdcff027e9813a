//! Mixture of experts (MoE): routing, and grouped GEMMs of the experts that rows chose.

pub(crate) mod experts;
pub(crate) mod experts_codes;
pub(crate) mod experts_packed;
pub(crate) mod experts_prepared;
pub(crate) mod routing;
