//! Operations of a layer beside GEMM, attention, MoE and recurrence: element by element, norms, heads and columns.

pub(crate) mod adapter_groups;
pub(crate) mod elementwise;
pub(crate) mod expert_lora;
pub(crate) mod gated_norm;
pub(crate) mod groups;
pub(crate) mod lora;
pub(crate) mod lora_mma;
pub(crate) mod norm;
pub(crate) mod norm_prepared;
pub(crate) mod saved;
