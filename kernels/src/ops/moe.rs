//! Mixtures of experts: how rows choose, and what the chosen do first.

use super::{Act, Activation, ExpertGroups, MatrixGroup, RouterScore, Vector};

/// How a row chooses experts; the order of the fields is the order of the steps.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// What makes scores of logits.
    pub score: RouterScore,
    /// Added to scores for choosing only, one for each expert; the weights are of the scores alone (DeepSeek V3).
    pub correction: Option<Vector>,
    /// Only experts of the best groups can be chosen.
    pub groups: Option<ExpertGroups>,
    /// Experts a row; the best ones. Among equals the lower number wins.
    pub top_k: usize,
    /// Weights are divided by their sum.
    pub renormalise: bool,
    /// Multiplies weights.
    pub scale: f32,
}

/// What experts with a gate do first: see [`Ops::gated_experts`](super::Ops::gated_experts).
#[derive(Clone, Copy, Debug)]
pub struct GatedExperts {
    /// `[gate | up]` of each expert.
    pub w: MatrixGroup,
    /// `[experts, out_features]`.
    pub bias: Option<Vector>,
    /// Of the gate.
    pub activation: Activation,
    /// Room for the products, a row for every choice; what is in it afterwards means nothing.
    pub raised: Act,
    /// Experts whose product, with the same choices, reads `out` next and alone. Then `out` need not hold the numbers
    /// that it otherwise has: a device may leave them as that product wants them.
    pub reader: Option<MatrixGroup>,
}
