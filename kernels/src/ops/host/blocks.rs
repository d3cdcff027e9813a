//! Blocks of GGUF files, as ggml defines them.

/// Rows of blocks, each with its scales inside.
#[derive(Clone, Copy)]
pub struct GgmlBlocks<'a> {
    /// What a block is.
    pub kind: GgmlType,
    /// `[rows, cols / block elements]` blocks, row-major.
    pub bytes: &'a [u8],
}

/// Types of blocks, by ggml's names. Their layouts are in [`crate::decode`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum GgmlType {
    /// 4 bits, a scale.
    Q4_0,
    /// 4 bits, a scale and an offset.
    Q4_1,
    /// 5 bits, a scale.
    Q5_0,
    /// 5 bits, a scale and an offset.
    Q5_1,
    /// 8 bits, a scale.
    Q8_0,
    /// 2 bits, two levels of scales and offsets.
    Q2K,
    /// 3 bits, two levels of scales.
    Q3K,
    /// 4 bits, two levels of scales and offsets.
    Q4K,
    /// 5 bits, two levels of scales and offsets.
    Q5K,
    /// 6 bits, two levels of scales.
    Q6K,
    /// 16 levels, a scale.
    Iq4Nl,
    /// 16 levels, two levels of scales.
    Iq4Xs,
}

/// Size of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockShape {
    /// Weights in it.
    pub elements: usize,
    /// Its bytes.
    pub bytes: usize,
}

impl GgmlType {
    /// All of them.
    pub const ALL: [Self; 12] = [
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Iq4Xs,
    ];

    /// Size of a block.
    pub const fn block(self) -> BlockShape {
        let (elements, bytes) = match self {
            Self::Q4_0 | Self::Iq4Nl => (32, 18),
            Self::Q4_1 => (32, 20),
            Self::Q5_0 => (32, 22),
            Self::Q5_1 => (32, 24),
            Self::Q8_0 => (32, 34),
            Self::Q2K => (256, 84),
            Self::Q3K => (256, 110),
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Iq4Xs => (256, 136),
        };
        BlockShape { elements, bytes }
    }
}
