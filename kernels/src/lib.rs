//! The operations of a forward pass, at the grain of fused kernels, and the backends that offer them.
//!
//! [`ops::Backend`] is the seam: the decoder in `models` speaks only to it. `cpu` is the reference and fast in its own right;
//! `cuda` is for NVIDIA's GPUs.

pub mod choose;
pub mod cpu;
pub mod cuda;
pub mod ops;
