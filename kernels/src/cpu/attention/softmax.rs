//! The online softmax of a tile of scores: weights, and what the sums of earlier tiles are multiplied by.

use super::TILE;
use super::relative::by_distance;
use super::span::Span;
use crate::cpu::simd::{Element, Simd, math};
use crate::ops::Mask;
use std::ops::Range;

impl<E: Element> Span<'_, E> {
    /// Turns the scores of all queries with a tile into weights, and updates their running softmax.
    #[inline(always)]
    pub(super) fn weigh<S: Simd>(&mut self, tile: usize) {
        for query in 0..self.queries {
            self.workspace.highest[query] = self.highest_of::<S>(tile, query);
        }
        self.raise::<S>();
        for query in 0..self.queries {
            self.weigh_query::<S>(query);
        }
    }

    /// The largest score of a query with a tile, of those that it sees; the others are hidden.
    #[inline(always)]
    fn highest_of<S: Simd>(&mut self, tile: usize, query: usize) -> f32 {
        let position = self.position(query);
        let first = self.call.lowest(position).saturating_sub(tile);
        let end = self.call.end(&self.tile.sequence, position).saturating_sub(tile).min(TILE);
        if first >= end {
            return f32::NEG_INFINITY;
        }
        let scores = self.workspace.scores[query * TILE..][..TILE].as_mut_ptr();
        self.mask::<S>(scores, tile, query, first..end)
    }

    /// Takes up the tile's largest scores: what the sums so far are multiplied by.
    #[inline(always)]
    fn raise<S: Simd>(&mut self) {
        for first in (0..self.queries).step_by(S::N) {
            let count = S::N.min(self.queries - first);
            let so_far = self.state.highest[first..][..count].as_mut_ptr();
            let decay = self.workspace.decay[first..][..count].as_mut_ptr();
            // SAFETY: `count` queries are left in each of the three.
            unsafe {
                let before = S::load_up_to(so_far.cast_const(), count);
                let highest = before.max(S::load_up_to(self.workspace.highest[first..][..count].as_ptr(), count));
                let kept = math::exp(before.sub(highest));
                // Where nothing was seen before, there is nothing to keep.
                kept.zero_where_less(before, S::splat(f32::MIN)).store_up_to(decay, count);
                highest.store_up_to(so_far, count);
            }
        }
    }

    /// Turns a query's scores into weights, and adds them up.
    #[inline(always)]
    fn weigh_query<S: Simd>(&mut self, query: usize) {
        let scores = self.workspace.scores[query * TILE..][..TILE].as_mut_ptr();
        if self.workspace.highest[query] == f32::NEG_INFINITY {
            // SAFETY: the query's tile of scores.
            unsafe { scores.write_bytes(0, TILE) };
            return;
        }
        let (highest, mut sum) = (S::splat(self.state.highest[query]), S::splat(0.0));
        for i in (0..TILE).step_by(S::N) {
            // SAFETY: vectors of the query's tile of scores.
            unsafe {
                let mut weight = math::exp(S::load(scores.add(i)).sub(highest));
                if self.call.kv.paired {
                    // The tile unit will take them so; their sum shall be of the same numbers.
                    weight = weight.round_to_bf16();
                }
                weight.store(scores.add(i));
                sum = sum.add(weight);
            }
        }
        self.state.weight[query] = self.state.weight[query] * self.workspace.decay[query] + sum.sum();
    }

    /// Caps and biases scores, hides those outside `visible`, and returns the largest.
    #[inline(always)]
    fn mask<S: Simd>(&self, scores: *mut f32, tile: usize, query: usize, visible: Range<usize>) -> f32 {
        const INDEX: [f32; TILE] = {
            let mut index = [0.0; TILE];
            let mut i = 0;
            while i < TILE {
                index[i] = i as f32;
                i += 1;
            }
            index
        };
        let hidden = S::splat(f32::NEG_INFINITY);
        let params = &self.call.params;
        if visible == (0..TILE)
            && params.layer.soft_cap.is_none()
            && params.alibi.is_none()
            && params.relative.is_none()
        {
            let mut highest = hidden;
            for i in (0..TILE).step_by(S::N) {
                // SAFETY: vectors of the query's tile of scores.
                highest = highest.max(unsafe { S::load(scores.add(i)) });
            }
            return highest.largest();
        }
        let (first, last) = (S::splat(visible.start as f32), S::splat((visible.end - 1) as f32));
        let head = self.tile.kv_head * self.group + query % self.group;
        let slope = self.call.params.alibi.map_or(0.0, |slopes| slopes[head]);
        let origin = S::splat((self.position(query) as i64 - tile as i64) as f32);
        let (both, zero) = (self.call.params.layer.mask == Mask::Bidirectional, S::splat(0.0));
        let relative = self.relative(head);
        let nearest = tile as i64 - self.position(query) as i64;
        let mut highest = hidden;
        for i in (0..TILE).step_by(S::N) {
            // SAFETY: vectors of the query's tile of scores, and of the index.
            unsafe {
                let index = S::load(INDEX.as_ptr().add(i));
                let mut score = S::load(scores.add(i));
                if let Some(cap) = self.call.params.layer.soft_cap {
                    score = math::tanh(score.mul(S::splat(1.0 / cap))).mul(S::splat(cap));
                }
                if slope != 0.0 {
                    let ahead = index.sub(origin);
                    // Minus the distance, either way.
                    let distance = if both { zero.sub(ahead.max(zero.sub(ahead))) } else { ahead };
                    score = distance.fma(S::splat(slope), score);
                }
                if let Some(biases) = relative {
                    score = score.add(by_distance::<S>(biases, nearest + i as i64));
                }
                score = score.replace_where_less(index, first, hidden).replace_where_less(last, index, hidden);
                score.store(scores.add(i));
                highest = highest.max(score);
            }
        }
        highest.largest()
    }

    /// A head's learned biases by distance, where the layer has some.
    #[inline(always)]
    fn relative(&self, head: usize) -> Option<&[f32]> {
        let width = 2 * self.call.params.layer.relative?.reach + 1;
        self.call.params.relative.map(|table| &table[head * width..][..width])
    }
}
