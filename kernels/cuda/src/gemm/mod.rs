//! Products of rows with a weight matrix (GEMM), and the kernels to choose from.

pub(crate) mod cublaslt;
pub(crate) mod matmul;
pub(crate) mod matmul_e4m3;
pub(crate) mod matmul_few;
pub(crate) mod matmul_hopper;
pub(crate) mod matmul_parts;
pub(crate) mod product;
