//! How a tensor's elements are stored: the types of ggml.

/// How a tensor's elements are stored. All types but the plain ones come in blocks of consecutive elements of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TensorType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// Blocks of 32: a scale, 4 bits an element.
    Q4_0,
    /// Blocks of 32: a scale and an offset, 4 bits an element.
    Q4_1,
    /// Blocks of 32: a scale, 5 bits an element.
    Q5_0,
    /// Blocks of 32: a scale and an offset, 5 bits an element.
    Q5_1,
    /// Blocks of 32: a scale, 8 bits an element.
    Q8_0,
    /// Super-blocks of 256: 2 bits an element.
    Q2K,
    /// Super-blocks of 256: 3 bits an element.
    Q3K,
    /// Super-blocks of 256: 4 bits an element.
    Q4K,
    /// Super-blocks of 256: 5 bits an element.
    Q5K,
    /// Super-blocks of 256: 6 bits an element.
    Q6K,
    /// Blocks of 32: a scale, 16 levels.
    Iq4Nl,
    /// Super-blocks of 256: 16 levels.
    Iq4Xs,
    /// Another of ggml's types, by its number: known to exist, not decoded here.
    Other(u32),
}

use TensorType::{Bf16, F16, F32, Iq4Nl, Iq4Xs, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

/// Number, type, name, elements of a block, bytes of a block.
const TYPES: &[(u32, TensorType, &str, usize, usize)] = &[
    (0, F32, "F32", 1, 4),
    (1, F16, "F16", 1, 2),
    (2, Q4_0, "Q4_0", 32, 18),
    (3, Q4_1, "Q4_1", 32, 20),
    (6, Q5_0, "Q5_0", 32, 22),
    (7, Q5_1, "Q5_1", 32, 24),
    (8, Q8_0, "Q8_0", 32, 34),
    (10, Q2K, "Q2_K", 256, 84),
    (11, Q3K, "Q3_K", 256, 110),
    (12, Q4K, "Q4_K", 256, 144),
    (13, Q5K, "Q5_K", 256, 176),
    (14, Q6K, "Q6_K", 256, 210),
    (20, Iq4Nl, "IQ4_NL", 32, 18),
    (23, Iq4Xs, "IQ4_XS", 256, 136),
    (30, Bf16, "BF16", 1, 2),
];

/// Names of numbers that are not decoded here, for messages.
const OTHERS: &[(u32, &str)] = &[
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
];

impl TensorType {
    pub(super) fn from_number(number: u32) -> Self {
        TYPES.iter().find(|row| row.0 == number).map_or(Self::Other(number), |row| row.1)
    }

    fn row(self) -> Option<&'static (u32, TensorType, &'static str, usize, usize)> {
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

    /// Elements and bytes of a block; none for types that are not decoded here.
    pub fn block(self) -> Option<(usize, usize)> {
        self.row().map(|row| (row.3, row.4))
    }

    /// Names of the types that have a block, for messages.
    pub fn decoded() -> String {
        TYPES.iter().map(|row| row.2).collect::<Vec<_>>().join(", ")
    }
}
