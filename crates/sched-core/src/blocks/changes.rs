//! What others are told of the prefix cache.

use block_hash::BlockHash;

/// How it changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum BlockChange {
    /// A block can be found from now on.
    Stored(Box<StoredBlock>),
    /// It can be found no longer.
    Removed(BlockName),
    /// None of those before can.
    Cleared,
}

/// Names a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockName {
    /// Of its tokens and all before them.
    pub hash: BlockHash,
    /// The group of layers whose keys and values it holds.
    pub group: usize,
}

impl BlockName {
    /// One hash that names it among the blocks of all groups.
    pub fn unique(&self) -> BlockHash {
        self.hash.in_group(self.group)
    }
}

/// A block, and what its hash is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredBlock {
    /// Its name.
    pub name: BlockName,
    /// Hash of the block before it; absent of a first one.
    pub parent: Option<BlockHash>,
    /// The tokens in it.
    pub tokens: Vec<u32>,
    /// The adapter that computed it; empty: none.
    pub adapter: String,
    /// Its tenant's salt; empty: none.
    pub cache_salt: String,
}
