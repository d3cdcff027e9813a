//! GEMM: products of rows with a weight matrix, and the table of kernels that compute them.

pub(crate) mod codes;
pub(crate) mod cublaslt;
pub(crate) mod matmul;
pub(crate) mod matmul_codes;
pub(crate) mod matmul_packed;
pub(crate) mod matmul_packed_wgmma;
pub(crate) mod matmul_skinny;
pub(crate) mod matmul_split_k;
pub(crate) mod matmul_wgmma;
pub(crate) mod prepared;
pub(crate) mod product;
pub(crate) mod table;
