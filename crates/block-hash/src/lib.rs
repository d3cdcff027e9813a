//! Hashes for full blocks: chained SHA-256, so that equal hashes mean equal tokens from the prompt's first on, computed
//! in equal ways.

use proto::Media;
use sha2::{Digest, Sha256};
use std::{
    hash::{BuildHasherDefault, Hasher},
    ops::Range,
};

/// What keys and values depend on beside the tokens. Requests share blocks only where all of it is equal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity<'a> {
    /// The model as it is served: its fingerprint.
    pub model: &'a str,
    /// Name of the adapter; empty: none.
    pub adapter: &'a str,
    /// The tenant's salt; empty: shared.
    pub cache_salt: &'a str,
}

/// Stands for a full block, all tokens and media before it, and the request's [`Identity`].
///
/// SHA-256 rather than a fast hash, because a tenant who could construct a collision would read another's prompt. What
/// is hashed begins with a byte that tells roots from children, and says how long each of its parts is: no two
/// different histories are the same bytes.
///
/// ```text
///  root   0  len model  len adapter  len cache_salt
///  child  1  parent  count tokens  count media: each start, num_tokens, len hash
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHash([u8; 32]);

impl std::hash::Hash for BlockHash {
    fn hash<H: Hasher>(&self, state: &mut H) {
        // Eight bytes of a cryptographic hash are as good a table key as any.
        state.write_u64(self.short());
    }
}

/// First byte of what is hashed.
const ROOT: u8 = 0;
const CHILD: u8 = 1;

impl BlockHash {
    /// The parent of a first block. Different identities never share a block.
    pub fn root(identity: Identity<'_>) -> Self {
        let mut sha = Sha256::new();
        sha.update([ROOT]);
        for part in [identity.model, identity.adapter, identity.cache_salt] {
            sha.update((part.len() as u64).to_le_bytes());
            sha.update(part.as_bytes());
        }
        Self(sha.finalize().into())
    }

    /// The hash of the block that holds the same tokens for another group of layers.
    #[inline]
    pub fn in_group(mut self, group: usize) -> Self {
        self.0[0] ^= group as u8;
        self
    }

    /// Its first eight bytes: a name that is good enough where a wrong one costs time alone.
    #[inline]
    pub fn short(&self) -> u64 {
        u64::from_le_bytes(self.0[..8].try_into().expect("eight bytes"))
    }

    /// The block that continues `self` with these tokens, and with the media whose placeholders lie in it or reach into
    /// it.
    pub fn child(&self, tokens: impl ExactSizeIterator<Item = u32>, media: &[Media]) -> Self {
        let mut sha = Sha256::new();
        sha.update([CHILD]);
        sha.update(self.0);
        sha.update((tokens.len() as u32).to_le_bytes());
        // The usual block at once.
        let (mut bytes, mut filled) = ([0; 64], 0);
        for token in tokens {
            bytes[filled..filled + 4].copy_from_slice(&token.to_le_bytes());
            filled += 4;
            if filled == bytes.len() {
                sha.update(bytes);
                filled = 0;
            }
        }
        sha.update(&bytes[..filled]);
        sha.update((media.len() as u32).to_le_bytes());
        for one in media {
            for number in [one.start, one.num_tokens, one.hash.len() as u32] {
                sha.update(number.to_le_bytes());
            }
            sha.update(&one.hash);
        }
        Self(sha.finalize().into())
    }
}

/// Hashes of all full blocks of a prompt with media in order of positions.
pub fn prompt_hashes(root: BlockHash, prompt: &[u32], media: &[Media], block_size: u32) -> Vec<BlockHash> {
    let mut parent = root;
    let mut hashes = Vec::with_capacity(prompt.len() / block_size as usize);
    for (block, from) in prompt.chunks_exact(block_size as usize).zip((0..).step_by(block_size as usize)) {
        parent = parent.child(block.iter().copied(), overlapping(media, from..from + block_size));
        hashes.push(parent);
    }
    hashes
}

/// Those of a prompt's media, in order of positions, whose placeholders overlap `positions`.
pub fn overlapping(media: &[Media], positions: Range<u32>) -> &[Media] {
    if media.is_empty() {
        return media;
    }
    let first = media.partition_point(|one| one.start + one.num_tokens <= positions.start);
    let end = media.partition_point(|one| one.start < positions.end);
    &media[first..end.max(first)]
}

/// Passes the eight bytes that [`BlockHash`] writes through unchanged: hashing a hash again buys nothing.
#[derive(Default)]
pub struct Unhashed(u64);

impl Hasher for Unhashed {
    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// A hash map keyed by block hashes.
pub type HashTable<V> = std::collections::HashMap<BlockHash, V, BuildHasherDefault<Unhashed>>;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Everything that blocks are hashed from.
    #[derive(Clone, PartialEq, Debug)]
    struct History {
        identity: [String; 3],
        tokens: Vec<u32>,
        media: Vec<Media>,
    }

