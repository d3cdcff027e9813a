//! The other ranks of a group: NCCL, and kernels that write small messages straight to peers.

pub(crate) mod nccl;
pub(crate) mod one_shot;
pub(crate) mod ranks;
