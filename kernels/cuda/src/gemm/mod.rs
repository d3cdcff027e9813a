//! GEMM: products of rows with a weight matrix, and the table of kernels that compute them.

pub(crate) mod cublaslt;
pub(crate) mod matmul;
pub(crate) mod matmul_e4m3;
pub(crate) mod matmul_few;
pub(crate) mod matmul_hopper;
pub(crate) mod matmul_parts;
pub(crate) mod product;
pub(crate) mod table;
