//! Where a world's decisions come from: bytes of a fuzzer, or a seeded generator.

/// A stream of decisions. Bytes end; a generator does not.
#[derive(Clone, Debug)]
pub enum Source<'a> {
    /// A fuzzer's input. When it is used up, decisions are 0 and `ended` is true.
    Bytes(&'a [u8]),
    /// SplitMix64 from this state.
    Seed(u64),
}

impl Source<'_> {
    pub fn ended(&self) -> bool {
        matches!(self, Source::Bytes(bytes) if bytes.is_empty())
    }

    fn byte(&mut self) -> u8 {
        match self {
            Source::Bytes(bytes) => match bytes.split_first() {
                Some((first, rest)) => {
                    *bytes = rest;
                    *first
                }
                None => 0,
            },
            Source::Seed(state) => {
                *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
                (mix(*state) >> 32) as u8
            }
        }
    }

    /// A number in `0 .. bound`; `bound` is at most 65,536.
    pub fn below(&mut self, bound: u32) -> u32 {
        let wide = if bound > 256 { u32::from(self.byte()) << 8 } else { 0 };
        (wide | u32::from(self.byte())) % bound.max(1)
    }

    /// A number in `from ..= to`.
    pub fn between(&mut self, from: u32, to: u32) -> u32 {
        from + self.below(to - from + 1)
    }

    /// True in `percent` of 100 cases.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

/// A good 64-bit mixer; also the "neural network" of the fake worker.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
