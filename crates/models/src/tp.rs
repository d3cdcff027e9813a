//! Tensor parallelism: which part of every weight a rank holds. The rules are here and nowhere else.
//!
//! ```text
//! q, k, v, gate, up   split by output rows (whole heads)     no communication
//! o, down             split by input columns                 all-reduce of the product
//! embedding, head     split by vocabulary                    all-reduce of rows; all-gather of logits
//! norms, routers      on every rank
//! recurrent states    by channels or whole heads             all-reduce of Mamba 1's small projections
//! experts             each like an MLP
//! latent attention    by heads; the projection to the latent space, and its cache, on every rank
//! ```
//!
//! Where one norm goes over all heads' queries, and one over all keys, every rank projects all of them and keeps its
//! own. With fewer key/value heads than ranks, neighbouring ranks hold the same head.

use std::ops::Range;

use model_spec::{AttentionSpec, MixerSpec, ModelSpec};

use crate::error::LoadError;

/// A rank of a tensor-parallel group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    pub rank: usize,
    pub size: usize,
}

/// A rank's part of the vocabulary. All ranks have the same number of rows; the last may be padded with zeros.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Vocabulary {
    /// Of the model's own tokens.
    pub entries: Range<usize>,
    /// The same with those that adapters may have behind them.
    pub wide: Range<usize>,
    /// After `wide`.
    pub pad_rows: usize,
}

impl Shard {
    pub(crate) fn new(rank: usize, size: usize) -> Result<Self, LoadError> {
        if size == 0 {
            return Err(LoadError::Option {
                what: "tensor-parallel size",
                value: size,
                reason: "it must be at least 1",
            });
        }
        if rank >= size {
            return Err(LoadError::Option {
                what: "tensor-parallel rank",
                value: rank,
                reason: "it must be below the size",
            });
        }
        Ok(Self { rank, size })
    }

    /// Refuses sizes that cannot be split.
    pub(crate) fn check(self, spec: &ModelSpec) -> Result<(), LoadError> {
        for layer in &spec.layers {
            match &layer.mixer {
                MixerSpec::Attention(attention) => self.check_attention(attention)?,
                MixerSpec::Mamba(mamba) => self.divides("intermediate_size", mamba.inner)?,
                MixerSpec::Mamba2(mamba) => {
                    self.divides("num_heads", mamba.heads)?;
                    self.divides("n_groups", mamba.groups)?;
                }
                MixerSpec::Delta(delta) => {
                    self.divides("linear_num_key_heads", delta.key_heads)?;
                    self.divides("linear_num_value_heads", delta.value_heads)?;
                }
                MixerSpec::Latent(latent) => self.divides("num_attention_heads", latent.heads)?,
            }
            for (what, size) in layer.feed_forward.inner_sizes() {
                self.divides(what, size)?;
            }
        }
        Ok(())
    }

    fn check_attention(self, attention: &AttentionSpec) -> Result<(), LoadError> {
        self.divides("num_attention_heads", attention.heads)?;
        let kv = attention.kv_heads;
        if kv.is_multiple_of(self.size) || self.size.is_multiple_of(kv) {
            return Ok(());
        }
        let remedy = format!("divides {kv}, or is a multiple of it");
        Err(LoadError::Shard { what: "num_key_value_heads", size: kv, ranks: self.size, remedy })
    }

    fn divides(self, what: &'static str, size: usize) -> Result<(), LoadError> {
        if size.is_multiple_of(self.size) {
            return Ok(());
        }
        Err(LoadError::Shard { what, size, ranks: self.size, remedy: format!("divides {size}") })
    }

    /// An equal part of `count` things.
    pub(crate) fn part(self, count: usize) -> Range<usize> {
        let each = count / self.size;
        self.rank * each..(self.rank + 1) * each
    }

    /// The key/value heads that this rank's query heads read.
    pub(crate) fn kv_heads(self, count: usize) -> Range<usize> {
        if count >= self.size {
            return self.part(count);
        }
        let head = self.rank * count / self.size;
        head..head + 1
    }

    /// Of `size` tokens of a model, and `extra` of adapters behind them.
    pub(crate) fn vocabulary(self, size: usize, extra: usize) -> Vocabulary {
        let each = (size + extra).div_ceil(self.size);
        let of = |size: usize| (self.rank * each).min(size)..((self.rank + 1) * each).min(size);
        let wide = of(size + extra);
        Vocabulary { pad_rows: each - wide.len(), entries: of(size), wide }
    }

    /// Biases of products that are summed over ranks are added once.
    pub(crate) fn adds_bias(self) -> bool {
        self.rank == 0
    }
}

/// From a range of heads to the rows they cover.
pub(crate) fn head_rows(heads: &Range<usize>, dim: usize) -> Range<usize> {
    heads.start * dim..heads.end * dim
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shards(size: usize) -> impl Iterator<Item = Shard> {
        (0..size).map(move |rank| Shard { rank, size })
    }

    #[test]
    fn kv_heads_follow_query_heads() {
        for (heads, kv, size) in [(8, 8, 4), (8, 4, 4), (8, 2, 4), (8, 1, 8), (32, 8, 8), (12, 2, 6)] {
            for shard in shards(size) {
                let kept = shard.kv_heads(kv);
                // Query head q reads key/value head q / (heads / kv); on a rank, q' reads q' / (its heads / its kv
                // heads).
                let queries = shard.part(heads);
                for (local, q) in queries.clone().enumerate() {
                    let read = kept.start + local / (queries.len() / kept.len());
                    assert_eq!(read, q / (heads / kv), "{heads}/{kv} over {size}, rank {}", shard.rank);
                }
            }
        }
    }

    #[test]
    fn vocabulary_is_covered_once() {
        for (vocab, size) in [(512, 2), (513, 2), (7, 4), (1, 3), (50257, 8)] {
            for extra in [0, 3] {
                let parts: Vec<Vocabulary> = shards(size).map(|shard| shard.vocabulary(vocab, extra)).collect();
                let covered = |of: fn(&Vocabulary) -> &Range<usize>| -> Vec<usize> {
                    parts.iter().flat_map(|part| of(part).clone()).collect()
                };
                assert_eq!(covered(|part| &part.entries), (0..vocab).collect::<Vec<_>>());
                assert_eq!(covered(|part| &part.wide), (0..vocab + extra).collect::<Vec<_>>());
                let each = (vocab + extra).div_ceil(size);
                assert!(parts.iter().all(|part| part.wide.len() + part.pad_rows == each));
            }
        }
    }

    #[test]
    fn impossible_ranks_are_refused() {
        assert!(Shard::new(0, 0).is_err() && Shard::new(2, 2).is_err() && Shard::new(1, 2).is_ok());
    }
}
