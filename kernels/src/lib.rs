//! The operations of a forward pass, at the grain of fused kernels, and the backends that offer them.
//!
//! [`ops::Backend`] is the seam: the decoder in `models` speaks only to it. `cpu` is the reference and fast in its own
//! right; the crate `kernels-cuda` is the one for NVIDIA's GPUs.

pub mod cpu;
pub mod decode;
pub mod e4m3;
pub mod ops;
pub mod sample;