    impl History {
        fn new(tokens: &[u32]) -> Self {
            Self { identity: Default::default(), tokens: tokens.to_vec(), media: Vec::new() }
        }

        fn hashes(&self, block_size: u32) -> Vec<BlockHash> {
            let [model, adapter, cache_salt] = &self.identity;
            let root = BlockHash::root(Identity { model, adapter, cache_salt });
            prompt_hashes(root, &self.tokens, &self.media, block_size)
        }

        /// What the blocks up to `end` may depend on.
        fn until(&self, end: usize) -> Self {
            let media = self.media.iter().filter(|one| (one.start as usize) < end).cloned().collect();
            Self { identity: self.identity.clone(), tokens: self.tokens[..end].to_vec(), media }
        }
    }

    fn media(start: u32, num_tokens: u32, hash: &[u8]) -> Media {
        Media { start, num_tokens, hash: hash.to_vec().into() }
    }

    #[test]
    fn hashes_depend_on_everything_before() {
        let a = History::new(&[1, 2, 3, 4, 5]).hashes(2);
        assert_eq!(a.len(), 2, "the partial block has no hash");
        assert_eq!(a, History::new(&[1, 2, 3, 4]).hashes(2));
        assert_ne!(a[1], History::new(&[9, 2, 3, 4]).hashes(2)[1], "an earlier token");
        assert_ne!(a[0], a[1]);
    }

    #[test]
    fn parts_of_an_identity_do_not_run_into_each_other() {
        let check = |identity: [&str; 3]| {
            let [model, adapter, cache_salt] = identity;
            BlockHash::root(Identity { model, adapter, cache_salt })
        };
        let all =
            [["ab", "c", ""], ["a", "bc", ""], ["abc", "", ""], ["", "abc", ""], ["", "", "abc"], ["", "ab", "c"]];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| check(*one) != check(*other)), "{one:?}");
        }
    }

    #[test]
    fn media_count_in_the_blocks_that_they_reach_into() {
        let tokens = [7; 8];
        let with = |media: Vec<Media>| History { media, ..History::new(&tokens) }.hashes(2);
        let (plain, image) = (with(vec![]), with(vec![media(3, 2, b"image")]));
        // Placeholders at 3 and 4: the second and the third block, and what follows them.
        assert_eq!(plain[0], image[0]);
        assert!((1..4).all(|block| plain[block] != image[block]));
        assert_ne!(image[1], with(vec![media(3, 2, b"other")])[1], "equal placeholders, another image");
        assert_ne!(image[1], with(vec![media(3, 1, b"image")])[1], "fewer placeholders");
        assert_ne!(with(vec![media(2, 2, b"image")])[1], with(vec![media(2, 1, b"im"), media(3, 1, b"age")])[1]);
        let (first, all) = (media(0, 2, b"a"), [media(0, 2, b"a"), media(2, 3, b"b"), media(6, 1, b"c")]);
        assert_eq!(*overlapping(&all, 0..2), [first]);
        assert_eq!(*overlapping(&all, 4..6), all[1..2]);
        assert!(overlapping(&all, 5..6).is_empty());
    }

    /// Histories over so few symbols that equal and nearly equal ones are frequent.
    fn history() -> impl Strategy<Value = History> {
        let identity = [0; 3].map(|_| prop::string::string_regex("[ab]{0,2}").expect("a pattern"));
        let media_of = |spans: Vec<(u32, u32, u8)>| {
            let mut at = 0;
            let spans = spans.into_iter().map(|(gap, num_tokens, hash)| {
                let one = media(at + gap, num_tokens, &[hash][..usize::from(hash > 0)]);
                at = one.start + num_tokens;
                one
            });
            spans.collect::<Vec<Media>>()
        };
        let spans = prop::collection::vec((0u32..4, 1u32..4, 0u8..3), 0..3);
        let tokens = prop::collection::vec(0u32..2, 0..8);
        (identity, tokens, spans).prop_map(move |(identity, tokens, spans)| History {
            identity,
            tokens,
            media: media_of(spans),
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        /// Two blocks have one hash exactly where all that they depend on is equal: nothing with another identity is
        /// ever found.
        #[test]
        fn hashes_are_equal_where_everything_is(
            mut a in history(), b in history(), same in 0u8..3, block_size in 1u32..4,
        ) {
            if same > 0 {
                a.identity.clone_from(&b.identity);
            }
            if same > 1 {
                a.media.clone_from(&b.media);
            }
            let (of_a, of_b) = (a.hashes(block_size), b.hashes(block_size));
            for (i, one) in of_a.iter().enumerate() {
                for (j, other) in of_b.iter().enumerate() {
                    let ends = [i, j].map(|block| (block + 1) * block_size as usize);
                    prop_assert_eq!(one == other, a.until(ends[0]) == b.until(ends[1]));
                }
            }
        }
    }
}
