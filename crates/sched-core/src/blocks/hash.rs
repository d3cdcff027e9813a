//! Hashes for full blocks: chained SHA-256, so that equal hashes mean equal tokens from the prompt's first on.

use sha2::{Digest, Sha256};
use std::hash::{BuildHasherDefault, Hasher};

/// Hashes a full block together with all tokens before it and the tenant's salt.
///
/// SHA-256 rather than a fast hash, because a tenant who could construct a collision would read another's prompt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockHash([u8; 32]);

impl std::hash::Hash for BlockHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Eight bytes of a cryptographic hash are as good a table key as any.
        state.write_u64(u64::from_le_bytes(self.0[..8].try_into().expect("eight bytes")));
    }
}

impl BlockHash {
    /// The parent of a first block. Different salts never share a block.
    pub fn root(cache_salt: &str) -> Self {
        let mut sha = Sha256::new();
        sha.update(b"quire prefix cache");
        sha.update(cache_salt.as_bytes());
        Self(sha.finalize().into())
    }

    /// The name of the block that holds the same tokens for another group of layers.
    pub fn in_group(mut self, group: usize) -> Self {
        self.0[0] ^= group as u8;
        self
    }

    /// The block that continues `self` with these tokens.
    pub fn child(&self, tokens: impl IntoIterator<Item = u32>) -> Self {
        let mut sha = Sha256::new();
        sha.update(self.0);
        for token in tokens {
            sha.update(token.to_le_bytes());
        }
        Self(sha.finalize().into())
    }
}

/// Hashes of all full blocks of a prompt.
pub(crate) fn prompt_hashes(cache_salt: &str, prompt: &[u32], block_size: u32) -> Vec<BlockHash> {
    let mut parent = BlockHash::root(cache_salt);
    let mut hashes = Vec::with_capacity(prompt.len() / block_size as usize);
    for block in prompt.chunks_exact(block_size as usize) {
        parent = parent.child(block.iter().copied());
        hashes.push(parent);
    }
    hashes
}

/// Passes the eight bytes that [`BlockHash`] writes through unchanged: hashing a hash again buys nothing.
#[derive(Default)]
pub(crate) struct Unhashed(u64);

impl Hasher for Unhashed {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// A hash map keyed by block hashes.
pub(crate) type HashTable<V> = std::collections::HashMap<BlockHash, V, BuildHasherDefault<Unhashed>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_depend_on_everything_before_and_on_the_salt() {
        let a = prompt_hashes("", &[1, 2, 3, 4, 5], 2);
        assert_eq!(a.len(), 2, "the partial block has no name");
        assert_eq!(a, prompt_hashes("", &[1, 2, 3, 4], 2));
        assert_ne!(a[1], prompt_hashes("", &[9, 2, 3, 4], 2)[1], "an earlier token");
        assert_ne!(a[0], prompt_hashes("tenant", &[1, 2, 3, 4], 2)[0], "the salt");
        assert_ne!(a[0], a[1]);
    }
}
