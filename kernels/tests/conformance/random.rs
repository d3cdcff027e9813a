//! Reproducible numbers (SplitMix64 by Steele, Lea and Flood).

/// A generator.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.bits() % limit as u64) as usize
    }

    /// Roughly normal values.
    pub fn values(&mut self, count: usize) -> Vec<f32> {
        let mut uniform = || (self.bits() >> 40) as f32 / (1_u64 << 24) as f32 - 0.5;
        (0..count).map(|_| (uniform() + uniform() + uniform()) * 2.0).collect()
    }

    /// `0 .. count` in some order.
    pub fn permutation(&mut self, count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count as u32).collect();
        for i in (1..count).rev() {
            order.swap(i, self.below(i + 1));
        }
        order
    }
}
