//! What a family's files call the experts of an MoE layer, and how those lie in stacked tensors.

use crate::weights::{Kind, Piece, Place, Stack, Stripes};

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
        pieces: [StackedPiece; 3],
    },
}

/// A projection of all experts.
#[derive(Clone, Copy)]
pub(super) struct StackedPiece {
    /// The tensors' names after the layer's.
    pub weight: &'static str,
    pub bias: &'static str,
    /// Rows of an expert's matrix.
    pub rows: Stripes,
    /// Matrices are stored `[in, out]`.
    pub transposed: bool,
}

impl ExpertNaming {
    /// The usual names of tensors one by one.
    pub(super) const USUAL: Self = Self::Each { prefix: "mlp.experts", pieces: ["gate_proj", "up_proj", "down_proj"] };

    /// Where a projection of an expert of `layer` is.
    pub(super) fn place(&self, layer: &str, expert: usize, piece: Piece, kind: Kind) -> Place {
        let which = match piece {
            Piece::Gate => 0,
            Piece::Up => 1,
            Piece::Down => 2,
        };
        match self {
            // Nobody asks; the name would only appear in a message.
            Self::None => format!("{layer}.experts").into(),
            Self::Each { prefix, pieces } => {
                let ending = if kind == Kind::Weight { "weight" } else { "bias" };
                format!("{layer}.{prefix}.{expert}.{}.{ending}", pieces[which]).into()
            }
            Self::Stacked { count, pieces } => {
                let StackedPiece { weight, bias, rows, transposed } = pieces[which];
                let tensor = format!("{layer}.{}", if kind == Kind::Weight { weight } else { bias });
                Place { tensor, stack: Some(Stack { index: expert, count: *count }), rows, transposed }
            }
        }
    }
}
