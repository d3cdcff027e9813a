//! The KV block pool: who holds which block, which are free, which can be found again.
//!
//! A block is in exactly one of three states:
//!
//! ```text
//!            take                      release (last reference)
//!   free ───────────▶ used (refs > 0) ───────────────────────────▶ free      when it has no hash
//!    ▲                   ▲      │
//!    │ evict, oldest     │ hit  │ release (last reference)
//!    └──── cached (refs == 0, hashed, in LRU order) ◀──────────────┘          when it has one
//! ```
//!
//! `take` prefers free blocks and evicts the least recently released cached one otherwise; used blocks are never
//! evicted.

use block_hash::{BlockHash, HashTable};
use ids::BlockId;

use super::changes::{BlockChange, BlockName, StoredBlock};

const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Block {
    refs: u32,
    /// Neighbours in the LRU list while cached.
    older: u32,
    newer: u32,
    name: Option<BlockName>,
}

/// All KV blocks of a worker group.
#[derive(Debug)]
pub(crate) struct BlockPool {
    blocks: Vec<Block>,
    free: Vec<BlockId>,
    /// By their unique hashes.
    by_hash: HashTable<BlockId>,
    /// What happened to them since that was last asked for, in order, while somebody asks.
    changes: Option<Vec<BlockChange>>,
    /// Ends of the LRU list of cached blocks.
    oldest: u32,
    newest: u32,
    cached: u32,
    /// Sum of all reference counts; compared with block tables to find lost blocks.
    references: u64,
    /// How often a block became available; a blocked queue head looks again only when this moved.
    releases: u64,
}

impl BlockPool {
    pub fn new(num_blocks: u32) -> Self {
        let blank = Block { refs: 0, older: NONE, newer: NONE, name: None };
        Self {
            blocks: vec![blank; num_blocks as usize],
            free: (0..num_blocks).rev().map(BlockId).collect(),
            by_hash: HashTable::default(),
            changes: None,
            oldest: NONE,
            newest: NONE,
            cached: 0,
            references: 0,
            releases: 0,
        }
    }

    /// As many blocks as these, of which nothing is known.
    pub fn renew(&mut self, num_blocks: u32) {
        let changes = self.changes.take();
        *self = Self { changes, ..Self::new(num_blocks) };
        self.changed(|| BlockChange::Cleared);
    }

