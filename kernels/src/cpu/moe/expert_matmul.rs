//! The product of each row with each of its experts: one product an expert, of the rows that chose it.

use crate::cpu::gemm::pack::Packed;
use crate::cpu::gemm::{Product, Rows};
use crate::cpu::moe::route::Choices;
use crate::cpu::runtime::activations::View;
use crate::ops::Epilogue;

/// Operands with their handles looked up.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// A row for each row that chose, or for each choice.
    pub(crate) x: View,
    /// `[experts, out_features]`.
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) choices: &'a Choices,
    /// A row for each choice.
    pub(crate) out: View,
}

/// One product for each of `experts`.
pub(crate) fn products<'a>(
    experts: impl ExactSizeIterator<Item = &'a Packed>,
    call: Call<'a>,
) -> impl Iterator<Item = Product<'a>> {
    let Call { x, bias, choices, out } = call;
    let (n, pairs) = (out.width, choices.rows * choices.top_k);
    assert_eq!(experts.len(), choices.experts(), "experts, and what rows chose among");
    experts.enumerate().map(move |(expert, w)| {
        let chosen = choices.pairs(expert);
        Product {
            x: Rows::picked(x.data, x.width, chosen, pairs / x.rows.max(1)),
            rows: chosen.len(),
            w,
            bias: bias.map(|bias| &bias[expert * n..][..n]),
            epilogue: Epilogue::Store,
            activation: None,
            out: Rows::picked(out.data, n, chosen, 1),
        }
    })
}
