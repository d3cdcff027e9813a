//! What a family's files call the experts of an MoE layer, and how those lie in stacked tensors.

use crate::weights::{FusedShard, MlpParam, ParamKind, StackedExpert, TensorLocation};

/// Where the experts of a layer lie.
#[derive(Clone, Copy)]
pub(super) enum ExpertNaming {
    /// There are none.
    None,
    /// Each projection of each expert is a tensor: `{prefix}.{expert}.{piece}.weight`.
    Each {
        /// What an expert's number follows.
        prefix: &'static str,
        /// Gate, up and down.
        pieces: [&'static str; 3],
    },
    /// A projection of all experts is a tensor.
    Stacked {
        /// Experts.
        count: usize,
        /// Gate, up and down; fused ones share a tensor.
        pieces: [StackedParam; 3],
    },
}

/// A projection of all experts.
#[derive(Clone, Copy)]
pub(super) struct StackedParam {
    /// The tensors' names after the layer's.
    pub weight: &'static str,
    pub bias: &'static str,
    /// Rows of an expert's matrix.
    pub rows: FusedShard,
    /// Matrices are stored `[in, out]`.
    pub transposed: bool,
}

impl ExpertNaming {
    /// The usual names of tensors one by one.
    pub(super) const USUAL: Self = Self::Each { prefix: "mlp.experts", pieces: ["gate_proj", "up_proj", "down_proj"] };

    /// Where a projection of an expert of `layer` is.
    pub(super) fn location(&self, layer: &str, expert: usize, piece: MlpParam, kind: ParamKind) -> TensorLocation {
        let which = match piece {
            MlpParam::Gate => 0,
            MlpParam::Up => 1,
            MlpParam::Down => 2,
        };
        match self {
            // Nobody asks; the name would only appear in a message.
            Self::None => format!("{layer}.experts").into(),
            Self::Each { prefix, pieces } => {
                let ending = if kind == ParamKind::Weight { "weight" } else { "bias" };
                format!("{layer}.{prefix}.{expert}.{}.{ending}", pieces[which]).into()
            }
            Self::Stacked { count, pieces } => {
                let StackedParam { weight, bias, rows, transposed } = pieces[which];
                let tensor = format!("{layer}.{}", if kind == ParamKind::Weight { weight } else { bias });
                let stack = Some(StackedExpert { index: expert, count: *count });
                TensorLocation { tensor, stack, rows, transposed, conv1d: false }
            }
        }
    }
}
