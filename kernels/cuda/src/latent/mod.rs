//! What latent attention alone needs: products of heads.

pub(crate) mod head_matmul_mma;
