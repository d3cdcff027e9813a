//! What is known of one engine.

use std::{
    collections::{HashMap, HashSet},
    hash::BuildHasherDefault,
};

use block_hash::Unhashed;

/// Prompt tokens that a request in flight counts as, beside those of its prompt that are still to be computed: its
/// decodes take rows of the steps that compute other prompts.
pub(crate) const TOKENS_PER_REQUEST: u64 = 64;

/// What an engine can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// Nothing: there is no link to it.
    #[default]
    Away,
    /// It has a link, but cannot compute: its workers are loading, or lost.
    Waiting,
    /// It takes requests.
    Ready,
    /// It finishes what it has, and is to get nothing more.
    Draining,
}

/// One engine.
#[derive(Debug, Default)]
pub(crate) struct Engine {
    pub state: State,
    /// Blocks that its prefix cache holds, by what it reports.
    blocks: HashSet<u64, BuildHasherDefault<Unhashed>>,
    /// Blocks that requests in flight there have or will have, with the number of those requests: a request finds
    /// what the one before it is about to compute.
    expected: HashMap<u64, u32, BuildHasherDefault<Unhashed>>,
    /// Requests in flight that were sent to it from here.
    pub requests: u32,
    /// Requests in flight there by its last report, which knows of those that were sent before this process began.
    pub reported: u32,
    /// Prompt tokens to be computed, of requests that have not started.
    pub queued_tokens: u64,
}

impl Engine {
    /// Whether it holds a block, or will once it has computed what it has.
    fn has(&self, block: u64) -> bool {
        self.blocks.contains(&block) || self.expected.contains_key(&block)
    }

    /// The number of a prompt's blocks, from its first on, that it need not compute.
    pub(crate) fn cached(&self, blocks: &[u64]) -> usize {
        blocks.iter().take_while(|block| self.has(**block)).count()
    }

    /// Tokens that it computes before anything of a request that comes now, in which running requests count for their
    /// share of steps.
    pub(crate) fn load(&self) -> u64 {
        self.queued_tokens + TOKENS_PER_REQUEST * u64::from(self.requests.max(self.reported))
    }

    pub(crate) fn expect(&mut self, blocks: &[u64]) {
        for block in blocks {
            *self.expected.entry(*block).or_default() += 1;
        }
    }

    pub(crate) fn expect_no_more(&mut self, blocks: &[u64]) {
        for block in blocks {
            if let Some(count) = self.expected.get_mut(block) {
                *count -= 1;
                if *count == 0 {
                    self.expected.remove(block);
                }
            }
        }
    }

    pub(crate) fn clear_blocks(&mut self) {
        self.blocks.clear();
    }

    pub(crate) fn store(&mut self, blocks: &[u64]) {
        self.blocks.extend(blocks);
    }

    pub(crate) fn remove(&mut self, blocks: &[u64]) {
        for block in blocks {
            self.blocks.remove(block);
        }
    }

    #[cfg(test)]
    pub(crate) fn expects_nothing(&self) -> bool {
        self.expected.is_empty()
    }
}
