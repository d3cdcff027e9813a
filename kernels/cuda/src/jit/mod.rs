//! Kernels compiled for the GPU found, ahead or when they are first needed, and kept on disk.

pub(crate) mod cache;
pub(crate) mod compile_queue;
pub(crate) mod compiler;
pub(crate) mod layouts;
pub(crate) mod nvrtc;
pub(crate) mod prebuilt;
pub(crate) mod prefetch;
pub(crate) mod sources;
pub(crate) mod specialization;
