//! Blocks of consecutive elements of a row, as ggml defines them.

/// Types of blocks, by ggml's names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum GgmlType {
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
    /// Super-blocks of 256, two levels of scales and offsets: 2 bits an element.
    Q2K,
    /// Super-blocks of 256, two levels of scales: 3 bits an element.
    Q3K,
    /// Super-blocks of 256, two levels of scales and offsets: 4 bits an element.
    Q4K,
    /// Super-blocks of 256, two levels of scales and offsets: 5 bits an element.
    Q5K,
    /// Super-blocks of 256, two levels of scales: 6 bits an element.
    Q6K,
    /// Blocks of 32: a scale, 16 levels.
    Iq4Nl,
    /// Super-blocks of 256, two levels of scales: 16 levels.
    Iq4Xs,
    /// Super-blocks of 256, two levels of scales: eight elements are a row of a grid of 2,048, moved by an eighth.
    Iq1S,
    /// As `Iq1S`, with a scale for 16 elements and an eighth for eight.
    Iq1M,
    /// Super-blocks of 256, two levels of scales: eight elements are a row of a grid of 256, and their signs.
    Iq2Xxs,
    /// The same with a grid of 512.
    Iq2Xs,
    /// The same with a grid of 1,024, and a sign for each element.
    Iq2S,
    /// Super-blocks of 256, two levels of scales: four elements are a row of a grid of 256, and their signs.
    Iq3Xxs,
    /// The same with a grid of 512, and a sign for each element.
    Iq3S,
    /// Blocks of 256: a scale, five elements of -1, 0 and 1 in a byte.
    Tq1_0,
    /// Blocks of 256: a scale, four elements of -1, 0 and 1 in a byte.
    Tq2_0,
}

/// Size of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockShape {
    /// Elements in it.
    pub elements: usize,
    /// Its bytes.
    pub bytes: usize,
}

impl GgmlType {
    /// All of them.
    pub const ALL: [Self; 21] = [
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
        Self::Iq1S,
        Self::Iq1M,
        Self::Iq2Xxs,
        Self::Iq2Xs,
        Self::Iq2S,
        Self::Iq3Xxs,
        Self::Iq3S,
        Self::Tq1_0,
        Self::Tq2_0,
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
            Self::Q4K => (256, 144),
            Self::Q5K => (256, 176),
            Self::Q6K => (256, 210),
            Self::Iq4Xs => (256, 136),
            Self::Iq1S => (256, 50),
            Self::Iq1M => (256, 56),
            Self::Iq2Xxs | Self::Tq2_0 => (256, 66),
            Self::Iq2Xs => (256, 74),
            Self::Iq2S => (256, 82),
            Self::Iq3Xxs => (256, 98),
            Self::Q3K | Self::Iq3S => (256, 110),
            Self::Tq1_0 => (256, 54),
        };
        BlockShape { elements, bytes }
    }
}
