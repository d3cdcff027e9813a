//! How a tensor's elements are stored: the types of ggml.

use super::blocks::{
    BlockShape, GgmlType,
    GgmlType::{
        Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Nl, Iq4Xs, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K,
        Q8_0, Tq1_0, Tq2_0,
    },
};
use TensorType::{Bf16, Blocks, F16, F32, Mxfp4};

/// How a tensor's elements are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// Blocks of consecutive elements of a row.
    Blocks(GgmlType),
    /// Blocks of 32 four-bit floats: the exponent of a power of two in a byte, then 4 bits an element.
    Mxfp4,
    /// Another of ggml's types, by its number: known to exist, not decoded here.
    Other(u32),
}

/// Number, type, name.
const TYPES: &[(u32, TensorType, &str)] = &[
    (0, F32, "F32"),
    (1, F16, "F16"),
    (2, Blocks(Q4_0), "Q4_0"),
    (3, Blocks(Q4_1), "Q4_1"),
    (6, Blocks(Q5_0), "Q5_0"),
    (7, Blocks(Q5_1), "Q5_1"),
    (8, Blocks(Q8_0), "Q8_0"),
    (10, Blocks(Q2K), "Q2_K"),
    (11, Blocks(Q3K), "Q3_K"),
    (12, Blocks(Q4K), "Q4_K"),
    (13, Blocks(Q5K), "Q5_K"),
    (14, Blocks(Q6K), "Q6_K"),
    (16, Blocks(Iq2Xxs), "IQ2_XXS"),
    (17, Blocks(Iq2Xs), "IQ2_XS"),
    (18, Blocks(Iq3Xxs), "IQ3_XXS"),
    (19, Blocks(Iq1S), "IQ1_S"),
    (20, Blocks(Iq4Nl), "IQ4_NL"),
    (21, Blocks(Iq3S), "IQ3_S"),
    (22, Blocks(Iq2S), "IQ2_S"),
    (23, Blocks(Iq4Xs), "IQ4_XS"),
    (29, Blocks(Iq1M), "IQ1_M"),
    (30, Bf16, "BF16"),
    (34, Blocks(Tq1_0), "TQ1_0"),
    (35, Blocks(Tq2_0), "TQ2_0"),
    (39, Mxfp4, "MXFP4"),
];

/// Names of numbers that are not decoded here, for messages.
const OTHERS: &[(u32, &str)] = &[(15, "Q8_K"), (24, "I8"), (25, "I16"), (26, "I32"), (27, "I64"), (28, "F64")];

impl TensorType {
    pub(super) fn from_number(number: u32) -> Self {
        TYPES.iter().find(|row| row.0 == number).map_or(Self::Other(number), |row| row.1)
    }

    fn row(self) -> Option<&'static (u32, TensorType, &'static str)> {
        TYPES.iter().find(|row| row.1 == self)
    }

    /// As ggml writes it.
    pub fn name(self) -> String {
        let other = |number| OTHERS.iter().find(|row| row.0 == number).map(|row| row.1.to_owned());
        match self {
            Self::Other(number) => other(number).unwrap_or_else(|| format!("number {number}")),
            _ => self.row().map(|row| row.2.to_owned()).unwrap_or_default(),
        }
    }

    /// What a block is, of one element where elements stand alone; none for types that are not decoded here.
    pub fn block(self) -> Option<BlockShape> {
        match self {
            F32 => Some(BlockShape { elements: 1, bytes: 4 }),
            F16 | Bf16 => Some(BlockShape { elements: 1, bytes: 2 }),
            Blocks(kind) => Some(kind.block()),
            Mxfp4 => Some(BlockShape { elements: 32, bytes: 17 }),
            Self::Other(_) => None,
        }
    }

    /// Names of the types that have a block, for messages.
    pub fn decoded() -> String {
        TYPES.iter().map(|row| row.2).collect::<Vec<_>>().join(", ")
    }
}
