//! Mixture of experts (MoE): a router sends each token to a few of many MLPs.

use crate::mlp::MlpSpec;

/// Mixture of experts: `sum over the chosen of weight * expert(x)`, plus what all tokens share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MoeSpec {
    /// Number of experts.
    pub experts: usize,
    /// Each expert; its biases are its own.
    pub expert: MlpSpec,
    /// Which experts a token goes to.
    pub routing: RoutingSpec,
    /// An MLP for every token beside the chosen experts.
    pub shared: Option<SharedExpertSpec>,
}

/// How a token chooses experts; the order of the fields is the order of the steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RoutingSpec {
    /// The router's projection has a bias.
    pub bias: bool,
    /// What makes scores of the router's logits.
    pub score: RouterScore,
    /// A stored number for each expert is added to its score, for choosing only: weights are of the scores alone
    /// (DeepSeek V3).
    pub correction: bool,
    /// Only experts of the best groups can be chosen (DeepSeek).
    pub groups: Option<ExpertGroups>,
    /// Experts a token.
    pub top_k: usize,
    /// Weights are divided by their sum. (With a softmax this is the softmax over the chosen alone.)
    pub renormalise: bool,
    /// Multiplies weights.
    pub scale: f32,
}

impl RoutingSpec {
    /// The `top_k` best by softmax, their weights summing to 1 (Mixtral).
    pub fn softmax(top_k: usize) -> Self {
        let score = RouterScore::Softmax;
        Self { bias: false, score, correction: false, groups: None, top_k, renormalise: true, scale: 1.0 }
    }
}

/// What makes scores of a router's logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScore {
    /// Softmax over all experts. (Renormalised, this is the softmax over the chosen ones.)
    Softmax,
    /// Each expert's sigmoid.
    Sigmoid,
}

/// Experts in groups of neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Groups; divides the experts.
    pub count: usize,
    /// Groups that stay.
    pub kept: usize,
    /// A group's score is the sum of this many of its best experts' (corrected) scores.
    pub best: usize,
}

/// An MLP for every token beside the chosen experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedExpertSpec {
    /// Several shared experts are one of their summed width.
    pub mlp: MlpSpec,
    /// Its result is multiplied by the sigmoid of a projection of the token to one number (Qwen 2 MoE).
    pub gated: bool,
}
