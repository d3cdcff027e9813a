//! The operations of a forward pass, at the grain of fused kernels, and their backends.
