//! Latent attention (DeepSeek V2, arXiv 2405.04434): keys and values of all heads are projections of one short vector a
//! token.

use crate::norm::NormSpec;
use crate::rope::RopeSpec;

/// Attention over cached latent vectors.
///
/// ```text
/// [c | r] = kv_down(x)          c = norm(c), r = rope(r)          what is cached: kv_rank + rope_dim elements a token
/// q = query_up(norm(query_down(x))), or query(x)                  heads of [nope | rope], the latter rotated
/// [k | v] = kv_up(c)                                              heads of [nope | v_head_dim]
/// score = scale * (q_nope k + q_rope r)
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct LatentSpec {
    /// Heads.
    pub heads: usize,
    /// Width of the compressed queries; absent: queries are one projection.
    pub query_rank: Option<usize>,
    /// Width of the latent vector.
    pub kv_rank: usize,
    /// Elements of a query head that do not rotate.
    pub nope_dim: usize,
    /// Elements that do; all heads share this part of the key.
    pub rope_dim: usize,
    /// Width of value heads.
    pub v_head_dim: usize,
    /// Multiplies scores.
    pub scale: f32,
    /// Rotation of `rope_dim` elements.
    pub rope: RopeSpec,
    /// Norm of compressed queries and of the latent vector.
    pub norm: NormSpec,
    /// The projections that read the residual stream, and the one that writes it, have biases.
    pub bias: bool,
}
