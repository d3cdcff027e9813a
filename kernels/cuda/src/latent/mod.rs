//! Latent attention, and the products of heads around it.

pub(crate) mod attention_expanded;
pub(crate) mod attention_latent;
pub(crate) mod head_matmul_mma;
pub(crate) mod rounds;
