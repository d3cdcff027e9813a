//! What operations stand on: memory, threads, instruction sets, activation buffers, the batch.

pub(crate) mod activations;
pub(crate) mod batch;
pub(crate) mod isa;
pub(crate) mod memory;
pub(crate) mod pool;
