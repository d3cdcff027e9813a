//! Groups of layers: which blocks each still looks at, and how many a sequence needs.
//!
//! Every group has a block table of its own, filled from the one pool. A group without a window keeps all blocks of a
//! sequence; one with a window `w` keeps those that a coming row may look at, that is from position `start + 1 - w` on,
//! and gives the others back (see `room.rs`).

use crate::config::Config;

/// The arithmetic of one configuration.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    windows: Vec<Option<u32>>,
    block_size: u32,
    /// Most positions of a sequence in one step.
    chunk: u32,
    /// Most positions of a sequence whose steps may not be back when the next one is planned.
    unseen: u32,
}

impl Groups {
    pub fn new(config: &Config) -> Self {
        let chunk = match config.long_prefill_token_threshold {
            0 => config.max_num_batched_tokens,
            _ if !config.enable_chunked_prefill => config.max_num_batched_tokens,
            threshold => threshold.min(config.max_num_batched_tokens),
        };
        let chunk = chunk.max(config.speculative_tokens.saturating_add(1));
        let unseen = chunk.saturating_mul(config.pipeline_depth.saturating_sub(1));
        Self { windows: config.windows.clone(), block_size: config.block_size, chunk, unseen }
    }

    pub fn count(&self) -> usize {
        self.windows.len()
    }

    pub fn has_window(&self, group: usize) -> bool {
        self.windows[group].is_some()
    }

    /// The first entry of the group's table that a row starting at `position` may look at.
    pub fn first_seen(&self, group: usize, position: u32) -> u32 {
        self.windows[group].map_or(0, |window| (position + 1).saturating_sub(window) / self.block_size)
    }

    /// Blocks that a sequence of this many positions holds in a group, at most. With a window, those are what the next
    /// chunk sees and fills; with plans in flight also theirs, whose blocks the prefix cache has not seen yet.
    pub fn most_held(&self, group: usize, positions: u32) -> u32 {
        let all = positions.div_ceil(self.block_size);
        let Some(window) = self.windows[group] else { return all };
        let reach = self.unseen.max(window).saturating_add(self.chunk);
        all.min(reach.div_ceil(self.block_size).saturating_add(1))
    }

    /// Blocks that a sequence of this many positions holds in all groups, at most.
    pub fn blocks_for(&self, positions: u32) -> u64 {
        (0..self.count()).map(|group| u64::from(self.most_held(group, positions))).sum()
    }

    /// Positions of the longest sequence that this many blocks hold.
    pub fn positions_in(&self, num_blocks: u32) -> u32 {
        let (mut fits, mut too_many) = (0, u32::MAX);
        while too_many - fits > 1 {
            let middle = fits + (too_many - fits) / 2;
            if self.blocks_for(middle) <= num_blocks.into() { fits = middle } else { too_many = middle }
        }
        fits
    }
}

impl Config {
    /// Positions of the longest sequence that this many blocks hold, over all groups of layers.
    pub fn positions_in(&self, num_blocks: u32) -> u32 {
        Groups::new(self).positions_in(num_blocks)
    }

    /// Blocks that a sequence of this many positions holds at most, over all groups of layers.
    pub fn blocks_for(&self, positions: u32) -> u64 {
        Groups::new(self).blocks_for(positions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(windows: &[Option<u32>], pipeline_depth: u32) -> Groups {
        let config = Config { block_size: 4, max_num_batched_tokens: 32, pipeline_depth, ..Config::default() };
        Groups::new(&Config { windows: windows.to_vec(), ..config })
    }

    #[test]
    fn a_group_without_a_window_holds_everything() {
        let groups = groups(&[None], 2);
        assert_eq!((groups.first_seen(0, 1000), groups.blocks_for(1001)), (0, 251));
        assert_eq!((groups.positions_in(0), groups.positions_in(10)), (0, 40));
    }

    #[test]
    fn a_window_holds_what_the_next_chunk_sees() {
        let groups = groups(&[Some(16)], 1);
        // A row at 16 sees positions 1 to 16, one at 19 positions 4 to 19.
        assert_eq!([15, 16, 19, 23].map(|position| groups.first_seen(0, position)), [0, 0, 1, 2]);
        assert_eq!(groups.most_held(0, 20), 5);
        assert_eq!(groups.most_held(0, 100_000), 13);
        assert_eq!((groups.positions_in(12), groups.positions_in(13)), (48, u32::MAX - 1));
    }

    #[test]
    fn groups_add_up() {
        let groups = groups(&[None, Some(16), Some(16)], 1);
        assert_eq!(groups.blocks_for(8), 6);
        assert_eq!(groups.blocks_for(4000), 1000 + 2 * 13);
        assert_eq!(groups.positions_in(1026), 4000);
    }
}
