//! One block table of a sequence: the blocks of one group of layers.

use ids::BlockId;

/// Entry `i` holds positions `i * block_size ..`. Entries below `dropped` lie behind the group's window: their blocks
/// were given back, or never taken, and what stands there means nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    blocks: Vec<BlockId>,
    dropped: u32,
}

impl Table {
    /// Entries, dropped ones included.
    pub fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    pub fn dropped(&self) -> u32 {
        self.dropped
    }

    /// The blocks it holds.
    pub fn live(&self) -> &[BlockId] {
        &self.blocks[self.dropped as usize..]
    }

    /// The block of an entry that is not dropped.
    pub fn get(&self, entry: u32) -> Option<BlockId> {
        (entry >= self.dropped).then(|| self.blocks.get(entry as usize).copied()).flatten()
    }

    pub fn push(&mut self, block: BlockId) {
        self.blocks.push(block);
    }

    pub fn replace(&mut self, entry: u32, block: BlockId) {
        self.blocks[entry as usize] = block;
    }

    /// Forgets everything and begins behind `dropped` entries that no row will look at.
    pub fn begin(&mut self, dropped: u32) {
        self.blocks.clear();
        self.blocks.resize(dropped as usize, BlockId(0));
        self.dropped = dropped;
    }

    /// Takes over what another table holds.
    pub fn copy_from(&mut self, other: &Self) {
        self.blocks.clone_from(&other.blocks);
        self.dropped = other.dropped;
    }

    /// Gives up the oldest block it holds.
    pub fn drop_oldest(&mut self) -> BlockId {
        self.dropped += 1;
        self.blocks[self.dropped as usize - 1]
    }

    /// Gives up the newest block it holds.
    pub fn pop(&mut self) -> Option<BlockId> {
        (self.len() > self.dropped).then(|| self.blocks.pop()).flatten()
    }
}
