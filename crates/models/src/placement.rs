//! [`Placement`]: which part of a model a process holds.

use std::ops::Range;

use kernels::ops::RankPlacement;

use crate::error::LoadError;

/// A process's part of a model: a slice of every layer of a stage.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Its rank in the tensor-parallel group that shares the stage's layers.
    pub tp: RankPlacement,
    /// Its stage in the pipeline.
    pub stage: Stage,
}

impl Placement {
    /// The whole model.
    pub const WHOLE: Self = Self::rank(0, 1);

    /// A rank of a tensor-parallel group that holds all layers.
    pub const fn rank(rank: usize, size: usize) -> Self {
        Self { tp: RankPlacement { rank, size }, stage: Stage::WHOLE }
    }
}

/// A stage of a pipeline: consecutive layers. The first one embeds tokens, the last one has the head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stage {
    /// Which one.
    pub index: usize,
    /// Stages of the pipeline.
    pub count: usize,
    /// Its layers; absent: an even share of the bytes.
    pub layers: Option<Range<usize>>,
}

impl Stage {
    /// All layers.
    pub const WHOLE: Self = Self { index: 0, count: 1, layers: None };

    /// The layers of this stage. `bytes`: what each layer takes, the embedding counted with the first and the head with
    /// the last.
    pub(crate) fn layers_of(&self, bytes: &[u64]) -> Result<Range<usize>, LoadError> {
        let Self { index, count, ref layers } = *self;
        let total = bytes.len();
        let refused = |what, value, reason| Err(LoadError::Option { what, value, reason });
        if index >= count {
            return refused("pipeline stage", index, "it must be below the number of stages");
        }
        let layers = match (layers, even_cuts(bytes, count)) {
            (Some(layers), _) => layers.clone(),
            (None, Some(cuts)) => cuts[index]..cuts[index + 1],
            (None, None) => return refused("number of pipeline stages", count, "the model has fewer layers"),
        };
        let is_end = (layers.start == 0, layers.end == total);
        if layers.end > total || is_end != (index == 0, index + 1 == count) {
            return refused(
                "last layer of the stage",
                layers.end,
                "the stages of a pipeline must cover all layers once",
            );
        }
        // A model without layers is one stage.
        if layers.is_empty() && total > 0 {
            return refused("pipeline stages", count, "each must have a layer");
        }
        Ok(layers)
    }
}

/// Where to cut layers of these sizes into stages with a layer each, so that the largest stage is as small as can be:
/// `count + 1` bounds. Among equal ways, earlier stages are the larger ones. `None`: there are fewer layers.
fn even_cuts(bytes: &[u64], count: usize) -> Option<Vec<usize>> {
    let total = bytes.len();
    if count <= 1 {
        return Some(vec![0, total]);
    }
    if total < count {
        return None;
    }
    let mut sums = vec![0; total + 1];
    for (layer, size) in bytes.iter().enumerate() {
        sums[layer + 1] = sums[layer] + size;
    }
    // largest[stages][end]: the largest stage of the best way to cut the first `end` layers into `stages`, and its cut.
    let mut largest: Vec<Vec<(u64, usize)>> = vec![(0..=total).map(|end| (sums[end], 0)).collect()];
    for stages in 2..=count {
        let before = largest.last()?;
        let best = |end: usize| {
            let cuts = stages - 1..end;
            let ways = cuts.map(|cut| (before[cut].0.max(sums[end] - sums[cut]), cut));
            ways.min_by_key(|&(size, cut)| (size, std::cmp::Reverse(cut))).unwrap_or((u64::MAX, 0))
        };
        let next = (0..=total).map(best).collect();
        largest.push(next);
    }
    let mut cuts = vec![total];
    for ways in largest.iter().rev() {
        let end = *cuts.last()?;
        cuts.push(ways[end].1);
    }
    cuts.reverse();
    Some(cuts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_stages_cover_all_layers_once() {
        for (total, count) in [(1, 1), (32, 4), (7, 3), (62, 5)] {
            let bytes = vec![7; total];
            let stages = (0..count).map(|index| Stage { index, count, layers: None }.layers_of(&bytes).unwrap());
            let covered: Vec<usize> = stages.flatten().collect();
            assert_eq!(covered, (0..total).collect::<Vec<_>>(), "{total} over {count}");
        }
    }

    #[test]
    fn impossible_stages_are_refused() {
        let stage = |index, count, layers| Stage { index, count, layers }.layers_of(&[1; 4]);
        assert_eq!(stage(0, 2, Some(0..3)).unwrap(), 0..3);
        assert_eq!(stage(1, 2, Some(3..4)).unwrap(), 3..4);
        for refused in [
            stage(2, 2, None),
            stage(0, 2, Some(0..4)),
            stage(1, 2, Some(3..5)),
            stage(1, 2, Some(0..4)),
            stage(1, 3, Some(2..2)),
        ] {
            assert!(refused.is_err(), "{refused:?}");
        }
        for index in [0, 4] {
            let refusal = stage(index, 5, None).unwrap_err().to_string();
            assert!(refusal.contains("number of pipeline stages is 5: the model has fewer layers"), "{refusal}");
        }
    }

    #[test]
    fn the_largest_stage_is_as_small_as_can_be() {
        let check = |bytes: &[u64], count, cuts: &[usize]| {
            assert_eq!(even_cuts(bytes, count).as_deref(), Some(cuts), "{bytes:?} over {count}");
        };
        check(&[5], 1, &[0, 1]);
        check(&[], 1, &[0, 0]);
        check(&[1, 1, 1, 1], 2, &[0, 2, 4]);
        check(&[1, 1, 1, 1, 1], 2, &[0, 3, 5]);
        // A large embedding, and a large head.
        check(&[4, 1, 1, 1, 1, 1], 2, &[0, 2, 6]);
        check(&[1, 1, 1, 1, 1, 4], 2, &[0, 5, 6]);
        check(&[3, 1, 1, 1, 1, 3], 3, &[0, 2, 5, 6]);
        check(&[9, 0, 0], 3, &[0, 1, 2, 3]);
        assert_eq!(even_cuts(&[1, 1], 3), None);
    }
}
