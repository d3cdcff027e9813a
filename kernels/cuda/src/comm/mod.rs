//! The other ranks of a group: NCCL, and kernels that write straight to peers.

pub(crate) mod nccl;
pub(crate) mod peers;
pub(crate) mod ranks;