    pub fn num_blocks(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Blocks that `take` can give: free and cached ones.
    pub fn available(&self) -> u32 {
        self.free.len() as u32 + self.cached
    }

    pub fn cached(&self) -> u32 {
        self.cached
    }

    pub fn used(&self) -> u32 {
        self.num_blocks() - self.available()
    }

    pub fn references(&self) -> u64 {
        self.references
    }

    pub fn releases(&self) -> u64 {
        self.releases
    }

    pub fn is_shared(&self, block: BlockId) -> bool {
        self.blocks[block.index()].refs > 1
    }

    /// A block of unknown content with one reference.
    pub fn take(&mut self) -> Option<BlockId> {
        let block = match self.free.pop() {
            Some(block) => block,
            None => self.evict()?,
        };
        self.blocks[block.index()].refs = 1;
        self.references += 1;
        Some(block)
    }

    /// One more holder of a block that is used or cached.
    pub fn hold(&mut self, block: BlockId) {
        if self.blocks[block.index()].refs == 0 {
            self.unlink(block.0);
        }
        self.blocks[block.index()].refs += 1;
        self.references += 1;
    }

    /// One holder less. The last one leaves the block cached when it has a hash, else free.
    pub fn release(&mut self, block: BlockId) {
        let entry = &mut self.blocks[block.index()];
        debug_assert!(entry.refs > 0, "block {block} released twice");
        entry.refs -= 1;
        self.references -= 1;
        if entry.refs > 0 {
            return;
        }
        self.releases += 1;
        match entry.name {
            Some(_) => self.link_newest(block.0),
            None => self.free.push(block),
        }
    }

    /// Gives a used block its name, unless another block has it already. Returns whether it did. Who watches is told
    /// what it `holds`.
    pub fn set_name(&mut self, block: BlockId, name: BlockName, holds: impl FnOnce() -> StoredBlock) -> bool {
        let entry = &mut self.blocks[block.index()];
        debug_assert!(entry.refs > 0, "only a used block gets a name");
        if entry.name.is_some() || self.by_hash.contains_key(&name.unique()) {
            return false;
        }
        entry.name = Some(name);
        self.by_hash.insert(name.unique(), block);
        self.changed(|| BlockChange::Stored(Box::new(holds())));
        true
    }

    /// The block of this hash, if there is one, without taking it.
    pub fn find(&self, hash: &BlockHash) -> Option<BlockId> {
        self.by_hash.get(hash).copied()
    }

    /// Whether `hold` would take the block out of the cached ones.
    pub fn is_unreferenced(&self, block: BlockId) -> bool {
        self.blocks[block.index()].refs == 0
    }

    /// Forgets all hashes; blocks in use stay in use.
    pub fn forget_hashes(&mut self) {
        self.changed(|| BlockChange::Cleared);
        self.by_hash.clear();
        while self.oldest != NONE {
            let block = self.oldest;
            self.unlink(block);
            self.free.push(BlockId(block));
        }
        self.blocks.iter_mut().for_each(|block| block.name = None);
    }

    fn evict(&mut self) -> Option<BlockId> {
        if self.oldest == NONE {
            return None;
        }
        let block = self.oldest;
        self.unlink(block);
        if let Some(name) = self.blocks[block as usize].name.take() {
            self.by_hash.remove(&name.unique());
            self.changed(|| BlockChange::Removed(name));
        }
        Some(BlockId(block))
    }

    fn changed(&mut self, change: impl FnOnce() -> BlockChange) {
        if let Some(changes) = &mut self.changes {
            changes.push(change());
        }
    }

    /// Remembers changes from now on, or no longer. Who begins to watch knows of nothing.
    pub fn watch(&mut self, on: bool) {
        self.changes = on.then(|| vec![BlockChange::Cleared]);
    }

    /// Whether it does.
    pub fn is_watched(&self) -> bool {
        self.changes.is_some()
    }

    /// All hashes that a block has.
    pub fn hashes(&self) -> impl Iterator<Item = BlockHash> {
        self.by_hash.keys().copied()
    }

    /// What has changed since the last call, in order.
    pub fn take_changes(&mut self) -> impl Iterator<Item = BlockChange> {
        self.changes.iter_mut().flat_map(|changes| changes.drain(..))
    }

    fn link_newest(&mut self, block: u32) {
        let older = std::mem::replace(&mut self.newest, block);
        self.blocks[block as usize].older = older;
        self.blocks[block as usize].newer = NONE;
        match older {
            NONE => self.oldest = block,
            _ => self.blocks[older as usize].newer = block,
        }
        self.cached += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Block { older, newer, .. } = self.blocks[block as usize];
        match older {
            NONE => self.oldest = newer,
            _ => self.blocks[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.blocks[newer as usize].older = older,
        }
        self.cached -= 1;
    }

    /// Checks the pool against the references that block tables hold, one count per block.
    pub fn check(&self, held: &[u32]) -> Result<(), String> {
        let mut seen = vec![0u32; self.blocks.len()];
        for block in &self.free {
            seen[block.index()] += 1;
            if self.blocks[block.index()].name.is_some() {
                return Err(format!("free block {block} has a name"));
            }
        }
        let mut cursor = self.oldest;
        let mut cached = 0;
        while cursor != NONE {
            seen[cursor as usize] += 1;
            cached += 1;
            if cached > self.blocks.len() {
                return Err("the LRU list is a ring".into());
            }
            if self.blocks[cursor as usize].name.is_none() {
                return Err(format!("cached block {cursor} has no name"));
            }
            cursor = self.blocks[cursor as usize].newer;
        }
        if cached != self.cached as usize {
            return Err(format!("{cached} blocks in the LRU list, {} counted", self.cached));
        }
        for (index, block) in self.blocks.iter().enumerate() {
            if block.refs != held[index] {
                return Err(format!("block {index} has {} references, tables hold {}", block.refs, held[index]));
            }
            if seen[index] != u32::from(block.refs == 0) {
                return Err(format!("block {index} with {} references is listed {} times", block.refs, seen[index]));
            }
            if block.name.is_some_and(|name| self.by_hash.get(&name.unique()) != Some(&BlockId(index as u32))) {
                return Err(format!("block {index} has a hash that does not lead to it"));
            }
        }
        let hashes = self.blocks.iter().filter(|block| block.name.is_some()).count();
        if hashes != self.by_hash.len() {
            return Err(format!("{} hashes for {hashes} hashed blocks", self.by_hash.len()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block_hash::Identity;
    use proptest::prelude::*;

    fn name(number: u32) -> BlockName {
        BlockName { hash: hash(number), group: 0 }
    }

    fn holding(number: u32) -> StoredBlock {
        StoredBlock {
            name: name(number),
            parent: None,
            tokens: vec![number],
            adapter: String::new(),
            cache_salt: String::new(),
        }
    }

    fn store(pool: &mut BlockPool, block: BlockId, number: u32) -> bool {
        pool.set_name(block, name(number), || holding(number))
    }

    fn hash(number: u32) -> BlockHash {
        BlockHash::root(Identity { model: "", adapter: "", cache_salt: "test" }).child([number].into_iter(), &[])
    }

    #[test]
    fn a_cached_block_is_found_until_it_is_evicted() {
        let mut pool = BlockPool::new(2);
        let first = pool.take().expect("a block");
        assert!(store(&mut pool, first, 1));
        pool.release(first);
        assert_eq!((pool.cached(), pool.available(), pool.used()), (1, 2, 0));
        assert_eq!(pool.find(&hash(1)), Some(first));
        let other = pool.take().expect("the free one");
        assert_ne!(other, first);
        assert_eq!(pool.take(), Some(first), "evicted");
        assert_eq!(pool.find(&hash(1)), None);
        assert_eq!(pool.take(), None);
    }

    #[test]
    fn changes_are_remembered_while_somebody_asks() {
        let mut pool = BlockPool::new(2);
        let keep = |pool: &mut BlockPool, number| {
            let block = pool.take().expect("a block");
            store(pool, block, number);
            pool.release(block);
        };
        let stored = |number| BlockChange::Stored(Box::new(holding(number)));
        keep(&mut pool, 1);
        assert_eq!(pool.take_changes().count(), 0);
        pool.watch(true);
        assert_eq!(pool.hashes().collect::<Vec<_>>(), [hash(1)]);
        keep(&mut pool, 2);
        keep(&mut pool, 3); // evicts the first
        let changes: Vec<_> = pool.take_changes().collect();
        assert_eq!(changes, [BlockChange::Cleared, stored(2), BlockChange::Removed(name(1)), stored(3)]);
        assert_eq!(pool.take_changes().count(), 0);
        pool.forget_hashes();
        assert_eq!(pool.take_changes().collect::<Vec<_>>(), [BlockChange::Cleared]);
        pool.renew(1);
        keep(&mut pool, 1);
        assert_eq!(pool.take_changes().collect::<Vec<_>>(), [BlockChange::Cleared, stored(1)]);
    }

    #[test]
    fn the_first_holder_of_a_hash_keeps_it() {
        let mut pool = BlockPool::new(2);
        let (first, second) = (pool.take().expect("a block"), pool.take().expect("a block"));
        assert!(store(&mut pool, first, 1));
        assert!(!store(&mut pool, second, 1));
        pool.release(second);
        assert_eq!((pool.cached(), pool.available()), (0, 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        /// Any calls in any order: the pool agrees with a plain list of who holds what.
        #[test]
        fn counts_are_what_holders_hold(calls in prop::collection::vec((0u8..6, 0usize..8, 0u32..6), 0..200)) {
            let mut pool = BlockPool::new(6);
            pool.watch(true);
            let mut known = std::collections::HashSet::new();
            let mut holders: Vec<BlockId> = Vec::new();
            for (call, at, number) in calls {
                let held = holders.get(at % holders.len().max(1)).copied();
                match (call, held) {
                    (0 | 1, _) => match pool.take() {
                        Some(block) => {
                            prop_assert!(!holders.contains(&block), "a used block was given away");
                            holders.push(block);
                        }
                        None => prop_assert_eq!(pool.available(), 0),
                    },
                    (2, Some(block)) => {
                        pool.release(block);
                        holders.swap_remove(at % holders.len());
                    }
                    (3, Some(block)) => drop(store(&mut pool, block, number)),
                    (4, _) => {
                        let found = pool.find(&hash(number));
                        if let Some(block) = found {
                            pool.hold(block);
                            holders.push(block);
                        }
                    }
                    (5, _) if number == 0 => pool.forget_hashes(),
                    _ => (),
                }
                let mut counts = vec![0; 6];
                holders.iter().for_each(|block| counts[block.index()] += 1);
                prop_assert_eq!(pool.check(&counts), Ok(()));
                prop_assert_eq!(pool.references(), holders.len() as u64);
                for change in pool.take_changes() {
                    let is_news = match change {
                        BlockChange::Stored(block) => known.insert(block.name.unique()),
                        BlockChange::Removed(name) => known.remove(&name.unique()),
                        BlockChange::Cleared => {
                            known.clear();
                            true
                        }
                    };
                    prop_assert!(is_news);
                }
                prop_assert_eq!(&known, &pool.hashes().collect());
            }
        }
    }
}
